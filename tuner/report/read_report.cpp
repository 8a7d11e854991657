// read_report.cpp -- the reverse of json.cpp. The file may be anybody's: types and ranges are checked here, and texts
// stay what they are, because the renderers escape them.
#include "tuner/report/read_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "generator/parse_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

// These throw Json::exception for a field that is missing or has another type.

std::string text(const Json& object, const char* key) { return object.at(key).get<std::string>(); }

/// A time or a ratio; 0, which means unknown, for null and for what is not positive.
double number(const Json& object, const char* key) {
  const Json& value = object.at(key);
  return value.is_null() ? 0 : std::max(value.get<double>(), 0.0);
}

std::int64_t count(const Json& object, const char* key) {
  const Json& value = object.at(key);
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) return 0;
  // get() would take a fraction.
  return value.is_number_integer() ? std::max<std::int64_t>(value.get<std::int64_t>(), 0)
                                   : Json(value.type_name()).get<std::int64_t>();
}

int small_count(const Json& object, const char* key) {
  return static_cast<int>(std::min<std::int64_t>(count(object, key), std::numeric_limits<int>::max()));
}

/// The name of a kernel; empty if the text cannot be one.
std::string kernel(const Json& object, const char* key) {
  std::string name = text(object, key);
  const bool is_name =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  return is_name ? name : "";
}

TimeRatio ratio_of(const Json& json) {
  return {.ratio = number(json, "ratio"), .low = number(json, "low"), .high = number(json, "high")};
}

std::optional<Rival> rival_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  const Result<Config> config = config_from_json(json.at("config").dump());
  if (!config) return std::nullopt;
  return Rival{.config = *config,
               .median_us = number(json, "median_us"),
               .samples = small_count(json, "samples"),
               .over_winner = ratio_of(json.at("over_winner"))};
}

std::optional<CandidateSpread> spread_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return CandidateSpread{.configurations = count(json, "configurations"),
                         .kernels = count(json, "kernels"),
                         .quantiles = json.at("over_best").get<std::array<double, 7>>()};
}

std::optional<TimeParts> parts_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return TimeParts{.start_us = number(json, "start_us"),
                   .stream_us = number(json, "stream_us"),
                   .segments_us = number(json, "segments_us"),
                   .fix_up_us = number(json, "fix_up_us"),
                   .unexplained_us = json.at("unexplained_us").get<double>(),
                   .busy_sms = small_count(json, "busy_sms"),
                   .contributors = number(json, "contributors"),
                   .balance = number(json, "balance"),
                   .kib_in_flight = number(json, "kib_in_flight"),
                   .limited_by = text(json, "limited_by")};
}

std::vector<ProgressStep> progress_of(const Json& winner) {
  std::vector<ProgressStep> steps;
  if (!winner.contains("progress")) return steps;
  for (const Json& step : winner.at("progress")) {
    steps.push_back(
        {.trials = count(step, "trials"), .seconds = number(step, "seconds"), .best_us = number(step, "best_us")});
  }
  return steps;
}

/// nullopt if this version cannot read what the winner is of.
std::optional<ReportedWinner> winner_of(const Json& json) {
  const auto problem = problem_from_json(json.at("problem").dump());
  const auto shape = shape_from_json(json.at("shape").dump());
  const auto config = config_from_json(json.at("config").dump());
  const auto policy = parse_l2_policy(text(json, "policy"));
  const double median_us = number(json, "median_us");
  if (!problem || !shape || !config || !policy || median_us == 0) return std::nullopt;
  return ReportedWinner{.problem = *problem,
                        .shape = *shape,
                        .policy = *policy,
                        .config = *config,
                        .median_us = median_us,
                        .low_us = number(json, "low_us"),
                        .high_us = number(json, "high_us"),
                        .kv_bytes = count(json, "kv_bytes"),
                        .gb_per_s = number(json, "gb_per_s"),
                        .read_limit_us = number(json, "read_limit_us"),
                        .read_limit_share = number(json, "read_limit_share"),
                        .stale = json.at("stale").get<bool>(),
                        .samples = small_count(json, "samples"),
                        .measured = text(json, "measured"),
                        .default_config = rival_of(json.at("default")),
                        .runner_up = rival_of(json.at("runner_up")),
                        .flash_attention2 = rival_of(json.at("fa2")),
                        .flash_decoding = rival_of(json.at("fd")),
                        .candidates = spread_of(json.at("candidates")),
                        .progress = progress_of(json),
                        .parts = parts_of(json.at("parts"))};
}

ParameterSensitivity sensitivity_of(const Json& json) {
  ParameterSensitivity sensitivity{
      .parameter = text(json, "parameter"), .values = {}, .spread = number(json, "spread")};
  for (const Json& value : json.at("values")) {
    sensitivity.values.push_back({.value = text(value, "value"),
                                  .geometric_mean = number(value, "geometric_mean"),
                                  .worst = number(value, "worst"),
                                  .shapes = count(value, "shapes"),
                                  .candidates = count(value, "candidates")});
  }
  return sensitivity;
}

Environment environment_of(const Json& json) {
  return {.driver_version = small_count(json, "driver_version"),
          .driver_release = text(json, "driver_release"),
          .nvrtc_version = text(json, "nvrtc_version"),
          .clock_khz = small_count(json, "clock_khz"),
          .memory_clock_khz = small_count(json, "memory_clock_khz"),
          .power_limit_mw = small_count(json, "power_limit_mw"),
          .ecc = json.at("ecc").get<bool>(),
          .library_revision = text(json, "library_revision")};
}

