// baselines.hpp -- what the grids of FlashAttention-2 and FlashDecoding are with our kernels. A baseline also chooses
// among kernels, so that only the schedules are compared. Plain computation; any thread.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/lookup/decode_step.hpp"

namespace leanattn {
inline namespace v1 {

/// The kernels that baselines choose from: those given and, where a step may have more output tiles than a GPU holds
/// CTAs at once, the same kernels with tickets beside those whose CTAs wait for each other.
std::vector<KernelSpec> baseline_kernels(const DecodeStep& step, std::vector<KernelSpec> specs);

/// The grids that a baseline may have with this kernel, of which an SM holds `resident` CTAs: "fa2" (FlashAttention-2)
/// has one CTA for each output tile, "fd" (FlashDecoding) the same number of CTAs for each. Empty where more CTAs would
/// wait for each other than the GPU holds at once.
std::vector<Config> baseline_configs(std::string_view mode, const DecodeStep& step, const KernelSpec& spec,
                                     int resident);

}  // namespace v1
}  // namespace leanattn
