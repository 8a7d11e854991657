// estimate.cpp -- from winners and usual kernels to kernels whose times can be predicted.
#include "runtime/lookup/estimate.hpp"

#include <algorithm>

#include "generator/families/family.hpp"
#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/usual_kernels.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr std::size_t kMostOfWitnesses = 8;
// What a winner says of other kernels of its load path and fix-up: so many octaves less, and that they are slower, or
// else they would have won.
constexpr double kRelativeAway = 1.0, kRelativeSlower = 0.03;
// Surcharges on the predictions of kernels that nobody timed. kUntried: others were timed. kNotTheDefault: nothing was
// timed, and the default kernel, which every shape can have, saves compiling. Ranks of a group make their plans before
// the first launch, so that there is nothing to save.
constexpr double kUntried = 0.03, kNotTheDefault = 0.05;

/// Whether two kernels move and use KV in the same way, so that they differ in LeanTile and launch bounds only.
bool streams_like(const KernelSpec& a, const KernelSpec& b) {
  return a.load == b.load && a.fixup == b.fixup && a.warps == b.warps && a.warp_tokens == b.warp_tokens &&
         a.stages == b.stages;
}

/// How far the cost model is off on this GPU, as a logarithm: the mean over the witnesses; 0 without any.
double mean_log_ratio(std::span<const Witness> witnesses) {
  double sum = 0;
  for (const Witness& witness : witnesses) sum += witness.measured->seen.log_ratio;
  return witnesses.empty() ? 0 : sum / static_cast<double>(witnesses.size());
}

bool same_but_for_fix_up(KernelSpec a, const KernelSpec& b) {
  a.fixup = b.fixup;
  return a == b;
}

}  // namespace

std::vector<EstimatedKernel> estimated_kernels(const DecodeStep& step, std::span<const Witness> witnesses) {
  const double log_ratio = mean_log_ratio(witnesses);
  const ModelParameters parameters = default_parameters(step.device);
  std::vector<EstimatedKernel> kernels;
  const auto add = [&](const KernelSpec& spec, double doubt) {
    const auto same = [&](const EstimatedKernel& kernel) { return kernel.spec == spec; };
    if (std::find_if(kernels.begin(), kernels.end(), same) != kernels.end()) return;
    EstimatedKernel kernel{.spec = spec,
                           .resident = guess_resident(step.device, spec),
                           .parameters = parameters,
                           .seen = {},
                           .log_ratio = log_ratio,
                           .doubt = doubt};
    for (const Witness& witness : witnesses) {
      const KernelSpec& measured = witness.measured->choice.config.spec;
      if (measured.load != spec.load || measured.fixup != spec.fixup) continue;
      SeenShape seen = witness.measured->seen;
      seen.away = witness.problem_away;
      if (!streams_like(measured, spec)) seen.away += kRelativeAway, seen.log_ratio += kRelativeSlower;
      kernel.seen.push_back(seen);
    }
    kernels.push_back(std::move(kernel));
  };
  for (const Witness& witness : witnesses) {
    if (kernels.size() >= kMostOfWitnesses) break;
    if (const auto spec = with_tunables_of(step.base, witness.measured->choice.config.spec)) add(*spec, 0);
  }
  // Kernels for prefill differ in their steps and stages, which the model tells apart less well than a tuning does.
  if (step.is_mixed() && !kernels.empty()) return kernels;
  const double untimed = in_group(step.problem.features) ? 0 : kNotTheDefault;
  const double doubt = kernels.empty() ? untimed : kUntried;
  const std::vector<KernelSpec> usual = usual_kernels(step.device, step.problem);
  // Of prompts alone, what the model says wrongly of one of the kernels for them, it says of the others as well.
  const bool prompts = step.is_mixed() && step.visible.mix.chunks == step.visible.batch;
  const auto is_default = [&](const KernelSpec& spec) {
    return same_but_for_fix_up(spec, usual.front()) || (prompts && &family_of(spec) == &family_of(usual.front()));
  };
  for (const KernelSpec& spec : usual) add(spec, witnesses.empty() && is_default(spec) ? 0 : doubt);
  return kernels;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
