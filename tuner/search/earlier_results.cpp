#include "tuner/search/earlier_results.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/lookup/parsed_texts.hpp"
#include "runtime/lookup/specs.hpp"
#include "tuner/search/decision.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kMostRelatives = 8;
constexpr double kFarthestRelative = 3;  // octaves

/// How far apart two launches are, in octaves of output tiles and of tokens a request.
double octaves_between(const DecodeProblem& a, const Shape& at_a, const DecodeProblem& b, const Shape& at_b) {
  const auto octaves = [](double x, double y) { return std::abs(std::log2(x / y)); };
  return octaves(static_cast<double>(a.kv_heads) * at_a.batch, static_cast<double>(b.kv_heads) * at_b.batch) +
         octaves(static_cast<double>(at_a.longest_context), static_cast<double>(at_b.longest_context));
}

/// The same problem with the other kind of launch.
DecodeProblem with_other_launch(DecodeProblem problem) {
  problem.pdl = !problem.pdl;
  return problem;
}

bool contains(const std::vector<Config>& configs, const Config& config) {
  return std::find(configs.begin(), configs.end(), config) != configs.end();
}

bool has_kernel(const std::vector<Config>& configs, const KernelSpec& spec) {
  return std::any_of(configs.begin(), configs.end(), [&](const Config& config) { return config.spec == spec; });
}

std::vector<Config> find_incumbents(const ShapeContext& context, const std::vector<Winner>& winners) {
  const SessionSetup& session = context.session;
  const std::string other_json = to_json(with_other_launch(session.request.problem));
  std::vector<Config> incumbents;
  for (const Winner& winner : winners) {
    const bool other = winner.problem == other_json;
    if (!(other || winner.problem == context.problem_json) || winner.shape != context.shape_json ||
        winner.policy != session.policy())
      continue;
    Result<Config> config = config_from_json(winner.config);
    if (!config) continue;
    // Before this search, a look-up would answer with what won with the other kind of launch: it has to be beaten, too.
    if (other) config->spec.pdl = context.step.base.pdl;
    if (context.fits(*config) && !contains(incumbents, *config) && !(*config == context.default_config))
      incumbents.push_back(*config);
  }
  return incumbents;
}

/// The closest winners of problems with the same head_dim and group, whatever their features, layout or number of KV
/// heads; one for each kernel that is neither the default's nor an incumbent's.
std::vector<Config> find_relatives(const ShapeContext& context, const CostModel& model,
                                   const std::vector<Winner>& winners, const std::vector<Config>& incumbents) {
  const SessionSetup& session = context.session;
  const DecodeProblem& problem = context.step.problem;
  if (problem.features.batch_invariant) return {};  // all shapes have the default's kernel
  const KernelSpec& base = context.step.base;
  std::vector<std::pair<double, Config>> found;  // with their distance in octaves
  ParsedTexts<DecodeProblem> problems(problem_from_json);
  ParsedTexts<Config> configs(config_from_json);
  for (const Winner& winner : winners) {
    if (winner.policy != session.policy()) continue;
    const auto& other = problems(winner.problem);
    if (!other || other->head_dim != problem.head_dim || other->q_heads / other->kv_heads != base.group) continue;
    const auto shape = shape_from_json(winner.shape);
    const auto& config = configs(winner.config);
    if (!shape || !config) continue;
    const double octaves = octaves_between(*other, *shape, problem, context.step.shape);
    if (octaves > kFarthestRelative) continue;
    const auto spec = with_tunables_of(base, config->spec);
    if (!spec) continue;
    Config relative{.spec = *spec,
                    .grid = config->grid,
                    .segment_cost = config->segment_cost,
                    .l2_promotion = spec->load == LoadPath::tensor ? config->l2_promotion : 128};
    if (octaves > 0) {
      const auto ranked = context.ranked_grids(model, *spec, guess_resident(session.device, *spec));
      if (ranked.empty()) continue;
      relative = ranked.front().config;
    }
    found.emplace_back(octaves, relative);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Config> relatives;
  for (const auto& [octaves, relative] : found) {
    if (relatives.size() == kMostRelatives) break;
    if (!(relative.spec == context.default_config.spec) && !has_kernel(relatives, relative.spec) &&
        !has_kernel(incumbents, relative.spec))
      relatives.push_back(relative);
  }
  return relatives;
}

}  // namespace

Result<EarlierResults> earlier_results(const ShapeContext& context, const CostModel& model) {
  const SessionSetup& session = context.session;
  if (auto committed = session.trials.drain(); !committed) return tl::unexpected(committed.error());
  const Result<std::vector<Winner>> winners = session.db.winners(session.device_model);
  if (!winners) return tl::unexpected(winners.error());
  EarlierResults earlier;
  earlier.incumbents = find_incumbents(context, *winners);
  earlier.relatives = find_relatives(context, model, *winners, earlier.incumbents);
  if (!session.request.resume) return earlier;
  Result<std::vector<Trial>> trials =
      session.db.trials(session.device_model, context.problem_json, context.shape_json, session.policy());
  if (!trials) return tl::unexpected(trials.error());
  for (Trial& trial : *trials) {
    if (same_software(trial.environment, session.environment))
      earlier.known.insert_or_assign(trial.config, std::move(trial));
  }
  return earlier;
}

bool EarlierResults::finished(const SearchEffort& effort) const {
  return std::any_of(known.begin(), known.end(), [&](const auto& entry) {
    const Trial& trial = entry.second;
    return trial.status == TrialStatus::ok && trial.samples >= effort.confirm_rounds_min && trial.reason != kCutShort;
  });
}

std::optional<double> EarlierResults::us_of(const Config& config) const {
  const auto it = known.find(to_json(config));
  return it == known.end() ? std::nullopt : std::optional(it->second.median_us);
}

}  // namespace v1
}  // namespace leanattn
