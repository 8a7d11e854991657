// tune_backend.hpp -- TuneBackend: all that a tuning session asks of a GPU, as plain data in and out. The real one is
// tune_gpu.hpp; tests drive whole sessions against a simulated one, and a worker process fits behind the same calls.
// compile() may be called from any thread; everything else from the session's thread.
#pragma once

#include <span>
#include <string>

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

enum class Verdict { passed, incorrect, launch_failed };

struct CheckOutcome {
  Verdict verdict = Verdict::passed;
  std::string reason;  ///< of anything but passed
};

class TuneBackend {
 public:
  virtual ~TuneBackend() = default;

  /// Errors: compile_failed, kernel_rejected, nvrtc_missing, unsupported.
  virtual Result<CompiledSpec> compile(const KernelSpec& spec) = 0;

  /// Makes data of this shape the subject of check() and time(). Returns the measured pure-read time of its K and V in
  /// microseconds. Errors: out_of_memory, launch_failed, context_lost.
  virtual Result<double> begin_shape(const Shape& shape) = 0;

  /// Launches a compiled config on poisoned outputs and compares with the oracle. Errors: context_lost, out_of_memory.
  virtual Result<CheckOutcome> check(const Config& config) = 0;

  /// One sample of each config, back to back, the sentinel before and after. Only configs that passed check().
  /// Errors: launch_failed, context_lost.
  virtual Result<RoundTimes> time(std::span<const Config> configs) = 0;

  /// Seconds on a steady clock.
  virtual double now_s() const = 0;
};

}  // namespace v1
}  // namespace leanattn
