// backend.hpp -- TuneBackend: all that a tuning session asks of a GPU, with plain data in and out. gpu_backend.hpp is
// the real one; tuner/worker/backend.hpp puts it, or in tests a simulated one, into a process of its own. Any thread
// may call compile(); everything else is called from the session's thread.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "runtime/problem.hpp"
#include "tuner/backend/compiled_spec.hpp"
#include "tuner/measure/race.hpp"

namespace leanattn {
inline namespace v1 {

enum class Verdict { passed, incorrect, launch_failed, timed_out };

struct CheckOutcome {
  Verdict verdict = Verdict::passed;
  std::string reason = {};  ///< empty when it passed
  bool operator==(const CheckOutcome&) const = default;
};

/// The requests of a step of which more is known than its shape says.
struct StepRequests {
  std::vector<int> context_lengths = {};  ///< empty: those that stand for the shape
  std::vector<int> query_tokens = {};     ///< with ragged_q, of each of these; empty: drawn at random
  bool operator==(const StepRequests&) const = default;
};

class TuneBackend {
 public:
  virtual ~TuneBackend() = default;

  /// Errors: compile_failed, kernel_rejected, nvrtc_missing, unsupported.
  virtual Result<CompiledSpec> compile(const KernelSpec& spec) = 0;

  /// Takes over a kernel that was compiled elsewhere, as if compile() had made it. Errors: those of emit().
  virtual Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) = 0;

  /// Makes data of this shape the subject of check() and time(). Returns the measured pure-read time of its K and V in
  /// microseconds. Errors: out_of_memory, launch_failed, context_lost, interrupted.
  virtual Result<double> begin_shape(const Shape& shape) = 0;

  /// Launches a configuration, whose kernel is compiled, on poisoned outputs, and compares the result with the oracle.
  /// Errors: context_lost, out_of_memory, interrupted (the session was cancelled meanwhile, and nothing is known about
  /// the candidate).
  virtual Result<CheckOutcome> check(const Config& config) = 0;

  /// One sample of each configuration, back to back, with the sentinel before and after them; without any, the
  /// sentinel alone. All of them must have passed check(). Errors: launch_failed (for one of them, and condemned() may
  /// know which), context_lost, interrupted.
  virtual Result<RoundTimes> time(std::span<const Config> configs) = 0;

  /// Why this candidate must not be launched again, if check() or time() has lost a process to it, or in a backend
  /// without processes its context. An error of the device that came before its launch is not held against it.
  virtual std::optional<CheckOutcome> condemned(const Config& /*config*/) const { return std::nullopt; }

  /// Seconds on a steady clock.
  virtual double now_s() const = 0;
};

}  // namespace v1
}  // namespace leanattn
