// worker_backend.hpp -- WorkerBackend: a TuneBackend whose device is driven by a process of its own. What a candidate
// does to that process (hangs, crashes, breaks its CUDA context, exhausts its memory) costs that candidate: the process
// is replaced and brought to where it was. compile() from any thread; everything else, construction and destruction
// included, from one.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tuner/tune_backend.hpp"
#include "tuner/worker_compiler.hpp"

namespace leanattn {
inline namespace v1 {

class WorkerBackend final : public TuneBackend {
 public:
  /// Starts nothing yet: the first call that needs the device does. `compiler` compiles for it and may be shared with
  /// other backends; `cancel` (may be null), once set, ends a call that does not answer soon.
  WorkerBackend(const DeviceFacts& device, const DecodeProblem& problem, L2Policy policy, WorkerOptions options,
                std::shared_ptr<WorkerCompiler> compiler, const std::atomic<bool>* cancel);

  /// Starts the worker and opens the device, so that what is missing is known at once. Errors: those of GpuBackend's
  /// create(), context_lost (see begin_shape), internal (no such program).
  Result<void> start() { return ready(); }

  Result<CompiledSpec> compile(const KernelSpec& spec) override { return compiler_->compile(spec); }
  /// Internal error: its worker takes kernels from `compiler`.
  Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) override;
  /// Errors: also context_lost when the device is of no use: one worker after the other failed at it, without any
  /// candidate.
  Result<double> begin_shape(const Shape& shape) override;
  /// A candidate that took its worker with it is launch_failed or timed_out, now and whenever it is asked about again.
  /// Errors: also context_lost when kMostLossesInARow different candidates did, and none survived in between.
  Result<CheckOutcome> check(const Config& config) override;
  /// When the worker does not survive the round, candidates are added one at a time until it is known which of them it
  /// was: condemned() says. launch_failed then; or the round's times, should it not happen again.
  Result<RoundTimes> time(std::span<const Config> configs) override;
  std::optional<CheckOutcome> condemned(const Config& config) const override;
  double now_s() const override;

  /// The process, or -1 while there is none.
  pid_t worker_pid() const { return process_ ? process_->pid() : -1; }
  int restarts() const { return starts_ > 0 ? starts_ - 1 : 0; }

  static constexpr int kMostStarts = 3;           ///< attempts to get a process ready
  static constexpr int kMostLossesInARow = 16;    ///< of different candidates, before the device is given up
  static constexpr int kMostLossesOfAKernel = 2;  ///< grids that a kernel may lose a worker with before it is not tried

 private:
  /// Why a call that was about candidates gave no result: what is held against them, or what ends the session.
  using Failure = std::variant<CheckOutcome, Error>;

  Result<void> ready();
  tl::expected<Reply, WorkerLoss> call(const Request& request, const WorkerCall& work);
  /// A call about candidates, on a worker that has their kernels.
  tl::expected<Reply, Failure> ask(const Request& request, std::span<const Config> configs);
  tl::expected<RoundTimes, Failure> round(std::span<const Config> configs);
  Result<void> condemn(const Config& config, const CheckOutcome& outcome);
  /// Dismisses the process: its context or its memory is not to be trusted.
  void dismiss() { process_.reset(); }

  const DeviceFacts device_;
  const DecodeProblem problem_;
  const L2Policy policy_;
  const WorkerOptions options_;
  const std::shared_ptr<WorkerCompiler> compiler_;
  const std::atomic<bool>* cancel_;

  std::unique_ptr<WorkerProcess> process_;
  int starts_ = 0;
  // Of the process in hand.
  bool begun_ = false;             ///< with shape_
  std::set<std::string> adopted_;  ///< kernel names

  std::optional<Shape> shape_;
  double read_limit_us_ = 0;
  std::map<std::string, CheckOutcome> condemned_;  ///< by config
  std::map<std::string, int> losses_of_kernel_;    ///< by kernel name
  int losses_in_a_row_ = 0;
};

}  // namespace v1
}  // namespace leanattn
