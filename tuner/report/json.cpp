// json.cpp -- writes the report for programs. docs/report.schema.json describes the document.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "generator/recurrent/recurrent_json.hpp"
#include "tuner/report/headline.hpp"
#include "tuner/report/render.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

/// A text of canonical JSON as a value, so that the document has an object instead of a string.
Json nested(const std::string& canonical) { return Json::parse(canonical); }

Json known(double value) { return value > 0 ? Json(value) : Json(nullptr); }

// The templates below call these functions.
Json json_of(const Environment&);
Json json_of(const TimeRatio&);
Json json_of(const Rival&);
Json json_of(const CandidateSpread&);
Json json_of(const ProgressStep&);
Json json_of(const TimeParts&);
Json json_of(const ReportedWinner&);
Json json_of(const ParameterValue&);
Json json_of(const ParameterSensitivity&);
Json json_of(const ProblemReport&);
Json json_of(const ReportedRecurrent&);
Json json_of(const FailureGroup&);
Json json_of(const DeviceReport&);
Json json_of(const WinnerChange&);
Json json_of(const ReportDifference&);
Json json_of(const HeldOutCase&);
Json json_of(const RegretReport&);

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? json_of(*value) : Json(nullptr);
}

template <class T>
Json array_of(const std::vector<T>& values) {
  Json array = Json::array();
  for (const T& value : values) array.push_back(json_of(value));
  return array;
}

Json json_of(const Environment& environment) {
  return {{"driver_version", environment.driver_version},
          {"driver_release", environment.driver_release},
          {"nvrtc_version", environment.nvrtc_version},
          {"clock_khz", environment.clock_khz},
          {"memory_clock_khz", environment.memory_clock_khz},
          {"power_limit_mw", environment.power_limit_mw},
          {"ecc", environment.ecc},
          {"library_revision", environment.library_revision}};
}

Json json_of(const TimeRatio& ratio) {
  return {{"ratio", known(ratio.ratio)}, {"low", known(ratio.low)}, {"high", known(ratio.high)}};
}

Json json_of(const Rival& rival) {
  return {{"kernel", kernel_name(rival.config.spec)},
          {"config", nested(to_json(rival.config))},
          {"median_us", rival.median_us},
          {"samples", rival.samples},
          {"over_winner", json_of(rival.over_winner)}};
}

Json json_of(const CandidateSpread& spread) {
  return {{"configurations", spread.configurations},
          {"kernels", spread.kernels},
          {"shares", CandidateSpread::kShares},
          {"over_best", spread.quantiles}};
}

Json json_of(const ProgressStep& step) {
  return {{"trials", step.trials}, {"seconds", step.seconds}, {"best_us", step.best_us}};
}

Json json_of(const TimeParts& parts) {
  return {{"start_us", parts.start_us},
          {"stream_us", parts.stream_us},
          {"segments_us", parts.segments_us},
          {"fix_up_us", parts.fix_up_us},
          {"unexplained_us", parts.unexplained_us},
          {"busy_sms", parts.busy_sms},
          {"contributors", parts.contributors},
          {"balance", parts.balance},
          {"kib_in_flight", parts.kib_in_flight},
          {"limited_by", parts.limited_by}};
}

Json json_of(const ReportedWinner& winner) {
  return {{"problem", nested(to_json(winner.problem))},
          {"shape", nested(to_json(winner.shape))},
          {"policy", to_string(winner.policy)},
          {"kernel", kernel_name(winner.config.spec)},
          {"config", nested(to_json(winner.config))},
          {"median_us", winner.median_us},
          {"low_us", winner.low_us},
          {"high_us", winner.high_us},
          {"kv_bytes", winner.kv_bytes},
          {"gb_per_s", winner.gb_per_s},
          {"read_limit_us", known(winner.read_limit_us)},
          {"read_limit_share", winner.read_limit_us > 0 ? Json(winner.read_limit_share) : Json(nullptr)},
          {"stale", winner.stale},
          {"samples", winner.samples},
          {"measured", winner.measured},
          {"over_limit", known(winner.over_limit())},
          {"parts", optional_json(winner.parts)},
          {"default", optional_json(winner.default_config)},
          {"runner_up", optional_json(winner.runner_up)},
          {"fa2", optional_json(winner.flash_attention2)},
          {"fd", optional_json(winner.flash_decoding)},
          {"candidates", optional_json(winner.candidates)},
          {"progress", array_of(winner.progress)}};
}

Json json_of(const ParameterValue& value) {
  return {{"value", value.value},
          {"geometric_mean", value.geometric_mean},
          {"worst", value.worst},
          {"shapes", value.shapes},
          {"candidates", value.candidates}};
}

