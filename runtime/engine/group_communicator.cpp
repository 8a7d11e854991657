// group_communicator.cpp -- makes, uses, watches and aborts an NCCL communicator.
#include "runtime/engine/group_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "runtime/cuda/beside_captures.hpp"
#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/threads.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPatienceWithAbort{1000};
constexpr milliseconds kShortestLook{1}, kLongestLook{50};  // between two looks at how far launches are
constexpr int kEagerLooks = 2000;                           // without a pause, because a launch takes microseconds
constexpr std::int64_t kHelloBytes = 256;                   // that every two ranks exchange to connect

/// What a thread needs that works for a group while the program does what it likes: the group's context, and no part in
/// the captures of others.
class OnTheSide {
 public:
  explicit OnTheSide(CUctx_st* context) : scope_(context) {}
  const Result<void>& entered() const { return scope_.entered(); }

 private:
  const CurrentContext scope_;
  const BesideCaptures relaxed_;
};

constexpr const char* kReconnect =
    "NCCL does not say which rank it is: look at their errors. Throw away the results since the last check that was "
    "well, and on all ranks connect the group again (leanattn_group_connect_nccl) or make a new one, and capture "
    "graphs anew.";

Error late(const char* what, std::int64_t bound_ms) {
  return Error{ErrorCode::group_broken,
               fmt::format("{} within {} ms", what, bound_ms),
               fmt::format("A rank has ended, is late, has failed or has launched something else. {} Where it was only "
                           "late, give more time (LEANATTN_WAIT_BOUND_MS; LEANATTN_JOIN_BOUND_MS for ranks that join).",
                           kReconnect),
               {}};
}

Error broken_by(const Error& cause) {
  return Error{ErrorCode::group_broken, "the exchange of a group over NCCL failed: " + cause.message,
               cause.hint + ' ' + kReconnect, cause.log};
}

}  // namespace

/// What connect() works with.
struct GroupCommunicator::Hello {
  DeviceBuffer memory;
  Stream stream;
};

struct GroupCommunicator::State {
  enum class Phase { starting, ready, broken };
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (hello) keep_for_ever(std::move(hello));
  }
  /// Of a communicator of the caller's, whose kernels may run on. Freeing memory would wait for them.
  static void keep_for_ever(std::unique_ptr<Hello> unfinished) {
    static auto& kept = *new std::vector<std::unique_ptr<Hello>>;
    static std::mutex guard;
    const std::lock_guard lock(guard);
    kept.push_back(std::move(unfinished));
  }

  const NcclApi* api = nullptr;
  CommunicatorOptions options;
  bool owned = false;
  NcclUniqueId id{};

  mutable std::mutex mutex;  ///< guards what follows, and is never held during a call of NCCL
  std::condition_variable changed;
  ncclComm* comm = nullptr;
  bool in_call = false;  ///< a thread calls NCCL for it, but for its end
  Phase phase = Phase::starting;
  Error error;
  bool breaking = false;  ///< error is set, and the phase becomes broken
  bool stop = false;      ///< the object is being destroyed
  bool aborting = false;  ///< comm has been given to a thread that aborts it
  bool aborted = false;
  std::unique_ptr<Hello> hello;  ///< of a connect() that failed, so that it may still be in use

  CUctx_st* context() const { return options.context ? options.context->get() : nullptr; }
  bool stopping() const {
    const std::lock_guard lock(mutex);
    return stop || phase == Phase::broken;
  }
};

