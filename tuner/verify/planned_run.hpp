// planned_run.hpp -- PlannedRun: one part of a verify run that takes a list of kernels, each on the shapes planned for
// it. One thread, with the runner's context current.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tuner/verify/compile_queue.hpp"
#include "tuner/verify/runner.hpp"

namespace leanattn {
inline namespace v1 {

struct PlannedRun {
  std::string name;                                                  ///< of the part, such as "features"
  std::function<std::vector<PlannedCase>(const KernelSpec&)> cases;  ///< the shapes of one kernel
  /// The GPU's oracle is checked against the CPU's on every so many-th kernel, because the CPU's is slow.
  std::size_t cross_check_every = 29;
  bool every_group_runs = false;  ///< whether it is a failure when the compiler refuses all kernels of a group
};

/// Checks every kernel on its shapes. `kernels` are the next ones that `queue` hands out. The queue may have started to
/// compile long before. Errors: context_lost, out_of_memory, nvrtc_missing.
Result<void> verify_planned(VerifyRunner& runner, std::span<const VerifyKernel> kernels, CompileQueue& queue,
                            const PlannedRun& planned);

}  // namespace v1
}  // namespace leanattn
