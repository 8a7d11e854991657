// backend.hpp -- WorkerBackend: a TuneBackend whose device is driven by a process of its own. If a candidate makes that
// process hang or crash, breaks its CUDA context or exhausts its memory, only the candidate is lost: the process is
// replaced and brought to where it was. Any thread may call compile(); everything else, construction and destruction
// included, is called from one thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tuner/backend/backend.hpp"
#include "tuner/worker/compiler.hpp"

namespace leanattn {
inline namespace v1 {

class WorkerBackend final : public TuneBackend {
 public:
  /// Starts nothing yet: the first call that needs the device does. `compiler` compiles for the device and may be
  /// shared with other backends. Once `cancel` (may be null) is set, a call that is not answered soon is ended.
  /// rank_devices: of a problem of a group, the CUDA ordinal of each rank's GPU, of which the first is `device`.
  WorkerBackend(const DeviceFacts& device, const DecodeProblem& problem, L2Policy policy, WorkerOptions options,
                std::shared_ptr<WorkerCompiler> compiler, const std::atomic<bool>* cancel,
                std::vector<int> rank_devices = {});

  /// Starts the worker and opens the device, so that what is missing is known at once. Errors: those of
  /// GpuBackend::create(), context_lost (see begin_shape()), internal (there is no such program).
  Result<void> start() { return ready(); }

  Result<CompiledSpec> compile(const KernelSpec& spec) override { return compiler_->compile(spec); }
  /// Always an internal error: the worker takes its kernels from `compiler`.
  Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) override;
  /// Errors: also context_lost when the device is of no use, because one worker after the other failed at it without
  /// any candidate.
  Result<double> begin_shape(const Shape& shape) override;
  /// A candidate that ended its worker is launch_failed or timed_out, now and whenever it is asked about again. Errors:
  /// also context_lost when kMostLossesInARow different candidates ended theirs and none survived in between.
  Result<CheckOutcome> check(const Config& config) override;
  /// When the worker does not survive the round, the round is repeated with one candidate, with two and so on, until it
  /// is known which of them ends workers. The answer is launch_failed then, and condemned() knows them; or it is the
  /// times of the last round, if all of them survived it.
  Result<RoundTimes> time(std::span<const Config> configs) override;
  std::optional<CheckOutcome> condemned(const Config& config) const override;
  double now_s() const override;

  /// The process id, or -1 while there is no process.
  pid_t worker_pid() const { return process_ ? process_->pid() : -1; }
  int restarts() const { return starts_ > 0 ? starts_ - 1 : 0; }

  static constexpr int kMostStarts = 3;         ///< of a process, before the device is given up
  static constexpr int kMostLossesInARow = 16;  ///< of workers, to different candidates, before the device is given up
  static constexpr int kMostLossesOfAKernel = 2;  ///< a kernel that ended workers with so many grids is not tried again

 private:
  /// Why a call about candidates gave no result: what is held against them, or the error that ends the session.
  using Failure = std::variant<CheckOutcome, Error>;

  Result<void> ready();
  tl::expected<WorkerReply, WorkerLoss> call(const WorkerRequest& request, const WorkerCall& work);
  /// A call about candidates. Their kernels are handed to the worker first.
  tl::expected<WorkerReply, Failure> ask(const WorkerRequest& request, std::span<const Config> configs);
  tl::expected<RoundTimes, Failure> round(std::span<const Config> configs);
  Result<void> condemn(const Config& config, const CheckOutcome& outcome);
  /// Ends the process, whose context or memory cannot be trusted any more.
  void dismiss() { process_.reset(); }

  const DeviceFacts device_;
  const DecodeProblem problem_;
  const L2Policy policy_;
  const WorkerOptions options_;
  const std::shared_ptr<WorkerCompiler> compiler_;
  const std::atomic<bool>* cancel_;
  const std::vector<int> rank_devices_;

  std::unique_ptr<WorkerProcess> process_;
  int starts_ = 0;
  // What the current process has.
  bool begun_ = false;             ///< step_
  std::set<std::string> adopted_;  ///< kernels, by name

  std::optional<DecodeStep> step_;
  double read_limit_us_ = 0;
  std::map<std::string, CheckOutcome> condemned_;  ///< by config
  std::map<std::string, int> losses_of_kernel_;    ///< by kernel name
  int losses_in_a_row_ = 0;
};

}  // namespace v1
}  // namespace leanattn
