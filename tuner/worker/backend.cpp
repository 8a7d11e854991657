#include "tuner/worker/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr const char* kDeviceHint =
    "The GPU or its driver may be at fault: look at nvidia-smi and run leanattn verify. Every finished trial is kept; "
    "--resume goes on from here.";

Error interrupted() { return {ErrorCode::interrupted, "interrupted", {}, {}}; }

/// Whether the worker keeps this error until its end, while a fresh process may not have it.
bool spoils_the_process(const Error& error) {
  return error.code == ErrorCode::context_lost || error.code == ErrorCode::out_of_memory;
}

CheckOutcome outcome_of(const WorkerLoss& loss) {
  return {loss.kind == WorkerLoss::Kind::timed_out ? Verdict::timed_out : Verdict::launch_failed, loss.reason};
}

}  // namespace

WorkerBackend::WorkerBackend(const DeviceFacts& device, const DecodeProblem& problem, L2Policy policy,
                             WorkerOptions options, std::shared_ptr<WorkerCompiler> compiler,
                             const std::atomic<bool>* cancel, std::vector<int> rank_devices)
    : device_(device),
      problem_(problem),
      policy_(policy),
      options_(std::move(options)),
      compiler_(std::move(compiler)),
      cancel_(cancel),
      rank_devices_(std::move(rank_devices)) {}

double WorkerBackend::now_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Result<void> WorkerBackend::adopt(const KernelSpec& spec, const CompiledKernel&) {
  return fail(ErrorCode::internal, fmt::format("{}: a worker's kernels come from its compiler", kernel_name(spec)));
}

tl::expected<WorkerReply, WorkerLoss> WorkerBackend::call(const WorkerRequest& request, const WorkerCall& work) {
  return process_->call(request, limit_of(options_, work), cancel_);
}

/// Makes sure that there is a process which has the device and the shape. Errors in replies end the session, such as
/// too little memory for the shape itself, or a device that does not exist.
Result<void> WorkerBackend::ready() {
  if (process_ && process_->alive() && (begun_ || !step_)) return {};
  std::string last;
  for (int attempt = 0; attempt < kMostStarts; ++attempt) {
    if (cancel_ != nullptr && cancel_->load()) return tl::unexpected(interrupted());
    std::vector<std::pair<WorkerRequest, WorkerCall>> steps;
    if (!process_ || !process_->alive()) {
      begun_ = false;
      adopted_.clear();
      ++starts_;
      Result<std::unique_ptr<WorkerProcess>> started = WorkerProcess::start(options_.command);
      if (!started) return tl::unexpected(started.error());
      process_ = std::move(*started);
      steps.push_back({Hello{.cache_directory = options_.cache_directory}, {.kind = WorkerCall::Kind::start}});
      steps.push_back({OpenDevice{.ordinal = device_.ordinal,
                                  .uuid = device_.uuid,
                                  .problem = problem_,
                                  .policy = policy_,
                                  .memory_bytes = options_.memory_bytes,
                                  .rank_devices = rank_devices_,
                                  .requests = options_.requests},
                       {.kind = WorkerCall::Kind::start}});
    }
    if (step_) steps.push_back({BeginShape{step_->shape}, {.kind = WorkerCall::Kind::prepare, .step = &*step_}});
    bool stands = true;
    for (const auto& [request, work] : steps) {
      const auto reply = call(request, work);
      if (!reply && reply.error().kind == WorkerLoss::Kind::cancelled) return tl::unexpected(interrupted());
      const Error* error = reply ? std::get_if<Error>(&*reply) : nullptr;
      if (error != nullptr && error->code != ErrorCode::context_lost) {
        dismiss();
        return tl::unexpected(*error);
      }
      if (!reply || error != nullptr) {
        last = reply ? error->message : reply.error().reason;
        stands = false;
        break;
      }
      if (const auto* read = std::get_if<ReadTime>(&*reply)) begun_ = true, read_limit_us_ = read->us;
    }
    if (stands) return {};
    dismiss();
  }
  return fail(ErrorCode::context_lost,
              fmt::format("device {} ({}) is of no use to {} workers in a row; the last: {}", device_.ordinal,
                          device_.name, kMostStarts, last),
              kDeviceHint);
}

Result<double> WorkerBackend::begin_shape(const Shape& shape) {
  step_.emplace(device_, problem_, shape);
  begun_ = false;
  if (auto done = ready(); !done) return tl::unexpected(done.error());
  return read_limit_us_;
}

