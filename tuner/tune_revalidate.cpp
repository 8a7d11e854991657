// tune_revalidate.cpp -- ShapeSearch without a search: what an earlier one ended with, measured again.
#include <algorithm>
#include <string>

#include "runtime/lookup.hpp"
#include "tuner/tune_shape.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kNear = 0.03;        // behind the stored winner; other software moves kernels by about as much
constexpr int kLeastSamples = 3;      // of a time that says something
constexpr std::size_t kMostNear = 6;  // beside the winner and the default

}  // namespace

Result<std::vector<Config>> ShapeSearch::stored_finalists() {
  const Result<std::vector<Winner>> winners = state_.db.winners(state_.device_model);
  if (!winners) return tl::unexpected(winners.error());
  const auto winner = std::find_if(winners->begin(), winners->end(), [&](const Winner& w) {
    return w.problem == problem_json_ && w.shape == shape_json_ && w.policy == state_.policy();
  });
  std::vector<Config> finalists;
  if (winner == winners->end()) return finalists;
  Result<std::vector<Trial>> trials =
      state_.db.trials(state_.device_model, problem_json_, shape_json_, state_.policy());
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
    if (config && fits(*config)) finalists.push_back(*config);
  }
  return finalists;
}

Result<bool> ShapeSearch::revalidate() {
  Result<std::vector<Config>> finalists = stored_finalists();
  if (!finalists) return tl::unexpected(finalists.error());
  if (finalists->empty()) return false;  // the default alone would win against nobody
  if (std::find(finalists->begin(), finalists->end(), default_) == finalists->end()) finalists->push_back(default_);
  std::vector<KernelSpec> specs;
  for (const Config& config : *finalists) specs.push_back(config.spec);
  state_.compiles.enqueue(specs, /*urgent=*/true);
  const double until_s = phase_end(0.5);
  for (const Config& config : *finalists) {
    if (!compiled(config.spec, until_s)) continue;
    const RankedConfig once{config, 0};
    if (auto done = try_configs({&once, 1}, "revalidate", until_s); !done) return tl::unexpected(done.error());
  }
  // Cut short before that, what is stored stays: a single sample is no reason to replace it.
  if (held_.empty() || stopped(phase_end(1.0))) return false;
  result_.raced = static_cast<int>(held_.size());
  if (auto done = confirm(held_); !done) return tl::unexpected(done.error());
  return true;
}

}  // namespace v1
}  // namespace leanattn
