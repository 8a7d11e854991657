// candidates.cpp -- everything here is a ratio to the fastest trial of a shape.
#include "tuner/report/candidates.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"
#include "tuner/measure/statistics.hpp"
#include "tuner/report/parameters.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr int kFewestSamples = 3;  // With fewer, a time may be luck, so there is neither a runner-up nor an interval.

std::vector<double> samples_of(const Trial& trial) {
  const auto json = nlohmann::json::parse(trial.samples_json, nullptr, /*allow_exceptions=*/false);
  std::vector<double> samples;
  if (!json.is_array()) return samples;
  for (const auto& value : json) {
    if (!value.is_number() || !(value.get<double>() > 0)) return {};
    samples.push_back(value.get<double>());
  }
  return samples;
}

Rival rival(const TimedConfig& other, const TimedConfig* winner, double winner_us) {
  Rival result{.config = other.config, .median_us = other.median_us, .samples = other.sample_count, .over_winner = {}};
  result.over_winner.ratio = other.median_us / winner_us;
  if (winner == nullptr || winner->samples.size() < kFewestSamples || other.samples.size() < kFewestSamples)
    return result;
  const PairedRatio ratio = independent_ratio(other.samples, winner->samples);
  result.over_winner.low = ratio.low, result.over_winner.high = ratio.high;
  return result;
}

double quantile(std::span<const double> sorted, double share) {
  return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
}

CandidateSpread spread_of(std::span<const TimedConfig> timed) {
  CandidateSpread spread;
  std::map<std::string, int> kernels;
  std::vector<double> over_best;
  for (const TimedConfig& candidate : timed) {
    ++kernels[kernel_name(candidate.config.spec)];
    over_best.push_back(candidate.median_us / timed.front().median_us);
  }
  spread.configurations = static_cast<std::int64_t>(timed.size());
  spread.kernels = static_cast<std::int64_t>(kernels.size());
  for (std::size_t i = 0; i < spread.quantiles.size(); ++i)
    spread.quantiles[i] = quantile(over_best, CandidateSpread::kShares[i]);
  return spread;
}

/// How a grid cuts the line: into whole output tiles, into equal numbers of CTAs for each, or anywhere.
const char* schedule_of(const ReportedWinner& winner, const Config& config) {
  const std::int64_t outputs = output_tiles(winner.problem, winner.shape.batch, config.spec);
  if (config.grid == outputs) return "fa2";
  return config.grid % outputs == 0 ? "even" : "lean";
}

/// The sums of one parameter's value over the shapes.
struct ValueSum {
  double logs = 0, worst = 0;
  std::int64_t shapes = 0, candidates = 0;
};

bool is_number(const std::string& text) { return text.find_first_not_of("0123456789") == std::string::npos; }

/// The value of a parameter, or of "schedule", which is how a grid cuts this shape.
using ValueOf = std::function<std::string(const ReportedWinner&, const Config&)>;

ParameterSensitivity sensitivity_to(const char* parameter, const ValueOf& value_of,
                                    std::span<const ReportedWinner* const> winners,
                                    std::span<const std::vector<TimedConfig>* const> timed) {
  std::map<std::string, ValueSum> sums;
  std::int64_t shapes = 0;
  for (std::size_t i = 0; i < winners.size(); ++i) {
    if (timed[i]->empty()) continue;
    ++shapes;
    std::map<std::string, double> best;
    for (const TimedConfig& candidate : *timed[i]) {  // the fastest first
      const std::string value = value_of(*winners[i], candidate.config);
      ++sums[value].candidates;
      best.emplace(value, candidate.median_us / timed[i]->front().median_us);
    }
    for (const auto& [value, ratio] : best) {
      ValueSum& sum = sums[value];
      sum.logs += std::log(ratio), sum.worst = std::max(sum.worst, ratio), ++sum.shapes;
    }
  }
  ParameterSensitivity result{.parameter = parameter, .values = {}, .spread = 1};
  for (const auto& [value, sum] : sums) {
    result.values.push_back({.value = value,
                             .geometric_mean = std::exp(sum.logs / static_cast<double>(sum.shapes)),
                             .worst = sum.worst,
                             .shapes = sum.shapes,
                             .candidates = sum.candidates});
    if (sum.shapes == shapes) result.spread = std::max(result.spread, result.values.back().geometric_mean);
  }
  std::stable_sort(result.values.begin(), result.values.end(), [](const ParameterValue& a, const ParameterValue& b) {
    if (is_number(a.value) && is_number(b.value)) return std::stoll(a.value) < std::stoll(b.value);
    return a.geometric_mean < b.geometric_mean;
  });
  return result;
}

}  // namespace

