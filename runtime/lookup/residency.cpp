// residency.cpp -- guesses of registers, from what each family of kernels holds in them.
#include "runtime/lookup/residency.hpp"

#include <algorithm>

#include "generator/families/family.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

int register_limit(const KernelLayout& layout) { return std::min(255, layout.registers / 8 * 8); }

}  // namespace

int register_limit(const KernelSpec& spec) { return register_limit(layout_of(spec)); }

int least_registers(const KernelSpec& spec) {
  const KernelLayout layout = layout_of(spec);
  return layout.family->least_registers(spec, layout);
}

bool surely_spills(const KernelSpec& spec) {
  const KernelLayout layout = layout_of(spec);
  return register_limit(layout) < layout.family->least_registers(spec, layout);
}

int guess_resident(const DeviceFacts& device, const KernelSpec& spec) {
  const KernelLayout layout = layout_of(spec);
  const int least = layout.family->least_registers(spec, layout),
            typical = layout.family->typical_registers(spec, layout);
  const int registers = std::min(register_limit(layout), std::max(typical, least));
  return std::max(resident_ctas_per_sm(device, registers, layout.threads, layout.shared_bytes), 1);
}

std::int64_t most_resident(const DeviceFacts& device, const KernelSpec& spec) {
  constexpr int kFewestRegisters = 24;  // ptxas gives no kernel of this kind less
  const KernelLayout layout = layout_of(spec);
  const int least = layout.family->least_registers(spec, layout);
  const int registers = std::max(kFewestRegisters, std::min(least, register_limit(layout)));
  return std::int64_t{std::max(device.sm_count, 1)} *
         std::max(resident_ctas_per_sm(device, registers, layout.threads, layout.shared_bytes), 1);
}

}  // namespace v1
}  // namespace leanattn