Json json_of(const ParameterSensitivity& parameter) {
  return {{"parameter", parameter.parameter}, {"spread", parameter.spread}, {"values", array_of(parameter.values)}};
}

Json json_of(const ProblemReport& group) {
  return {{"problem", nested(to_json(group.problem))},
          {"policy", to_string(group.policy)},
          {"winners", group.winners},
          {"model_error", known(group.model_error)},
          {"sensitivity", array_of(group.sensitivity)}};
}

Json json_of(const ReportedRecurrent& winner) {
  return {{"problem", nested(to_json(winner.spec.problem))},
          {"batch", winner.batch},
          {"policy", to_string(winner.policy)},
          {"kernel", kernel_name(winner.spec)},
          {"config", nested(to_json(winner.spec))},
          {"median_us", winner.median_us},
          {"low_us", winner.low_us},
          {"high_us", winner.high_us},
          {"gb_per_s", winner.gb_per_s},
          {"copy_us", known(winner.copy_us)},
          {"over_copy", known(winner.over_copy())},
          {"rule_us", known(winner.rule_us)},
          {"stale", winner.stale},
          {"samples", winner.samples},
          {"measured", winner.measured}};
}

Json json_of(const FailureGroup& group) {
  Json common = Json::array();
  for (const auto& [parameter, value] : group.common) common.push_back({{"parameter", parameter}, {"value", value}});
  return {{"count", group.count},     {"status", group.status}, {"reason", group.reason},
          {"example", group.example}, {"kernel", group.kernel}, {"common", common}};
}

Json headline_json(const DeviceReport& device) {
  const detail::Headline headline = detail::headline_of(device);
  return {{"shapes", headline.shapes},
          {"problems", headline.problems},
          {"median_over_limit", known(headline.median_over_limit)},
          {"median_over_default", known(headline.median_over_default)}};
}

Json json_of(const DeviceReport& device) {
  return {{"name", device.device.name},
          {"arch", device.device.arch},
          {"sms", device.device.sm_count},
          {"l2_bytes", device.device.l2_bytes},
          {"memory_bytes", device.device.memory_bytes},
          {"mig_profile", device.device.mig_profile},
          {"environments", array_of(device.environments)},
          {"winners", array_of(device.winners)},
          {"unreadable_winners", device.unreadable},
          {"trials", device.trials},
          {"first_trial", device.first_trial},
          {"last_trial", device.last_trial},
          {"problems", array_of(device.problems)},
          {"recurrent", array_of(device.recurrent)},
          {"failures", array_of(device.failures)},
          {"headline", headline_json(device)}};
}

Json json_of(const WinnerChange& change) {
  const bool both = change.ratio > 0;
  return {{"device", change.device},
          {"problem", nested(change.problem)},
          {"shape", nested(change.shape)},
          {"policy", to_string(change.policy)},
          {"verdict", change.verdict()},
          {"old_us", known(change.old_us)},
          {"new_us", known(change.new_us)},
          {"ratio", both ? Json{{"ratio", change.ratio}, {"low", change.ratio_low}, {"high", change.ratio_high}}
                         : Json(nullptr)},
          {"old_kernel", change.old_kernel},
          {"new_kernel", change.new_kernel},
          {"old_grid", change.old_grid},
          {"new_grid", change.new_grid},
          {"config_changed", change.config_changed}};
}

Json json_of(const ReportDifference& difference) {
  return {{"old_revision", difference.old_revision},
          {"geometric_mean", known(difference.geometric_mean)},
          {"changes", array_of(difference.changes)}};
}

Json json_of(const HeldOutCase& one) {
  return {{"problem", nested(to_json(one.problem))},
          {"shape", nested(to_json(one.shape))},
          {"answer", one.answer},
          {"looked_up_us", one.looked_up_us},
          {"best_us", one.best_us},
          {"ratio", known(one.ratio)},
          {"regret", one.regret()}};
}

Json json_of(const RegretReport& report) {
  return {{"median", report.median},
          {"ninetieth", report.ninetieth},
          {"largest", report.largest},
          {"cases", array_of(report.cases)}};
}

}  // namespace

std::string to_json(const Report& report) {
  Json document{
      {"schema_version", 1}, {"library_revision", report.library_revision}, {"devices", array_of(report.devices)}};
  // A section whose file was not given is absent.
  if (report.difference) document["difference"] = json_of(*report.difference);
  if (report.regret) document["regret"] = json_of(*report.regret);
  if (report.paper) document["paper"] = nested(to_json(*report.paper));
  // Bytes that are no UTF-8 are replaced, because dump() would throw.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace v1
}  // namespace leanattn
