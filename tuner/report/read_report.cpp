// read_report.cpp -- the reverse of json.cpp. The file may be anybody's: types and ranges are checked here, and texts
// stay what they are, because the renderers escape them.
#include "tuner/report/read_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "generator/parse_json.hpp"
#include "generator/recurrent/recurrent_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using nlohmann::json;

// These throw std::out_of_range for a field that is missing or has another type, and for a number that is none of the
// whole numbers a field can have. Its text names the field.

std::string text(const json& object, const char* key) { return require<std::string>(object, key); }

/// A time or a ratio; 0, which means unknown, for null and for what is not positive.
double number(const json& object, const char* key) {
  return read_key(object, key,
                  [](const json& value) { return value.is_null() ? 0.0 : std::max(value.get<double>(), 0.0); });
}

std::int64_t count(const json& object, const char* key) {
  return std::max<std::int64_t>(read_key(object, key, require_integer<std::int64_t, json>), 0);
}

int small_count(const json& object, const char* key) {
  return static_cast<int>(std::min<std::int64_t>(count(object, key), std::numeric_limits<int>::max()));
}

/// The name of a kernel; empty if the text cannot be one.
std::string kernel(const json& object, const char* key) {
  std::string name = text(object, key);
  const bool is_name =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  return is_name ? name : "";
}

TimeRatio ratio_of(const json& object) {
  return {.ratio = number(object, "ratio"), .low = number(object, "low"), .high = number(object, "high")};
}

std::optional<Rival> rival_of(const json& object) {
  if (object.is_null()) return std::nullopt;
  const Result<Config> config = config_from_json(object.at("config").dump());
  const double median_us = number(object, "median_us");
  if (!config || median_us == 0) return std::nullopt;
  return Rival{.config = *config,
               .median_us = median_us,
               .samples = small_count(object, "samples"),
               .over_winner = read_key(object, "over_winner", [](const json& ratio) { return ratio_of(ratio); })};
}

std::optional<CandidateSpread> spread_of(const json& object) {
  if (object.is_null()) return std::nullopt;
  return CandidateSpread{.configurations = count(object, "configurations"),
                         .kernels = count(object, "kernels"),
                         .quantiles = require<std::array<double, 7>>(object, "over_best")};
}

std::optional<TimeParts> parts_of(const json& object) {
  if (object.is_null()) return std::nullopt;
  // Any part may be below zero: what is not explained by much, the others by rounding.
  const auto part = [&](const char* key) { return require<double>(object, key); };
  return TimeParts{.start_us = part("start_us"),
                   .stream_us = part("stream_us"),
                   .segments_us = part("segments_us"),
                   .fix_up_us = part("fix_up_us"),
                   .unexplained_us = part("unexplained_us"),
                   .busy_sms = small_count(object, "busy_sms"),
                   .contributors = number(object, "contributors"),
                   .balance = number(object, "balance"),
                   .kib_in_flight = number(object, "kib_in_flight"),
                   .limited_by = text(object, "limited_by")};
}

std::vector<ProgressStep> progress_of(const json& winner) {
  std::vector<ProgressStep> steps;
  if (!winner.contains("progress")) return steps;
  read_elements(winner, "progress", [&](const json& step) {
    steps.push_back(
        {.trials = count(step, "trials"), .seconds = number(step, "seconds"), .best_us = number(step, "best_us")});
  });
  return steps;
}

/// nullopt if this version cannot read what the winner is of.
std::optional<ReportedWinner> winner_of(const json& object) {
  const auto problem = problem_from_json(object.at("problem").dump());
  const auto shape = shape_from_json(object.at("shape").dump());
  const auto config = config_from_json(object.at("config").dump());
  const auto policy = parse_l2_policy(text(object, "policy"));
  const double median_us = number(object, "median_us");
  if (!problem || !shape || !config || !policy || median_us == 0) return std::nullopt;
  return ReportedWinner{.problem = *problem,
                        .shape = *shape,
                        .policy = *policy,
                        .config = *config,
                        .median_us = median_us,
                        .low_us = number(object, "low_us"),
                        .high_us = number(object, "high_us"),
                        .kv_bytes = count(object, "kv_bytes"),
                        .gb_per_s = number(object, "gb_per_s"),
                        .read_limit_us = number(object, "read_limit_us"),
                        .read_limit_share = number(object, "read_limit_share"),
                        .stale = require<bool>(object, "stale"),
                        .samples = small_count(object, "samples"),
                        .measured = text(object, "measured"),
                        .default_config = read_key(object, "default", rival_of),
                        .runner_up = read_key(object, "runner_up", rival_of),
                        .flash_attention2 = read_key(object, "fa2", rival_of),
                        .flash_decoding = read_key(object, "fd", rival_of),
                        .candidates = read_key(object, "candidates", spread_of),
                        .progress = progress_of(object),
                        .parts = read_key(object, "parts", parts_of)};
}