/// Calls of NCCL for the communicator while it lives, one thread at a time.
class GroupCommunicator::Call {
 public:
  /// Waits for the calls of other threads, or does not begin where there are any.
  Call(State& state, bool waits) : state_(state) {
    std::unique_lock lock(state.mutex);
    if (waits) state.changed.wait(lock, [&] { return !state.in_call; });
    begun_ = !std::exchange(state.in_call, true);
  }
  ~Call() {
    if (!begun_) return;
    {
      const std::lock_guard lock(state_.mutex);
      state_.in_call = false;
    }
    state_.changed.notify_all();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  bool begun() const { return begun_; }

 private:
  State& state_;
  bool begun_ = false;
};

GroupCommunicator::GroupCommunicator(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<GroupCommunicator>> GroupCommunicator::join(const NcclApi& api, const NcclUniqueId& id,
                                                                   CommunicatorOptions options) {
  auto state = std::make_shared<State>();
  state->api = &api;
  state->options = std::move(options);
  state->owned = true;
  state->id = id;
  std::unique_ptr<GroupCommunicator> made(new GroupCommunicator(state));
  auto thread = start_own_thread([state] {
    const OnTheSide scope(state->context());
    Result<void> ok = scope.entered();
    ncclComm* comm = nullptr;
    if (ok) {
      NcclConfig config;
      ok = check_nccl(
          *state->api,
          state->api->ncclCommInitRankConfig(&comm, state->options.ranks, state->id, state->options.rank, &config),
          "ncclCommInitRankConfig");
    }
    {
      const std::lock_guard lock(state->mutex);
      state->comm = comm;
    }
    if (ok) ok = settle(*state, comm, "not all ranks of a group over NCCL have joined it", state->options.join_ms);
    if (ok) ok = connect(*state);
    if (!ok) return break_up(state, ok.error());
    {
      const std::lock_guard lock(state->mutex);
      state->phase = State::Phase::ready;
    }
    state->changed.notify_all();
    watch(state);
  });
  if (!thread) return tl::unexpected(std::move(thread.error()));
  made->thread_ = *std::move(thread);
  return made;
}

Result<std::unique_ptr<GroupCommunicator>> GroupCommunicator::borrow(const NcclApi& api, ncclComm* comm,
                                                                     CommunicatorOptions options) {
  int ranks = 0, rank = 0, device = 0;
  if (auto ok = check_nccl(api, api.ncclCommCount(comm, &ranks), "ncclCommCount"); !ok)
    return tl::unexpected(std::move(ok.error()));
  if (auto ok = check_nccl(api, api.ncclCommUserRank(comm, &rank), "ncclCommUserRank"); !ok)
    return tl::unexpected(std::move(ok.error()));
  if (auto ok = check_nccl(api, api.ncclCommCuDevice(comm, &device), "ncclCommCuDevice"); !ok)
    return tl::unexpected(std::move(ok.error()));
  if (ranks != options.ranks || rank != options.rank)
    return fail(ErrorCode::invalid_argument,
                fmt::format("the communicator has rank {} of {}, and the group needs rank {} of {}", rank, ranks,
                            options.rank, options.ranks),
                "A communicator has the ranks of the group that exchange over NCCL, in their order.");
  if (options.context && device != options.context->ordinal())
    return fail(ErrorCode::invalid_argument,
                fmt::format("the communicator is of CUDA device {}, and the group of device {}", device,
                            options.context->ordinal()),
                "Give the communicator of the engine's GPU.");
  auto state = std::make_shared<State>();
  state->api = &api;
  state->options = std::move(options);
  state->comm = comm;
  {
    const OnTheSide scope(state->context());
    if (!scope.entered()) return tl::unexpected(scope.entered().error());
    if (auto ok = connect(*state); !ok) return tl::unexpected(std::move(ok.error()));
  }
  state->phase = State::Phase::ready;
  std::unique_ptr<GroupCommunicator> made(new GroupCommunicator(state));
  auto thread = start_own_thread([state] {
    const OnTheSide scope(state->context());
    watch(state);
  });
  if (!thread) return tl::unexpected(std::move(thread.error()));
  made->thread_ = *std::move(thread);
  return made;
}

GroupCommunicator::~GroupCommunicator() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  if (thread_.joinable()) thread_.join();
  if (!state_->owned) return;
  abort_in_background(state_);
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, kPatienceWithAbort, [this] { return state_->aborted; });
}

/// Waits until the communicator has done what was asked of it.
Result<void> GroupCommunicator::settle(State& state, ncclComm* comm, const char* what, std::int64_t bound_ms) {
  const auto deadline = Clock::now() + milliseconds(bound_ms);
  for (int looks = 0;; ++looks) {
    int status = kNcclSuccess;
    if (auto ok = check_nccl(*state.api, state.api->ncclCommGetAsyncError(comm, &status), "ncclCommGetAsyncError"); !ok)
      return tl::unexpected(broken_by(ok.error()));
    if (status == kNcclSuccess) return {};
    if (auto ok = check_nccl(*state.api, status, "NCCL"); !ok) return tl::unexpected(broken_by(ok.error()));
    if (Clock::now() > deadline || state.stopping()) return tl::unexpected(late(what, bound_ms));
    if (looks < kEagerLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kShortestLook);
    }
  }
}

