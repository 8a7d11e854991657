#include "tuner/search/group_screen.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/parsed_texts.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kPartKernels = 20;   // of the part alone, the fastest first
constexpr std::size_t kGridsOfKernel = 3;  // with which each of them was fastest
constexpr std::size_t kSweptKernels = 6;   // of the group, with further grids and the other fix-up
constexpr std::size_t kSweptGrids = 6;

/// What a group on this device may launch for the request's problem.
class GroupKernels {
 public:
  explicit GroupKernels(const ShapeContext& context)
      : device_(context.session.device),
        base_(context.step.base),
        order_(order_of_group(device_, context.step.problem)),
        ranks_here_(ranks_on_a_gpu(context.session.request)) {}

  /// The tunables of a kernel for the part, or of another fix-up, as a kernel of the group; or nothing.
  std::optional<KernelSpec> of(const KernelSpec& spec) const {
    const auto fitted = with_tunables_of(base_, spec);
    if (!fitted || family_of(*fitted).exchange_order != order_) return std::nullopt;
    return *fitted;
  }
  /// The most CTAs of a launch that are resident beside the other ranks on the GPU.
  std::int64_t most_ctas(const CompiledSpec& compiled) const {
    return std::max<std::int64_t>(std::int64_t{compiled.resident} * device_.sm_count / ranks_here_, 1);
  }
  Config cut(Config config, const CompiledSpec& compiled) const {
    config.grid = std::min(config.grid, most_ctas(compiled));
    if (config.spec.load != LoadPath::tensor) config.l2_promotion = 128;
    return config;
  }

 private:
  const DeviceFacts& device_;
  const KernelSpec base_;
  const std::optional<int> order_;
  const int ranks_here_;
};

/// The part's trials with today's driver, NVRTC and kernels that have a time, as configurations of the group, the
/// fastest first.
Result<std::vector<std::pair<double, Config>>> part_results(const ShapeContext& context, const GroupKernels& kernels) {
  const SessionSetup& session = context.session;
  if (auto committed = session.trials.drain(); !committed) return tl::unexpected(committed.error());
  const std::string part = to_json(without_group(session.request.problem));
  const Result<std::vector<Trial>> trials =
      session.db.trials(session.device_model, part, context.shape_json, session.policy());
  if (!trials) return tl::unexpected(trials.error());
  const Software now = with_kernels(session.environment);
  std::map<std::string, double> times;  // of each configuration its newest time
  for (const Trial& trial : *trials) {
    const bool timed = trial.status == TrialStatus::ok || trial.status == TrialStatus::pruned;
    if (timed && trial.median_us > 0 && same_software(trial, now)) times[trial.config] = trial.median_us;
  }
  ParsedTexts<Config> configs(config_from_json);
  std::vector<std::pair<double, Config>> results;
  for (const auto& [text, us] : times) {
    const auto& config = configs(text);
    if (!config) continue;
    if (const auto spec = kernels.of(config->spec))
      results.emplace_back(us, Config{*spec, config->grid, config->segment_cost, config->l2_promotion});
  }
  std::stable_sort(results.begin(), results.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return results;
}

/// Of each of the fastest kernels the fastest grids, in the order in which they were found to be fast.
std::vector<Config> chosen_of(const std::vector<std::pair<double, Config>>& results) {
  std::map<std::string, std::size_t> taken;  // by kernel
  std::vector<Config> chosen;
  for (const auto& [us, config] : results) {
    const std::string name = kernel_name(config.spec);
    const auto known = taken.find(name);
    if (known == taken.end() && taken.size() == kPartKernels) continue;
    if (known != taken.end() && known->second == kGridsOfKernel) continue;
    ++taken[name];
    chosen.push_back(config);
  }
  return chosen;
}

}  // namespace

Config cut_for_group(const ShapeContext& context, Config config, const CompiledSpec& compiled) {
  return GroupKernels(context).cut(std::move(config), compiled);
}

