#include "tuner/search/revalidate.hpp"

#include <algorithm>
#include <string>

#include "tuner/search/confirm.hpp"
#include "tuner/search/looked_up.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kNear = 0.03;        // how far a rival may be behind the winner: other software moves kernels so much
constexpr int kLeastSamples = 3;      // a time of fewer samples says nothing
constexpr std::size_t kMostNear = 6;  // rivals beside the winner and the default
constexpr double kCompilesEnd = 0.5;  // share of the shape's time by which candidates are compiled and checked

/// The stored winner first, then what came close to it under the same software; empty where nothing usable is stored.
Result<std::vector<Config>> stored_finalists(const ShapeContext& context) {
  const SessionSetup& session = context.session;
  const Result<std::vector<Winner>> winners = session.db.winners(session.device_model);
  if (!winners) return tl::unexpected(winners.error());
  const auto winner = std::find_if(winners->begin(), winners->end(), [&](const Winner& w) {
    return w.problem == context.problem_json && w.shape == context.shape_json && w.policy == session.policy();
  });
  std::vector<Config> finalists;
  if (winner == winners->end()) return finalists;
  Result<std::vector<Trial>> trials =
      session.db.trials(session.device_model, context.problem_json, context.shape_json, session.policy());
  if (!trials) return tl::unexpected(trials.error());
  std::erase_if(*trials, [&](const Trial& trial) {
    return !(trial.status == TrialStatus::ok || trial.status == TrialStatus::pruned) || trial.samples < kLeastSamples ||
           trial.median_us > winner->median_us * (1 + kNear) || !same_software(trial.environment, winner->environment);
  });
  std::stable_sort(trials->begin(), trials->end(),
                   [](const Trial& a, const Trial& b) { return a.median_us < b.median_us; });
  std::vector<std::string> texts{winner->config};
  for (const Trial& trial : *trials) {
    if (texts.size() <= kMostNear && std::find(texts.begin(), texts.end(), trial.config) == texts.end())
      texts.push_back(trial.config);
  }
  for (const std::string& text : texts) {
    const Result<Config> config = config_from_json(text);
    if (config && context.fits(*config)) finalists.push_back(*config);
  }
  return finalists;
}

}  // namespace

Result<std::optional<Decision>> revalidate(ShapeContext& context, const CostModel& model, Measurer& measurer) {
  Result<std::vector<Config>> finalists = stored_finalists(context);
  if (!finalists) return tl::unexpected(finalists.error());
  if (finalists->empty()) return std::nullopt;  // the default alone would have no rival
  if (std::find(finalists->begin(), finalists->end(), context.default_config) == finalists->end())
    finalists->push_back(context.default_config);
  std::vector<KernelSpec> specs;
  for (const Config& config : *finalists) specs.push_back(config.spec);
  context.session.compiles.enqueue(specs, /*urgent=*/true);
  TimedCandidates timed;
  const Result<bool> tried = try_looked_up(context, model, measurer, timed);
  if (!tried) return tl::unexpected(tried.error());
  if (!*tried) return std::nullopt;
  const double until_s = context.phase_end(kCompilesEnd);
  for (const Config& config : *finalists) {
    if (!measurer.compiled(config.spec, model, until_s)) continue;
    const RankedConfig once{config, 0};
    if (auto done = measurer.try_configs({&once, 1}, "revalidate", until_s, timed); !done)
      return tl::unexpected(done.error());
  }
  // When it is cut short before this, what is stored stays: a single sample is no reason to replace it.
  if (timed.empty() || context.stopped(context.phase_end(1.0))) return std::nullopt;
  Result<std::optional<Decision>> decision = confirm(context, measurer, timed, timed.in_order(), true);
  if (decision && *decision) (*decision)->raced = static_cast<int>(timed.in_order().size());
  return decision;
}

}  // namespace v1
}  // namespace leanattn
