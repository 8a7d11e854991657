#include "tuner/report.hpp"

#include <algorithm>
#include <tuple>

#include "generator/generator.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

Result<ReportedWinner> read_winner(const Winner& winner) {
  ReportedWinner row;
  const Result<DecodeProblem> problem = problem_from_json(winner.problem);
  if (!problem) return tl::unexpected(problem.error());
  const Result<Shape> shape = shape_from_json(winner.shape);
  if (!shape) return tl::unexpected(shape.error());
  const Result<Config> config = config_from_json(winner.config);
  if (!config) return tl::unexpected(config.error());
  row.problem = *problem;
  row.shape = *shape;
  row.config = *config;
  row.policy = winner.policy;
  row.median_us = winner.median_us;
  row.low_us = winner.low_us;
  row.high_us = winner.high_us;
  row.kv_bytes = kv_bytes(*problem, *shape);
  row.read_limit_us = winner.read_limit_us;
  row.stale = winner.stale;
  if (row.median_us > 0) {
    row.gb_per_s = static_cast<double>(row.kv_bytes) / row.median_us * 1e-3;
    row.read_limit_share = row.read_limit_us / row.median_us;
  }
  return row;
}

bool before(const ReportedWinner& a, const ReportedWinner& b) {
  const auto key = [](const ReportedWinner& w) {
    return std::tuple(w.problem.q_heads, w.problem.kv_heads, w.problem.head_dim, to_string(w.problem.dtype),
                      to_string(w.problem.layout), w.problem.lse, w.problem.pdl, w.policy, w.shape.batch,
                      w.shape.longest_context, w.shape.total_context);
  };
  return key(a) < key(b);
}

}  // namespace

Result<Report> make_report(TuningDb& db) {
  Report report{.library_revision = generator_revision(), .devices = {}};
  const Result<std::vector<DeviceModel>> models = db.device_models();
  if (!models) return tl::unexpected(models.error());
  for (const DeviceModel& model : *models) {
    DeviceReport device;
    device.device = model;
    const Result<std::vector<Environment>> environments = db.environments(model);
    if (!environments) return tl::unexpected(environments.error());
    device.environments = *environments;
    const Result<std::vector<Winner>> winners = db.winners(model);
    if (!winners) return tl::unexpected(winners.error());
    for (const Winner& winner : *winners) {
      if (const Result<ReportedWinner> row = read_winner(winner)) {
        device.winners.push_back(*row);
      } else {
        ++device.unreadable;
      }
    }
    std::stable_sort(device.winners.begin(), device.winners.end(), before);
    const Result<std::vector<Trial>> trials = db.trials(model, "", "", "");
    if (!trials) return tl::unexpected(trials.error());
    for (const Trial& trial : *trials) ++device.trials[std::string(to_string(trial.status))];
    report.devices.push_back(std::move(device));
  }
  return report;
}

}  // namespace v1
}  // namespace leanattn