std::map<std::string, const Trial*> counted_trials(std::span<const Trial* const> trials, const Environment& software) {
  std::map<std::string, const Trial*> chosen;
  for (const Trial* trial : trials) {  // the oldest first
    if (!same_software(trial->environment, software) || !(trial->median_us > 0)) continue;
    if (trial->status != TrialStatus::ok && trial->status != TrialStatus::pruned) continue;
    const Trial*& held = chosen[trial->config];
    if (held == nullptr || trial->samples >= held->samples) held = trial;
  }
  return chosen;
}

std::vector<TimedConfig> timed_configs(std::span<const Trial* const> trials, const Environment& software,
                                       ParsedTexts<Config>& configs) {
  std::vector<TimedConfig> timed;
  for (const auto& [text, trial] : counted_trials(trials, software)) {
    const Result<Config>& config = configs(text);
    if (!config) continue;
    timed.push_back({.config = *config,
                     .median_us = trial->median_us,
                     .samples = samples_of(*trial),
                     .sample_count = trial->samples,
                     .registers = trial->registers});
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const TimedConfig& a, const TimedConfig& b) { return a.median_us < b.median_us; });
  return timed;
}

void add_rivals(ReportedWinner& winner, std::span<const TimedConfig> timed, const DeviceFacts* device) {
  if (timed.empty() || !(winner.median_us > 0)) return;
  const auto found = std::find_if(timed.begin(), timed.end(),
                                  [&](const TimedConfig& candidate) { return candidate.config == winner.config; });
  const TimedConfig* self = found == timed.end() ? nullptr : &*found;
  winner.candidates = spread_of(timed);
  std::optional<Config> untuned;
  if (device != nullptr) untuned = leanattn::default_config({*device, winner.problem, winner.shape});
  for (const TimedConfig& candidate : timed) {  // The fastest is first, so the first of a kind is its best.
    const auto keep = [&](std::optional<Rival>& best) {
      if (!best) best = rival(candidate, self, winner.median_us);
    };
    const bool is_winner = &candidate == self;
    if (!is_winner && candidate.sample_count >= kFewestSamples) keep(winner.runner_up);
    if (untuned && candidate.config == *untuned) keep(winner.default_config);
    const std::string_view schedule = schedule_of(winner, candidate.config);
    if (schedule == "fa2") keep(winner.flash_attention2);
    if (schedule != "lean") keep(winner.flash_decoding);
  }
}

std::vector<ParameterSensitivity> sensitivity(std::span<const ReportedWinner* const> winners,
                                              std::span<const std::vector<TimedConfig>* const> timed) {
  std::vector<ParameterSensitivity> found;
  const auto add = [&](const char* parameter, const ValueOf& value_of) {
    ParameterSensitivity one = sensitivity_to(parameter, value_of, winners, timed);
    if (one.values.size() > 1) found.push_back(std::move(one));
  };
  for (const KernelParameter& parameter : kKernelParameters)
    add(parameter.name, [&](const ReportedWinner&, const Config& config) { return parameter.value(config.spec); });
  add("schedule",
      [](const ReportedWinner& winner, const Config& config) { return std::string(schedule_of(winner, config)); });
  std::stable_sort(found.begin(), found.end(),
                   [](const ParameterSensitivity& a, const ParameterSensitivity& b) { return a.spread > b.spread; });
  return found;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
