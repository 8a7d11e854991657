// workspaces.cpp -- allocates memory for launches, and takes back that of graphs that are gone.
#include "workspaces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "runtime/cuda/beside_captures.hpp"
#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/driver.hpp"

namespace leanattn::python {
namespace {

constexpr std::int64_t kGranule = 1 << 20;

}  // namespace

Workspaces::~Workspaces() {
  const CurrentContext scope(context_.get());
  streams_.clear();
  threads_.clear();
  captures_.clear();
  spare_.clear();
  outgrown_.clear();
}

template <class Function>
void Workspaces::for_each_in_use(Function function) const {
  for (const auto& [stream, memory] : streams_) std::for_each(memory.begin(), memory.end(), function);
  for (const OfThread& one : threads_) std::for_each(one.memory.begin(), one.memory.end(), function);
  for (const auto& [key, lent] : captures_) {
    for (const Lent& one : lent) function(one.buffer);
  }
}

std::int64_t Workspaces::bytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t total = 0;
  const auto add = [&](const DeviceBuffer& buffer) { total += buffer.bytes(); };
  for_each_in_use(add);
  for (const auto* buffers : {&spare_, &outgrown_}) std::for_each(buffers->begin(), buffers->end(), add);
  return total;
}

Result<void*> Workspaces::get(const leanattn_plan* plan, CUstream_st* stream) {
  return find(workspace_kind, plan, leanattn_plan_workspace_bytes(plan), stream);
}

Result<Workspaces::Scratch> Workspaces::scratch(std::int64_t bytes, CUstream_st* stream) {
  std::unique_lock alone(scratch_mutex_);
  const auto found = find(scratch_kind, nullptr, bytes, stream);
  if (!found) return tl::unexpected(found.error());
  return Scratch{std::move(alone), *found};
}

Result<void*> Workspaces::find(Kind kind, const leanattn_plan* plan, std::int64_t bytes, CUstream_st* stream) {
  // The handles of default streams mean those of the current context.
  const CurrentContext scope(context_.get());
  if (!scope.entered()) [[unlikely]]
    return tl::unexpected(scope.entered().error());
  const auto capture = stream_capture_of(stream);
  if (!capture) [[unlikely]]
    return tl::unexpected(capture.error());
  const std::lock_guard lock(mutex_);
  if (capture->id != 0) [[unlikely]]
    return of_capture(kind, bytes, stream, *capture);
  const auto memory = of_stream(stream);
  if (!memory) [[unlikely]]
    return tl::unexpected(memory.error());
  DeviceBuffer& buffer = (**memory)[kind];
  if (buffer.data() != nullptr && buffer.bytes() >= bytes) [[likely]]
    return buffer.data();
  return grow(buffer, plan, bytes, stream);
}

/// The memory of a stream that is not being captured.
Result<Workspaces::Memory*> Workspaces::of_stream(CUstream_st* stream) {
  const StreamIdentity identity = stream_identity(stream);
  if (identity.thread == 0) [[likely]]
    return &streams_[stream];
  auto one =
      std::find_if(threads_.begin(), threads_.end(), [&](const OfThread& mine) { return mine.stream == identity; });
  if (one == threads_.end()) {
    const BesideCaptures relaxed;
    one = std::find_if(threads_.begin(), threads_.end(), [](const OfThread& other) {
      if (other.enqueuing) return false;
      const auto ended = other.end.query();
      return ended && *ended;
    });
    if (one == threads_.end()) {
      auto end = Event::create(false);
      if (!end) return tl::unexpected(end.error());
      one = threads_.insert(one, OfThread{.stream = {}, .enqueuing = false, .end = *std::move(end), .memory = {}});
    }
    one->stream = identity;
  }
  one->enqueuing = true;
  return &one->memory;
}

void Workspaces::enqueued(CUstream_st* stream) {
  const StreamIdentity identity = stream_identity(stream);
  if (identity.thread == 0) [[likely]]
    return;
  const std::lock_guard lock(mutex_);
  const auto mine =
      std::find_if(threads_.begin(), threads_.end(), [&](const OfThread& one) { return one.stream == identity; });
  if (mine == threads_.end() || !mine->enqueuing) return;  // a capture got memory of its own
  // Without the record no other thread ever takes this memory.
  const CurrentContext scope(context_.get());
  if (scope.entered() && mine->end.record(stream)) mine->enqueuing = false;
}

Result<bool> Workspaces::capturing(CUstream_st* stream) const {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  const auto capture = stream_capture_of(stream);
  if (!capture) return tl::unexpected(capture.error());
  return capture->id != 0;
}