FailureGroup failure_of(const Json& json) {
  FailureGroup group{.status = text(json, "status"),
                     .reason = text(json, "reason"),
                     .example = text(json, "example"),
                     .kernel = kernel(json, "kernel"),
                     .count = count(json, "count"),
                     .common = {}};
  if (!json.contains("common")) return group;
  for (const Json& one : json.at("common")) group.common.emplace_back(text(one, "parameter"), text(one, "value"));
  return group;
}

DeviceReport device_of(const Json& json) {
  DeviceReport device;
  device.device = {.name = text(json, "name"),
                   .arch = text(json, "arch"),
                   .sm_count = small_count(json, "sms"),
                   .l2_bytes = count(json, "l2_bytes"),
                   .memory_bytes = count(json, "memory_bytes"),
                   .mig_profile = text(json, "mig_profile")};
  for (const Json& one : json.at("environments")) device.environments.push_back(environment_of(one));
  device.first_trial = text(json, "first_trial"), device.last_trial = text(json, "last_trial");
  device.unreadable = count(json, "unreadable_winners");
  std::map<std::size_t, std::size_t> places;  // of the winners that were read
  std::size_t number_in_file = 0;
  for (const Json& one : json.at("winners")) {
    if (std::optional<ReportedWinner> winner = winner_of(one)) {
      places.emplace(number_in_file, device.winners.size());
      device.winners.push_back(std::move(*winner));
    } else {
      ++device.unreadable;
    }
    ++number_in_file;
  }
  for (const Json& one : json.at("problems")) {
    ProblemReport group;
    for (const Json& index : one.at("winners")) {
      if (const auto place = places.find(index.get<std::size_t>()); place != places.end())
        group.winners.push_back(place->second);
    }
    if (group.winners.empty()) continue;
    group.problem = device.winners[group.winners.front()].problem;
    group.policy = device.winners[group.winners.front()].policy;
    group.model_error = number(one, "model_error");
    for (const Json& parameter : one.at("sensitivity")) group.sensitivity.push_back(sensitivity_of(parameter));
    device.problems.push_back(std::move(group));
  }
  for (const auto& [status, of_status] : json.at("trials").items())
    device.trials[status] = std::max<std::int64_t>(of_status.get<std::int64_t>(), 0);
  for (const Json& one : json.at("failures")) device.failures.push_back(failure_of(one));
  return device;
}

ReportDifference difference_of(const Json& json) {
  ReportDifference difference{
      .old_revision = text(json, "old_revision"), .changes = {}, .geometric_mean = number(json, "geometric_mean")};
  for (const Json& one : json.at("changes")) {
    WinnerChange change{.device = text(one, "device"),
                        .problem = one.at("problem").dump(),
                        .shape = one.at("shape").dump(),
                        .old_us = number(one, "old_us"),
                        .new_us = number(one, "new_us"),
                        .old_kernel = kernel(one, "old_kernel"),
                        .new_kernel = kernel(one, "new_kernel"),
                        .config_changed = one.at("config_changed").get<bool>()};
    change.policy = parse_l2_policy(text(one, "policy")).value_or(L2Policy::cold);
    if (const Json& ratio = one.at("ratio"); !ratio.is_null()) {
      change.ratio = number(ratio, "ratio");
      change.ratio_low = number(ratio, "low"), change.ratio_high = number(ratio, "high");
    }
    if (one.contains("old_grid")) change.old_grid = count(one, "old_grid"), change.new_grid = count(one, "new_grid");
    difference.changes.push_back(std::move(change));
  }
  return difference;
}

/// The regret of a report as a file of held-out cases. Reports of earlier versions have only each case's regret.
std::string regret_file(Json regret) {
  regret["schema_version"] = 1;
  for (Json& one : regret.at("cases")) {
    if (!one.contains("ratio")) one["ratio"] = 1 + one.at("regret").get<double>();
  }
  return regret.dump();
}

Result<Report> report_of(const Json& document) {
  Report report;
  report.library_revision = text(document, "library_revision");
  for (const Json& device : document.at("devices")) report.devices.push_back(device_of(device));
  if (document.contains("difference")) report.difference = difference_of(document.at("difference"));
  if (document.contains("regret")) {
    Result<RegretReport> regret = regret_from_json(regret_file(document.at("regret")));
    if (!regret) return tl::unexpected(regret.error());
    report.regret = std::move(*regret);
  }
  if (document.contains("paper")) {
    Result<PaperReport> paper = paper_from_json(document.at("paper").dump());
    if (!paper) return tl::unexpected(paper.error());
    report.paper = std::move(*paper);
  }
  return report;
}

}  // namespace

Result<nlohmann::json> report_document(std::string_view json) {
  Json document = parse_json(json);
  if (!document.is_object() || !document.contains("devices"))
    return fail(ErrorCode::invalid_argument, "this is not a report",
                "Give a file that `leanattn report --format json` wrote.");
  if (const Json version = document.value("schema_version", Json()); version != 1)
    return fail(ErrorCode::invalid_argument, fmt::format("its schema_version is {}, not 1", version.dump()),
                "Another version of leanattn wrote it. Make the reports with one version.");
  return document;
}

Result<Report> report_from_json(std::string_view json) {
  const Result<Json> document = report_document(json);
  if (!document) return tl::unexpected(document.error());
  try {
    return report_of(*document);
  } catch (const Json::exception& error) {
    return fail(ErrorCode::invalid_argument, fmt::format("the report is not complete: {}", error.what()));
  }
}

}  // namespace v1
}  // namespace leanattn
