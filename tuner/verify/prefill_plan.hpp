// prefill_plan.hpp -- the kernels and steps with which `verify` checks prefill beside decode: the lists of other
// libraries' tests, and batches that mix requests of all kinds. Pure functions of the architecture; any thread; no GPU.
#pragma once

#include <utility>
#include <vector>

#include "tuner/verify/plan.hpp"

namespace leanattn {
inline namespace v1 {

/// Kernels of requests with up to kMostPrefillTokens query tokens: with every feature that such a step may have, with
/// heads in rotation, on load path tensor, or where it lacks the feature on another, and a few on each of the others.
std::vector<VerifyKernel> prefill_kernels(Arch arch);
/// The steps on which such a kernel runs: mixed batches, and some of the lists, which the kernel's name decides. A few
/// kernels without other features also run the long ones.
std::vector<PlannedCase> prefill_cases(const KernelSpec& spec);

/// A step of which a list gives the query tokens and the context of each request.
struct PrefillStep {
  const char* name;
  std::vector<std::pair<int, int>> requests;  ///< query tokens, tokens of the context
};
/// Lists that take the oracle little time, and those that take it seconds.
const std::vector<PrefillStep>& prefill_lists();
const std::vector<PrefillStep>& long_prefill_lists();

}  // namespace v1
}  // namespace leanattn