/// Allocates at least `bytes`, rounded up so that plans which need a little more fit as well.
Result<DeviceBuffer> Workspaces::allocate(std::int64_t bytes) {
  if (bytes > std::numeric_limits<std::int64_t>::max() - kGranule)
    return fail(ErrorCode::out_of_memory, fmt::format("a workspace of {} bytes, more than any GPU has", bytes));
  const BesideCaptures relaxed;
  return DeviceBuffer::allocate((std::max<std::int64_t>(bytes, 1) + kGranule - 1) / kGranule * kGranule);
}

/// Zeroes now, on a stream of its own: within a capture every replay would zero the buffer.
Result<void> Workspaces::zero(void* data, std::int64_t bytes) {
  const BesideCaptures relaxed;
  const auto side = leanattn::Stream::create();  // not this folder's
  if (!side) return tl::unexpected(side.error());
  if (auto ok = fill_bytes_async(data, 0, bytes, side->get()); !ok) return ok;
  return side->synchronize();
}

Result<DeviceBuffer> Workspaces::make(std::int64_t bytes) {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  auto buffer = allocate(bytes);
  if (!buffer) return buffer;
  if (auto ok = zero(buffer->data(), buffer->bytes()); !ok) return tl::unexpected(ok.error());
  const std::lock_guard lock(mutex_);
  made_.emplace(buffer->data(), buffer->bytes());
  return buffer;
}

void Workspaces::free(DeviceBuffer buffer) {
  {
    const std::lock_guard lock(mutex_);
    made_.erase(buffer.data());
  }
  const CurrentContext scope(context_.get());
  buffer = {};
}

Result<void> Workspaces::wait() {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return scope.entered();
  return synchronize_context();
}

Result<void> Workspaces::wait(CUstream_st* stream) {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return scope.entered();
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  return check((*api)->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

Result<void> Workspaces::reset() {
  const CurrentContext scope(context_.get());
  if (!scope.entered()) return scope.entered();
  const std::lock_guard lock(mutex_);
  if (auto ok = synchronize_context(); !ok) return ok;
  std::map<void*, std::int64_t> all = made_;
  for_each_in_use([&](const DeviceBuffer& buffer) { all.emplace(buffer.data(), buffer.bytes()); });
  // Outgrown ones are not used again, and spare ones are zeroed before they are.
  for (const auto& [data, bytes] : all) {
    if (data == nullptr) continue;
    if (auto ok = zero(data, bytes); !ok) return ok;
  }
  return {};
}

/// Replaces the memory of a stream by more. A workspace is zeroed on its stream.
Result<void*> Workspaces::grow(DeviceBuffer& buffer, const leanattn_plan* plan, std::int64_t bytes,
                               CUstream_st* stream) {
  auto more = allocate(std::max(bytes, buffer.bytes() * 2));
  if (!more) return tl::unexpected(more.error());
  if (plan != nullptr) {
    if (const auto status = leanattn_plan_init_workspace(plan, more->data(), more->bytes(), stream);
        status != LEANATTN_OK) {
      return tl::unexpected(detail::last_error(status));
    }
  }
  if (buffer.bytes() > 0) outgrown_.push_back(std::move(buffer));
  buffer = std::move(*more);
  return buffer.data();
}

Result<void*> Workspaces::of_capture(Kind kind, std::int64_t bytes, CUstream_st* stream, const StreamCapture& capture) {
  const OfCapture key{capture.id, stream_identity(stream), kind};
  for (const Lent& one : captures_[key]) {
    if (one.buffer.bytes() >= bytes) return one.buffer.data();
  }
  take_back_ended();
  DeviceBuffer buffer;
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const auto& one) { return one.bytes() >= bytes; });
  if (fits != spare_.end()) {
    buffer = std::move(*fits);
    spare_.erase(fits);
  } else {
    auto fresh = allocate(bytes);
    if (!fresh) return tl::unexpected(fresh.error());
    buffer = std::move(*fresh);
  }
  // A spare one is zeroed, too: a launch of its graph may not have ended.
  if (kind == workspace_kind) {
    if (auto ok = zero(buffer.data(), buffer.bytes()); !ok) return tl::unexpected(ok.error());
  }
  Lent one{std::move(buffer), std::make_shared<std::atomic<bool>>(false)};
  if (auto ok = tell_end(capture, one.ended); !ok) {
    spare_.push_back(std::move(one.buffer));
    return tl::unexpected(ok.error());
  }
  std::vector<Lent>& lent = captures_[key];
  lent.push_back(std::move(one));
  return lent.back().buffer.data();
}

void Workspaces::take_back_ended() {
  for (auto it = captures_.begin(); it != captures_.end();) {
    auto& lent = it->second;
    for (Lent& one : lent) {
      if (one.ended->load(std::memory_order_acquire)) spare_.push_back(std::move(one.buffer));
    }
    std::erase_if(lent, [](const Lent& one) { return one.buffer.data() == nullptr; });
    it = lent.empty() ? captures_.erase(it) : std::next(it);
  }
}

}  // namespace leanattn::python