/// Enqueues the transfers. In a Call, or before others know of it.
Result<void> GroupCommunicator::run(State& state, std::span<const Transfer> transfers, CUstream_st* stream,
                                    std::int64_t bound_ms) {
  const NcclApi& api = *state.api;
  if (auto ok = check_nccl(api, api.ncclGroupStart(), "ncclGroupStart"); !ok) return ok;
  Result<void> all;
  for (const Transfer& transfer : transfers) {
    const auto bytes = static_cast<std::size_t>(transfer.bytes);
    if (all)
      all = check_nccl(api, api.ncclSend(transfer.send, bytes, kNcclUint8, transfer.rank, state.comm, stream),
                       "ncclSend");
    if (all)
      all = check_nccl(api, api.ncclRecv(transfer.receive, bytes, kNcclUint8, transfer.rank, state.comm, stream),
                       "ncclRecv");
  }
  const int status = api.ncclGroupEnd();  // also after an error, because groups nest
  if (!all) return all;
  if (auto ok = check_nccl(api, status, "ncclGroupEnd"); !ok) return ok;
  if (status == kNcclSuccess) return {};
  return settle(state, state.comm, "the launch of an exchange over NCCL was not ready", bound_ms);
}

/// Has every two ranks exchange something, because NCCL connects ranks when they first do, and waits. Launches find
/// them connected, so that they wait for nobody on the host, also during captures.
Result<void> GroupCommunicator::connect(State& state) {
  const int ranks = state.options.ranks;
  auto memory = DeviceBuffer::allocate(kHelloBytes * (ranks + 1));
  if (!memory) return tl::unexpected(std::move(memory.error()));
  auto stream = Stream::create();
  if (!stream) return tl::unexpected(std::move(stream.error()));
  auto hello = std::make_unique<Hello>(Hello{*std::move(memory), *std::move(stream)});
  const DeviceBuffer& all = hello->memory;
  CUstream_st* const on = hello->stream.get();
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != state.options.rank)
      transfers.push_back({rank, all.data(), all.at(kHelloBytes * (rank + 1)), kHelloBytes});
  }
  if (auto ok = fill_bytes_async(all.data(), 0, all.bytes(), on); !ok) return ok;
  auto said = [&]() -> Result<void> {
    if (auto ok = run(state, transfers, on, state.options.join_ms); !ok) return ok;
    return wait_for(state, on);
  }();
  if (!said) {
    const std::lock_guard lock(state.mutex);
    state.hello = std::move(hello);
  }
  return said;
}

/// Waits until the stream is idle.
Result<void> GroupCommunicator::wait_for(State& state, CUstream_st* stream) {
  const auto sent = Event::create(false);
  if (!sent) return tl::unexpected(sent.error());
  if (auto ok = sent->record(stream); !ok) return ok;
  const auto deadline = Clock::now() + milliseconds(state.options.join_ms);
  for (;;) {
    const auto done = sent->query();
    if (!done) return tl::unexpected(done.error());
    if (*done) return {};
    if (Clock::now() > deadline || state.stopping())
      return tl::unexpected(late("not all ranks of a group over NCCL have connected", state.options.join_ms));
    std::this_thread::sleep_for(kShortestLook);
  }
}

void GroupCommunicator::break_up(const std::shared_ptr<State>& state, const Error& error) {
  Error told = error.code == ErrorCode::launch_failed ? broken_by(error) : error;
  {
    const std::lock_guard lock(state->mutex);
    if (std::exchange(state->breaking, true)) return;
    state->error = told;
  }
  // Before any call answers that it is broken, so that all of them agree.
  if (state->options.on_break) state->options.on_break(told);
  {
    const std::lock_guard lock(state->mutex);
    state->phase = State::Phase::broken;
  }
  state->changed.notify_all();
  if (state->owned) abort_in_background(state);
}

