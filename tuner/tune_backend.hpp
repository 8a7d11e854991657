// tune_backend.hpp -- TuneBackend: all that a tuning session asks of a GPU, as plain data in and out. The real one is
// tune_gpu.hpp; worker_backend.hpp puts it (or a simulated one, in tests) into a process of its own. compile() may be
// called from any thread; everything else from the session's thread.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "runtime/compiler.hpp"
#include "runtime/problem.hpp"
#include "tuner/race.hpp"

namespace leanattn {
inline namespace v1 {

/// What the compiler said of a kernel that may run.
struct CompiledSpec {
  int registers = 0;
  int resident = 1;  ///< CTAs one SM holds
  double compile_ms = 0;
};

enum class Verdict { passed, incorrect, launch_failed, timed_out };

struct CheckOutcome {
  Verdict verdict = Verdict::passed;
  std::string reason = {};  ///< of anything but passed
  bool operator==(const CheckOutcome&) const = default;
};

class TuneBackend {
 public:
  virtual ~TuneBackend() = default;

  /// Errors: compile_failed, kernel_rejected, nvrtc_missing, unsupported.
  virtual Result<CompiledSpec> compile(const KernelSpec& spec) = 0;

  /// Takes over a kernel that was compiled elsewhere, as if compile() had. Errors: those of emit().
  virtual Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) = 0;

  /// Makes data of this shape the subject of check() and time(). Returns the measured pure-read time of its K and V in
  /// microseconds. Errors: out_of_memory, launch_failed, context_lost, interrupted.
  virtual Result<double> begin_shape(const Shape& shape) = 0;

  /// Launches a compiled config on poisoned outputs and compares with the oracle. Errors: context_lost, out_of_memory,
  /// interrupted (the session was cancelled meanwhile: nothing is known of the candidate).
  virtual Result<CheckOutcome> check(const Config& config) = 0;

  /// One sample of each config, back to back, the sentinel before and after. Only configs that passed check().
  /// Errors: launch_failed (of one of several: condemned() may know which), context_lost, interrupted.
  virtual Result<RoundTimes> time(std::span<const Config> configs) = 0;

  /// Why this candidate must not be launched again, where check() or time() has found that out the hard way.
  virtual std::optional<CheckOutcome> condemned(const Config& /*config*/) const { return std::nullopt; }

  /// Seconds on a steady clock.
  virtual double now_s() const = 0;
};

}  // namespace v1
}  // namespace leanattn