/// nullopt if this version cannot read what the winner is of.
std::optional<ReportedRecurrent> recurrent_of(const json& object) {
  const auto spec = recurrent_spec_from_json(object.at("config").dump());
  const auto policy = parse_l2_policy(text(object, "policy"));
  const double median_us = number(object, "median_us");
  const int batch = small_count(object, "batch");
  if (!spec || !policy || median_us == 0 || batch == 0) return std::nullopt;
  return ReportedRecurrent{.spec = *spec,
                           .batch = batch,
                           .policy = *policy,
                           .median_us = median_us,
                           .low_us = number(object, "low_us"),
                           .high_us = number(object, "high_us"),
                           .gb_per_s = number(object, "gb_per_s"),
                           .copy_us = number(object, "copy_us"),
                           .rule_us = number(object, "rule_us"),
                           .stale = require<bool>(object, "stale"),
                           .samples = small_count(object, "samples"),
                           .measured = text(object, "measured")};
}

ParameterSensitivity sensitivity_of(const json& object) {
  ParameterSensitivity sensitivity{
      .parameter = text(object, "parameter"), .values = {}, .spread = number(object, "spread")};
  for (const json& value : object.at("values")) {
    sensitivity.values.push_back({.value = text(value, "value"),
                                  .geometric_mean = number(value, "geometric_mean"),
                                  .worst = number(value, "worst"),
                                  .shapes = count(value, "shapes"),
                                  .candidates = count(value, "candidates")});
  }
  return sensitivity;
}

Environment environment_of(const json& object) {
  return {.driver_version = small_count(object, "driver_version"),
          .driver_release = text(object, "driver_release"),
          .nvrtc_version = text(object, "nvrtc_version"),
          .clock_khz = small_count(object, "clock_khz"),
          .memory_clock_khz = small_count(object, "memory_clock_khz"),
          .power_limit_mw = small_count(object, "power_limit_mw"),
          .ecc = require<bool>(object, "ecc"),
          .library_revision = text(object, "library_revision")};
}

FailureGroup failure_of(const json& object) {
  FailureGroup group{.status = text(object, "status"),
                     .reason = text(object, "reason"),
                     .example = text(object, "example"),
                     .kernel = kernel(object, "kernel"),
                     .count = count(object, "count"),
                     .common = {}};
  if (!object.contains("common")) return group;
  read_elements(object, "common",
                [&](const json& one) { group.common.emplace_back(text(one, "parameter"), text(one, "value")); });
  return group;
}

DeviceReport device_of(const json& object) {
  DeviceReport device;
  device.device = {.name = text(object, "name"),
                   .arch = text(object, "arch"),
                   .sm_count = small_count(object, "sms"),
                   .l2_bytes = count(object, "l2_bytes"),
                   .memory_bytes = count(object, "memory_bytes"),
                   .mig_profile = text(object, "mig_profile")};
  read_elements(object, "environments", [&](const json& one) { device.environments.push_back(environment_of(one)); });
  device.first_trial = text(object, "first_trial"), device.last_trial = text(object, "last_trial");
  device.unreadable = count(object, "unreadable_winners");
  std::map<std::size_t, std::size_t> places;  // of the winners that were read
  std::size_t number_in_file = 0;
  read_elements(object, "winners", [&](const json& one) {
    if (std::optional<ReportedWinner> winner = winner_of(one)) {
      places.emplace(number_in_file, device.winners.size());
      device.winners.push_back(std::move(*winner));
    } else {
      ++device.unreadable;
    }
    ++number_in_file;
  });
  read_elements(object, "problems", [&](const json& one) {
    ProblemReport group;
    read_elements(one, "winners", [&](const json& index) {
      if (const auto place = places.find(require_integer<std::size_t>(index)); place != places.end())
        group.winners.push_back(place->second);
    });
    if (group.winners.empty()) return;
    group.problem = device.winners[group.winners.front()].problem;
    group.policy = device.winners[group.winners.front()].policy;
    group.model_error = number(one, "model_error");
    read_elements(one, "sensitivity",
                  [&](const json& parameter) { group.sensitivity.push_back(sensitivity_of(parameter)); });
    device.problems.push_back(std::move(group));
  });
  if (object.contains("recurrent")) {
    read_elements(object, "recurrent", [&](const json& one) {
      if (auto winner = recurrent_of(one)) {
        device.recurrent.push_back(*std::move(winner));
      } else {
        ++device.unreadable;
      }
    });
  }
  read_key(object, "trials", [&](const json& trials) {
    for (const auto& [status, of_status] : trials.items())
      device.trials[status] = std::max<std::int64_t>(require_integer<std::int64_t>(of_status), 0);
  });
  read_elements(object, "failures", [&](const json& one) { device.failures.push_back(failure_of(one)); });
  return device;
}