Result<TimedCandidates> screen_in_group(const ShapeContext& context, const EarlierResults& earlier,
                                        const SessionKnowledge& knowledge, Measurer& measurer, TimedCandidates timed,
                                        double until_s) {
  const SessionSetup& session = context.session;
  const GroupKernels kernels(context);
  const auto results = part_results(context, kernels);
  if (!results) return tl::unexpected(results.error());
  // Where the time ends early there is an answer that is no worse than the part's.
  std::vector<Config> first = earlier.incumbents;
  const std::vector<Config> of_part = chosen_of(*results);
  first.insert(first.end(), of_part.begin(), of_part.end());
  first.insert(first.begin() + static_cast<std::ptrdiff_t>(std::min(first.size(), earlier.incumbents.size() + 1)),
               context.default_config);
  if (of_part.empty()) {  // the part was not measured: the kernels that the model likes
    for (const KernelSpec& spec : knowledge.specs) {
      const auto fitted = kernels.of(spec);
      if (!fitted || first.size() > kPartKernels) continue;
      const auto ranked = context.ranked_grids(knowledge.model, *fitted, guess_resident(session.device, *fitted));
      if (!ranked.empty()) first.push_back(ranked.front().config);
    }
  }
  std::vector<KernelSpec> specs;
  specs.reserve(first.size());
  for (const Config& config : first) specs.push_back(config.spec);
  session.compiles.enqueue(specs, /*urgent=*/true);

  const auto try_all = [&](const std::vector<Config>& configs, const char* phase) -> Result<void> {
    std::vector<RankedConfig> batch;
    for (const Config& config : configs) {
      if (context.stopped(until_s)) break;
      if (const auto ready = measurer.compiled(config.spec, knowledge.model, until_s))
        batch.push_back({kernels.cut(config, *ready), 0});
    }
    return measurer.try_configs(batch, phase, until_s, timed);
  };
  if (auto done = try_all(first, "screen"); !done) return tl::unexpected(done.error());
  if (timed.fastest_first().empty() && !context.stopped(until_s) && !measurer.counts().failure.empty())
    return fail(ErrorCode::launch_failed,
                fmt::format("no kernel ran in the group; the last failure: {}", measurer.counts().failure),
                "Run leanattn verify --only groups on these GPUs.");

  // The ends of a launch differ most by the fix-up and the number of CTAs.
  const std::vector<KernelSpec> best = timed.best_specs(kSweptKernels);
  const std::vector<Candidate> fastest = timed.fastest_first();
  std::vector<KernelSpec> swept = best;
  for (KernelSpec spec : best) {
    spec.fixup = spec.fixup == FixUp::wait ? FixUp::ticket : FixUp::wait;
    if (const auto twin = kernels.of(spec); twin && std::find(swept.begin(), swept.end(), *twin) == swept.end())
      swept.push_back(*twin);
  }
  session.compiles.enqueue(swept, /*urgent=*/true);
  std::vector<Config> more;
  for (const KernelSpec& spec : swept) {
    const auto ready = measurer.compiled(spec, knowledge.model, until_s);
    if (!ready) continue;
    std::vector<RankedConfig> ranked = context.ranked_grids(knowledge.model, spec, ready->resident);
    std::erase_if(ranked, [&](const RankedConfig& one) { return one.config.grid > kernels.most_ctas(*ready); });
    for (const RankedConfig& one : spread(ranked, kSweptGrids)) more.push_back(one.config);
    // The grids of the fastest candidates, and what goes with them, whatever their kernel.
    for (std::size_t i = 0; i < std::min<std::size_t>(fastest.size(), 2); ++i) {
      more.push_back(fastest[i].config);
      more.back().spec = spec;
    }
  }
  if (auto done = try_all(more, "sweep"); !done) return tl::unexpected(done.error());
  return timed;
}

}  // namespace v1
}  // namespace leanattn
