// report.cpp -- reads winners and trials of each device, and groups the winners by problem.
#include "tuner/report/report.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "generator/generator.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/parsed_texts.hpp"
#include "tuner/model/cost_model_fit.hpp"
#include "tuner/report/candidates.hpp"
#include "tuner/report/failure_groups.hpp"
#include "tuner/report/progress.hpp"
#include "tuner/report/recurrent_winners.hpp"
#include "tuner/report/time_parts.hpp"
#include "tuner/search/recurrent_tune.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using detail::TimedConfig;

constexpr std::size_t kMostModelSamples = 2000;  // of a problem; more of them do not make the fit better

/// The texts of a database, each of which is parsed once.
struct Texts {
  ParsedTexts<DecodeProblem> problems{problem_from_json};
  ParsedTexts<Shape> shapes{shape_from_json};
  ParsedTexts<Config> configs{config_from_json};
};

/// Problem, shape and L2 policy as texts of the database.
using ShapeKey = std::tuple<std::string, std::string, std::string>;

/// The trials of one shape.
struct Tried {
  std::vector<const Trial*> trials;
  std::vector<TimedConfig> timed;  ///< those of the software that measured the winner
};

Result<ReportedWinner> read_winner(const Winner& winner, Texts& texts) {
  ReportedWinner row;
  const Result<DecodeProblem>& problem = texts.problems(winner.problem);
  if (!problem) return tl::unexpected(problem.error());
  const Result<Shape>& shape = texts.shapes(winner.shape);
  if (!shape) return tl::unexpected(shape.error());
  const Result<Config>& config = texts.configs(winner.config);
  if (!config) return tl::unexpected(config.error());
  const Result<L2Policy> policy = parse_l2_policy(winner.policy);
  if (!policy) return tl::unexpected(policy.error());
  row.problem = *problem;
  row.shape = *shape;
  row.config = *config;
  row.policy = *policy;
  row.median_us = winner.median_us;
  row.low_us = winner.low_us;
  row.high_us = winner.high_us;
  row.kv_bytes = kv_bytes(*problem, *shape);
  row.read_limit_us = winner.read_limit_us;
  row.stale = winner.stale;
  if (row.median_us > 0) {
    row.gb_per_s = gb_per_s(row.kv_bytes, row.median_us);
    row.read_limit_share = row.read_limit_us / row.median_us;
  }
  return row;
}

auto problem_key(const ReportedWinner& w) {
  return std::tuple(w.problem.q_heads, w.problem.kv_heads, w.problem.head_dim, to_string(w.problem.dtype),
                    to_string(w.problem.layout), w.problem.lse, w.problem.pdl, to_json(w.problem.features),
                    to_string(w.problem.group_link), w.policy);
}

bool before(const ReportedWinner& a, const ReportedWinner& b) {
  const auto key = [](const ReportedWinner& w) {
    return std::tuple_cat(problem_key(w),
                          std::tuple(w.shape.batch, w.shape.longest_context, w.shape.total_context, w.shape.max_batch,
                                     w.shape.mix.query_tokens, w.shape.mix.chunks, w.shape.mix.chunk_pairs));
  };
  return key(a) < key(b);
}

/// Adds the rivals and candidates of one winner, which come from trials of the same software.
void add_trials(ReportedWinner& row, const Winner& winner, Tried& tried, const DeviceFacts* facts, Texts& texts) {
  const auto self = std::find_if(tried.trials.begin(), tried.trials.end(),
                                 [&](const Trial* trial) { return trial->uuid == winner.trial_uuid; });
  if (self == tried.trials.end()) return;
  row.samples = (*self)->samples;
  row.measured = (*self)->created;
  tried.timed = detail::timed_configs(tried.trials, (*self)->environment, texts.configs);
  detail::add_rivals(row, tried.timed, facts);
  row.progress = detail::search_progress(tried.trials, (*self)->environment);
}

