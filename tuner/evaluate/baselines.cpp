#include "tuner/evaluate/baselines.hpp"

#include <algorithm>
#include <cstdint>

#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/residency.hpp"

namespace leanattn {
inline namespace v1 {

std::vector<KernelSpec> baseline_kernels(const DecodeStep& step, std::vector<KernelSpec> specs) {
  const DeviceFacts& device = step.device;
  for (std::size_t i = 0, given = specs.size(); i < given; ++i) {
    KernelSpec spec = specs[i];
    if (!waits(spec) ||
        output_tiles(step, spec) <= std::int64_t{guess_resident(device, spec)} * std::max(device.sm_count, 1))
      continue;
    spec.fixup = FixUp::ticket;
    if (validate(spec) && std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  }
  return specs;
}

std::vector<Config> baseline_configs(std::string_view mode, const DecodeStep& step, const KernelSpec& spec,
                                     int resident) {
  const std::int64_t outputs = output_tiles(step, spec), most = lean_tiles(step, spec),
                     at_once = std::int64_t{resident} * std::max(step.device.sm_count, 1);
  std::vector<Config> configs;
  for (std::int64_t splits = 1; splits * outputs <= std::min(most, 2 * at_once) || splits == 1;
       splits += std::max<std::int64_t>(1, splits / 4)) {
    if (waits(spec) && splits * outputs > at_once) break;
    configs.push_back({spec, splits * outputs});
    if (mode == "fa2") break;
  }
  return configs;
}

}  // namespace v1
}  // namespace leanattn
