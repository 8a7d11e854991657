// covering.hpp -- the cross-section of a verify plan: few of its kernels that together meet everything that all of them
// meet. Pure functions; any thread; no GPU.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tuner/verify/plan.hpp"

namespace leanattn {
inline namespace v1 {

/// What a kernel is, as texts such as "load path tensor" and "window, load path tensor". A cross-section has each that
/// the plan has:
/// - what changes how the parts of a kernel work together, on each load path: family, dtype, layout, fix-up, LSE,
///   dependent launch, the format of the cache, pages, query tokens and their mask, and each feature;
/// - each format of the cache with pages, and with append;
/// - octaves of numbers, such as head sizes, groups and tunables, what a GPU has of a context, and which modules the
///   templates choose on a load path.
std::vector<std::string> traits_of(const KernelSpec& spec);

/// How much of a plan a cross-section has.
struct Coverage {
  std::size_t kernels = 0, of_kernels = 0;
  std::size_t traits = 0;  ///< all of the plan's, each of which it has
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