/// Its launches end then. The call may wait for graphs that refer to the communicator, so that nobody waits for it.
void GroupCommunicator::abort_in_background(const std::shared_ptr<State>& state) {
  {
    const std::lock_guard lock(state->mutex);
    if (state->aborting) return;
    state->aborting = true;
    if (state->comm == nullptr) {
      state->aborted = true;
      return;
    }
  }
  const auto abort = [state] {
    std::shared_ptr<const Context> context;  // given back when nothing needs it any more
    {
      const OnTheSide scope(state->context());
      {
        // Nobody begins a call any more, and those that wait look at the phase. One of NCCL's that waits needs the
        // abort.
        std::unique_lock lock(state->mutex);
        state->changed.wait_for(lock, milliseconds(state->options.bound_ms), [&] { return !state->in_call; });
      }
      state->api->ncclCommAbort(state->comm);
      const std::lock_guard lock(state->mutex);
      state->hello.reset();
      state->options.on_break = nullptr;  // the engine may be gone, so that this frees its status
      context = std::move(state->options.context);
    }
    context.reset();
    const std::lock_guard lock(state->mutex);
    state->aborted = true;
    state->changed.notify_all();
  };
  if (auto thread = start_own_thread(abort)) {
    thread->detach();
  } else {
    abort();
  }
}

/// Whether NCCL or a launch of another thread has found an error. In a Call.
Result<void> GroupCommunicator::look_for_error(State& state) {
  {
    const std::lock_guard lock(state.mutex);
    if (state.phase == State::Phase::broken) return tl::unexpected(state.error);
  }
  int status = kNcclSuccess;
  if (auto ok = check_nccl(*state.api, state.api->ncclCommGetAsyncError(state.comm, &status), "ncclCommGetAsyncError");
      !ok)
    return ok;
  return check_nccl(*state.api, status, "NCCL");
}

void GroupCommunicator::watch(const std::shared_ptr<State>& state) {
  const LeanExchangeProgress* const progress = state->options.progress;
  const auto look = std::clamp(milliseconds(state->options.bound_ms / 8), kShortestLook, kLongestLook);
  unsigned seen = 0;  // the launch that is being waited for, since `since`
  bool waits = false;
  auto since = Clock::now();
  for (;;) {
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait_for(lock, look, [&] { return state->stop || state->phase == State::Phase::broken; });
      if (state->stop || state->phase == State::Phase::broken) return;
    }
    const unsigned ended = __atomic_load_n(&progress->ended, __ATOMIC_ACQUIRE),
                   begun = __atomic_load_n(&progress->begun, __ATOMIC_ACQUIRE);
    if (begun == ended) {
      waits = false;
      continue;
    }
    if (!waits || seen != begun) {
      waits = true, seen = begun, since = Clock::now();
      continue;
    }
    Result<void> ok;
    if (const Call call(*state, false); call.begun()) ok = look_for_error(*state);
    if (!ok) return break_up(state, ok.error());
    if (Clock::now() - since > milliseconds(state->options.bound_ms))
      return break_up(state, late("a rank of a group over NCCL did not send its results", state->options.bound_ms));
  }
}

Result<void> GroupCommunicator::ready() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  // The thread that connects ends by itself, after a bound for each of its steps.
  state.changed.wait(lock, [&] { return state.phase != State::Phase::starting; });
  if (state.phase == State::Phase::broken) return tl::unexpected(state.error);
  return {};
}

Result<void> GroupCommunicator::usable() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->phase == State::Phase::broken) return tl::unexpected(state_->error);
  if (state_->phase == State::Phase::starting)
    return fail(ErrorCode::not_prepared, "the ranks of the group are still connecting over NCCL",
                "Make a plan of the group first, on all ranks: that waits for them.");
  return {};
}

Result<void> GroupCommunicator::exchange(std::span<const Transfer> transfers, CUstream_st* stream) {
  Result<void> done;
  {
    const Call call(*state_, true);
    done = look_for_error(*state_);
    if (done) done = run(*state_, transfers, stream, state_->options.bound_ms);
  }
  if (done) return {};
  break_up(state_, done.error());
  const std::lock_guard lock(state_->mutex);
  return tl::unexpected(state_->error);
}

bool GroupCommunicator::broken() const {
  const std::lock_guard lock(state_->mutex);
  return state_->phase == State::Phase::broken;
}

}  // namespace v1
}  // namespace leanattn