tl::expected<WorkerReply, WorkerBackend::Failure> WorkerBackend::ask(const WorkerRequest& request,
                                                                     std::span<const Config> configs) {
  if (auto done = ready(); !done) return tl::unexpected(Failure(done.error()));
  WorkerCall work{
      .kind = std::holds_alternative<TimeConfigs>(request) ? WorkerCall::Kind::time : WorkerCall::Kind::check,
      .step = &*step_,
      .configs = {configs.begin(), configs.end()}};
  std::vector<WorkerRequest> requests;
  for (const Config& config : configs) {
    const std::string name = kernel_name(config.spec);
    if (!adopted_.insert(name).second) continue;
    const CompiledKernel* kernel = compiler_->find(config.spec);
    if (kernel == nullptr)
      return tl::unexpected(Failure(Error{ErrorCode::internal, fmt::format("{} was not compiled", name), {}, {}}));
    requests.push_back(AdoptKernel{config.spec, *kernel});
  }
  requests.push_back(request);
  for (const WorkerRequest& next : requests) {
    auto reply = call(next, work);
    if (!reply) {
      dismiss();
      if (reply.error().kind == WorkerLoss::Kind::cancelled) return tl::unexpected(Failure(interrupted()));
      return tl::unexpected(Failure(outcome_of(reply.error())));
    }
    if (const auto* error = std::get_if<Error>(&*reply)) {
      if (spoils_the_process(*error)) dismiss();
      if (spoils_the_process(*error) || error->code == ErrorCode::launch_failed ||
          error->code == ErrorCode::load_failed)
        return tl::unexpected(Failure(CheckOutcome{Verdict::launch_failed, error->message}));
      return tl::unexpected(Failure(*error));
    }
    if (&next == &requests.back()) return std::move(*reply);
  }
  return tl::unexpected(Failure(Error{ErrorCode::internal, "nothing was asked", {}, {}}));
}

Result<void> WorkerBackend::condemn(const Config& config, const CheckOutcome& outcome) {
  condemned_.insert_or_assign(to_json(config), outcome);
  if (process_) return {};  // the candidate failed, but its worker survived
  ++losses_of_kernel_[kernel_name(config.spec)];
  if (++losses_in_a_row_ < kMostLossesInARow) return {};
  return fail(ErrorCode::context_lost,
              fmt::format("{} candidates in a row lost their worker on device {} ({}); the last: {}", losses_in_a_row_,
                          device_.ordinal, device_.name, outcome.reason),
              kDeviceHint);
}

std::optional<CheckOutcome> WorkerBackend::condemned(const Config& config) const {
  const auto it = condemned_.find(to_json(config));
  return it == condemned_.end() ? std::nullopt : std::optional(it->second);
}

Result<CheckOutcome> WorkerBackend::check(const Config& config) {
  if (const auto known = condemned(config)) return *known;
  if (const auto it = losses_of_kernel_.find(kernel_name(config.spec));
      it != losses_of_kernel_.end() && it->second >= kMostLossesOfAKernel) {
    const CheckOutcome outcome{Verdict::launch_failed,
                               fmt::format("not tried: this kernel lost its worker with {} other grids", it->second)};
    condemned_.insert_or_assign(to_json(config), outcome);
    return outcome;
  }
  const auto reply = ask(CheckConfig{config}, {&config, 1});
  if (!reply) {
    if (const auto* error = std::get_if<Error>(&reply.error())) return tl::unexpected(*error);
    const CheckOutcome outcome = std::get<CheckOutcome>(reply.error());
    if (auto goes_on = condemn(config, outcome); !goes_on) return tl::unexpected(goes_on.error());
    return outcome;
  }
  const auto* outcome = std::get_if<CheckOutcome>(&*reply);
  if (outcome == nullptr) return fail(ErrorCode::internal, "a worker answered a check with something else");
  losses_in_a_row_ = 0;
  return *outcome;
}

tl::expected<RoundTimes, WorkerBackend::Failure> WorkerBackend::round(std::span<const Config> configs) {
  auto reply = ask(TimeConfigs{{configs.begin(), configs.end()}}, configs);
  if (!reply) return tl::unexpected(reply.error());
  auto* times = std::get_if<RoundTimes>(&*reply);
  if (times == nullptr || times->us.size() != configs.size())
    return tl::unexpected(Failure(Error{ErrorCode::internal, "a worker answered a round with something else", {}, {}}));
  losses_in_a_row_ = 0;
  return std::move(*times);
}

Result<RoundTimes> WorkerBackend::time(std::span<const Config> configs) {
  for (const Config& config : configs) {
    if (const auto known = condemned(config)) return fail(ErrorCode::launch_failed, known->reason);
  }
  auto times = round(configs);
  if (times) return std::move(*times);
  if (const auto* error = std::get_if<Error>(&times.error())) return tl::unexpected(*error);
  const CheckOutcome first = std::get<CheckOutcome>(times.error());
  if (configs.size() == 1) {
    if (auto goes_on = condemn(configs[0], first); !goes_on) return tl::unexpected(goes_on.error());
    return fail(ErrorCode::launch_failed, first.reason);
  }
  // A growing round finds a candidate that fails alone as well as one that only fails beside others.
  std::vector<Config> sound;
  for (const Config& config : configs) {
    sound.push_back(config);
    times = round(sound);
    if (times) continue;
    if (const auto* error = std::get_if<Error>(&times.error())) return tl::unexpected(*error);
    sound.pop_back();
    if (auto goes_on = condemn(config, std::get<CheckOutcome>(times.error())); !goes_on)
      return tl::unexpected(goes_on.error());
  }
  if (times && sound.size() == configs.size()) return std::move(*times);
  return fail(ErrorCode::launch_failed, first.reason);
}

}  // namespace v1
}  // namespace leanattn