ReportDifference difference_of(const json& object) {
  ReportDifference difference{
      .old_revision = text(object, "old_revision"), .changes = {}, .geometric_mean = number(object, "geometric_mean")};
  for (const json& one : object.at("changes")) {
    WinnerChange change{.device = text(one, "device"),
                        .problem = one.at("problem").dump(),
                        .shape = one.at("shape").dump(),
                        .old_us = number(one, "old_us"),
                        .new_us = number(one, "new_us"),
                        .old_kernel = kernel(one, "old_kernel"),
                        .new_kernel = kernel(one, "new_kernel"),
                        .config_changed = require<bool>(one, "config_changed")};
    change.policy = parse_l2_policy(text(one, "policy")).value_or(L2Policy::cold);
    if (const json& ratio = one.at("ratio"); !ratio.is_null()) {
      change.ratio = number(ratio, "ratio");
      change.ratio_low = number(ratio, "low"), change.ratio_high = number(ratio, "high");
    }
    if (one.contains("old_grid")) change.old_grid = count(one, "old_grid"), change.new_grid = count(one, "new_grid");
    difference.changes.push_back(std::move(change));
  }
  return difference;
}

/// The regret of a report as a file of held-out cases. Reports of earlier versions have only each case's regret.
std::string regret_file(json regret) {
  regret["schema_version"] = 1;
  for (json& one : regret.at("cases")) {
    if (!one.contains("ratio")) one["ratio"] = 1 + require<double>(one, "regret");
  }
  return regret.dump();
}

Result<Report> report_of(const json& document) {
  Report report;
  report.library_revision = text(document, "library_revision");
  read_elements(document, "devices", [&](const json& device) { report.devices.push_back(device_of(device)); });
  if (report.devices.empty())
    return fail(ErrorCode::invalid_argument, "the report has no winners: its 'devices' are empty",
                "Give the report of a database in which something was tuned.");
  if (document.contains("difference")) report.difference = read_key(document, "difference", difference_of);
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

Result<nlohmann::json> report_document(std::string_view object) {
  json document = parse_json(object);
  const char* const why = !document.is_object()             ? ""
                          : !document.contains("devices")   ? ": it has no 'devices'"
                          : !document["devices"].is_array() ? ": its 'devices' are no array"
                                                            : nullptr;
  if (why != nullptr)
    return fail(ErrorCode::invalid_argument, fmt::format("this is not a report{}", why),
                "Give the JSON that `leanattn report --format json` wrote.");
  if (const json version = document.value("schema_version", json()); version != 1)
    return fail(ErrorCode::invalid_argument, fmt::format("its schema_version is {}, not 1", version.dump()),
                "Another version of leanattn wrote it. Make the reports with one version.");
  return document;
}

Result<Report> report_from_json(std::string_view object) {
  const Result<json> document = report_document(object);
  if (!document) return tl::unexpected(document.error());
  try {
    return report_of(*document);
  } catch (const std::exception& error) {
    return fail(ErrorCode::invalid_argument, fmt::format("the report is not complete: {}", json_reason(error)));
  }
}

}  // namespace v1
}  // namespace leanattn
