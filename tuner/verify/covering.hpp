// covering.hpp -- the cross-section of a verify plan: few of its kernels that together meet everything that all of them
// meet, one by one and in pairs. Pure functions; any thread; no GPU.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tuner/verify/plan.hpp"

namespace leanattn {
inline namespace v1 {

/// What a kernel is, as texts such as "load path tensor" and "window".
struct KernelTraits {
  /// What changes how the parts of a kernel work together: load path, dtype, layout, fix-up, LSE, dependent launch, the
  /// format of the cache, pages, and each feature. A cross-section has every pair of these that the plan has.
  std::vector<std::string> paired;
  /// Octaves of numbers, such as head sizes, groups and tunables, what a GPU has of a context, and which modules the
  /// templates choose. A cross-section has each that the plan has.
  std::vector<std::string> single;
};
KernelTraits traits_of(const KernelSpec& spec);

/// How much of a plan a cross-section has.
struct Coverage {
  std::size_t kernels = 0, of_kernels = 0;
  std::size_t traits = 0;  ///< all of the plan's, each of which it has
  std::size_t pairs = 0;   ///< and pairs of paired ones, likewise
};

struct CrossSection {
  std::vector<bool> chosen;  ///< for each kernel of the plan
  Coverage coverage;
};

/// Chooses kernels, each time the one whose preferred spec has most that is still missing for the time that checking it
/// takes, the first of equal ones, until nothing is missing. The same plan always gives the same cross-section.
CrossSection cross_section(const std::vector<VerifyKernel>& plan);

}  // namespace v1
}  // namespace leanattn