/// Fits the cost model to the problem's trials and splits its winners' times into parts.
Result<void> add_parts(ProblemReport& group, std::vector<ReportedWinner>& winners,
                       std::span<const std::vector<TimedConfig>* const> timed, const DeviceModel& model,
                       const DeviceFacts& facts, TuningDb& db) {
  const auto limits = db.read_limits(model, std::string(to_string(group.policy)));
  if (!limits) return tl::unexpected(limits.error());
  std::vector<ModelSample> samples;
  for (std::size_t i = 0; i < timed.size(); ++i) {
    const ReportedWinner& winner = winners[group.winners[i]];
    for (const TimedConfig& candidate : *timed[i]) {
      samples.push_back({.problem = winner.problem,
                         .shape = winner.shape,
                         .config = candidate.config,
                         .resident = detail::resident_ctas(facts, candidate.config.spec, candidate.registers),
                         .us = candidate.median_us});
    }
  }
  // The samples are chosen evenly, because the first ones would all be of the first shapes.
  const std::size_t stride = samples.size() / kMostModelSamples + 1;
  std::vector<ModelSample> some;
  for (std::size_t i = 0; i < samples.size(); i += stride) some.push_back(samples[i]);
  const CostModel costs = fit_model(default_parameters(facts), facts, some, *limits);
  group.model_error = model_error(costs, facts, some);
  for (std::size_t i = 0; i < group.winners.size(); ++i) {
    ReportedWinner& winner = winners[group.winners[i]];
    const auto self = std::find_if(timed[i]->begin(), timed[i]->end(),
                                   [&](const TimedConfig& candidate) { return candidate.config == winner.config; });
    const int registers = self == timed[i]->end() ? 0 : self->registers;
    winner.parts = detail::time_parts(costs.of(winner.config.spec), facts, winner,
                                      detail::resident_ctas(facts, winner.config.spec, registers));
  }
  return {};
}

Result<DeviceReport> device_report(TuningDb& db, const DeviceModel& model) {
  DeviceReport device;
  device.device = model;
  const Result<std::vector<Environment>> environments = db.environments(model);
  if (!environments) return tl::unexpected(environments.error());
  device.environments = *environments;
  const Result<std::vector<Winner>> winners = db.winners(model, std::nullopt, with_kernels({}));
  if (!winners) return tl::unexpected(winners.error());
  const Result<std::vector<Trial>> trials = db.trials(model, "", "", "");
  if (!trials) return tl::unexpected(trials.error());

  Texts texts;
  std::map<ShapeKey, Tried> tried;
  for (const Trial& trial : *trials) {
    if (!is_copy_config(trial.config)) ++device.trials[std::string(to_string(trial.status))];
    tried[{trial.problem, trial.shape, trial.policy}].trials.push_back(&trial);
    if (device.first_trial.empty() || trial.created < device.first_trial) device.first_trial = trial.created;
    device.last_trial = std::max(device.last_trial, trial.created);
  }
  device.failures = detail::failure_groups(*trials, texts.configs);

  const Result<DeviceFacts> facts = detail::facts_of(model);
  std::vector<std::pair<ReportedWinner, const std::vector<TimedConfig>*>> rows;
  for (const Winner& winner : *winners) {
    Tried& of_shape = tried[{winner.problem, winner.shape, winner.policy}];
    Result<ReportedWinner> row = read_winner(winner, texts);
    if (!row) {
      const auto recurrent = detail::reported_recurrent(winner, of_shape.trials, facts ? &*facts : nullptr);
      if (recurrent) {
        device.recurrent.push_back(*recurrent);
      } else {
        ++device.unreadable;
      }
      continue;
    }
    add_trials(*row, winner, of_shape, facts ? &*facts : nullptr, texts);
    rows.emplace_back(std::move(*row), &of_shape.timed);
  }
  detail::sort_recurrent(device.recurrent);
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return before(a.first, b.first); });
  std::vector<const std::vector<TimedConfig>*> timed;
  for (auto& [row, of_shape] : rows) {
    device.winners.push_back(std::move(row));
    timed.push_back(of_shape);
  }

  for (std::size_t first = 0; first < device.winners.size();) {
    ProblemReport group{.problem = device.winners[first].problem,
                        .policy = device.winners[first].policy,
                        .winners = {},
                        .sensitivity = {}};
    std::vector<const ReportedWinner*> of_group;
    std::size_t end = first;
    for (; end < device.winners.size() && problem_key(device.winners[end]) == problem_key(device.winners[first]);
         ++end) {
      group.winners.push_back(end);
      of_group.push_back(&device.winners[end]);
    }
    const auto timed_of_group = std::span(timed).subspan(first, end - first);
    group.sensitivity = detail::sensitivity(of_group, timed_of_group);
    if (facts) {
      if (auto done = add_parts(group, device.winners, timed_of_group, model, *facts, db); !done)
        return tl::unexpected(done.error());
    }
    device.problems.push_back(std::move(group));
    first = end;
  }
  return device;
}

}  // namespace

Result<Report> make_report(TuningDb& db) {
  Report report;
  report.library_revision = generator_revision();
  const Result<std::vector<DeviceModel>> models = db.device_models();
  if (!models) return tl::unexpected(models.error());
  for (const DeviceModel& model : *models) {
    Result<DeviceReport> device = device_report(db, model);
    if (!device) return tl::unexpected(device.error());
    report.devices.push_back(std::move(*device));
  }
  return report;
}

}  // namespace v1
}  // namespace leanattn
