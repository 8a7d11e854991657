// run_plan.cpp -- puts the parts of a run together, and leaves out what its options do not ask for.
#include "tuner/verify/run_plan.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tuner/verify/feature_plan.hpp"
#include "tuner/verify/prefill_plan.hpp"
#include "tuner/verify/random_plan.hpp"
#include "tuner/verify/rank_plan.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Keeps the specs whose kernel_name contains the filter, and the kernels that have any left.
std::vector<VerifyKernel> filtered(std::vector<VerifyKernel> kernels, const std::string& filter) {
  if (filter.empty()) return kernels;
  for (VerifyKernel& kernel : kernels) {
    std::erase_if(kernel.specs,
                  [&](const KernelSpec& spec) { return kernel_name(spec).find(filter) == std::string::npos; });
  }
  std::erase_if(kernels, [](const VerifyKernel& kernel) { return kernel.specs.empty(); });
  return kernels;
}

/// Leaves the cross-section of the plan, and of its representatives. Its kernels with a score expression have all the
/// same one: which one it is changes little in a kernel, and the oracle is compiled anew for each, which takes seconds.
void thin(RunPlan& plan) {
  const std::string& score = verify_scores().back().text;  // depends on positions
  const auto first = plan.kernels.begin() + static_cast<std::ptrdiff_t>(plan.representatives);
  const CrossSection section = cross_section({first, plan.kernels.end()});
  plan.coverage = section.coverage;
  const std::vector<VerifyKernel> representatives(plan.kernels.begin(), first);
  std::vector<VerifyKernel> chosen;
  for (std::size_t i = 0; const bool is : cross_section(representatives).chosen) {
    if (is) chosen.push_back(representatives[i]);
    ++i;
  }
  const std::size_t themed = chosen.size();
  for (RunPart& part : plan.parts) {
    const std::size_t begin = chosen.size();
    for (std::size_t i = part.begin; i < part.end; ++i) {
      if (!section.chosen[i - plan.representatives]) continue;
      for (KernelSpec& spec : plan.kernels[i].specs) {
        if (!spec.features.score.empty()) spec.features.score = score;
      }
      chosen.push_back(std::move(plan.kernels[i]));
    }
    part.begin = begin, part.end = chosen.size();
  }
  plan.kernels = std::move(chosen);
  plan.representatives = themed;
}

}  // namespace

RunPlan plan_run(Arch arch, const VerifyOptions& options) {
  RunPlan plan;
  const auto wanted = [&](VerifyPart part) { return !options.only || *options.only == part; };
  const auto add = [&](VerifyPart part, const auto& kernels_of, RunPart run) {
    if (!wanted(part)) return;
    std::vector<VerifyKernel> kernels = filtered(kernels_of(), options.filter);
    run.begin = plan.kernels.size();
    std::move(kernels.begin(), kernels.end(), std::back_inserter(plan.kernels));
    run.end = plan.kernels.size();
    plan.parts.push_back(std::move(run));
  };
  if (wanted(VerifyPart::themes)) plan.kernels = filtered(representative_kernels(arch), options.filter);
  plan.representatives = plan.kernels.size();
  // What takes long to check or to compile comes first, so that the rest is compiled meanwhile.
  add(VerifyPart::groups, [&] { return rank_kernels(arch); }, {.rank_lengths = rank_lengths});
  add(VerifyPart::groups, [&] { return rank_part_kernels(arch); }, {.rank_lengths = rank_lengths});
  add(VerifyPart::groups, [&] { return random_rank_kernels(arch, options.seed, random_rank_combinations(options)); },
      {.rank_lengths = [seed = options.seed](const KernelSpec& spec) { return random_rank_lengths(spec, seed); }});
  // Cross-checks of the oracles take long on the CPU. A cross-section also has few kernels of a group, all of which the
  // compiler may refuse.
  const std::size_t rare = options.quick ? 4 : 1;
  add(VerifyPart::prefill, [&] { return prefill_kernels(arch); },
      {.run = {.name = "prefill", .cases = prefill_cases, .cross_check_every = 5 * rare}});
  add(VerifyPart::features, [&] { return feature_kernels(arch); },
      {.run = {.name = "features",
               .cases = feature_cases,
               .cross_check_every = 5 * rare,
               .every_group_runs = !options.quick}});
  // The compiler refuses about one in fifty, so some more are planned than are asked for.
  add(VerifyPart::random,
      [&] {
        return random_kernels(arch, options.seed, random_combinations(options) / kRandomCasesPerKernel * 26 / 25);
      },
      {.run = {.name = "random",
               .cases =
                   [seed = options.seed, quick = options.quick](const KernelSpec& spec) {
                     std::vector<PlannedCase> cases = random_cases(spec, seed);
                     if (quick) cases.resize(kQuickCasesPerKernel);
                     return cases;
                   },
               .cross_check_every = 7 * rare}});
  add(VerifyPart::combinations, [&] { return verify_combinations(arch); },
      {.run = {.name = "combinations", .cases = combination_cases}});
  if (options.quick && !plan.kernels.empty()) thin(plan);
  return plan;
}

}  // namespace v1
}  // namespace leanattn
