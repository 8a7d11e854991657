#include <algorithm>
#include <array>

#include "generator/families/family.hpp"

namespace leanattn {
inline namespace v1 {

std::span<const KernelFamily* const> families() {
  static constexpr std::array kFamilies{&kMmaPrefill, &kMma,          &kVector,    &kWgmmaRoles,
                                        &kWgmmaMixed, &kWgmmaPrefill, &kWgmmaRows, &kWgmmaTokens};
  return kFamilies;
}

const KernelFamily& family_of(const KernelSpec& spec) {
  const auto all = families();
  return **std::find_if(all.begin(), all.end(), [&](const KernelFamily* family) {
    return has_load(*family, spec.load) && family->takes(spec);
  });
}

bool has_load(const KernelFamily& family, LoadPath load) {
  return std::any_of(family.loads.begin(), family.loads.end(),
                     [load](const SearchedLoad& searched) { return searched.load == load; });
}

}  // namespace v1
}  // namespace leanattn
