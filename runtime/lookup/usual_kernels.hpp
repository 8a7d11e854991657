// usual_kernels.hpp -- the kernels among which look-ups choose where nobody tuned. Pure functions; any thread.
#pragma once

#include <vector>

#include "runtime/cuda/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// Kernels of the problem that proved fast for some shape of some problem: at most twenty, all of them valid and
/// without surely spilling registers. The first one is that of default_config(). A problem with wide partials, which
/// contributors that wait reduce in strips, gets those that wait beside those with tickets. A batch-invariant problem
/// has one kernel. Never empty.
std::vector<KernelSpec> usual_kernels(const DeviceFacts& device, const DecodeProblem& problem);

}  // namespace v1
}  // namespace leanattn
