// difference.cpp -- matches the winners of two reports by device, problem, shape and L2 policy.
#include "tuner/report/difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>

#include "generator/parse_json.hpp"
#include "tuner/report/escape.hpp"
#include "tuner/report/read_report.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using nlohmann::json;

/// Device, problem, shape and L2 policy.
using Key = std::tuple<std::string, std::string, std::string, L2Policy>;

struct Time {
  double median_us = 0, low_us = 0, high_us = 0;
  std::string kernel, config;
  std::int64_t grid = 0;
};
using Times = std::map<Key, Time>;

/// A report's JSON has no bytes that are no UTF-8, so neither has the key.
std::string device_key(const std::string& name, const std::string& arch, std::int64_t sms, const std::string& mig) {
  return detail::clean_text(fmt::format("{}, {}, {} SMs{}{}", name, arch, sms, mig.empty() ? "" : ", MIG ", mig));
}

Times times_of(const Report& report) {
  Times times;
  for (const DeviceReport& device : report.devices) {
    const DeviceModel& model = device.device;
    for (const ReportedWinner& winner : device.winners) {
      times[{device_key(model.name, model.arch, model.sm_count, model.mig_profile), to_json(winner.problem),
             to_json(winner.shape), winner.policy}] = {.median_us = winner.median_us,
                                                       .low_us = winner.low_us,
                                                       .high_us = winner.high_us,
                                                       .kernel = kernel_name(winner.config.spec),
                                                       .config = to_json(winner.config),
                                                       .grid = winner.config.grid};
    }
  }
  return times;
}

/// The times of a report's JSON. Throws a std::exception if a field is missing or is not what it should be.
Times times_in(const json& document) {
  Times times;
  read_elements(document, "devices", [&](const json& device) {
    const auto text = [&](const char* key) { return require<std::string>(device, key); };
    const std::string name = device_key(
        text("name"), text("arch"), read_key(device, "sms", require_integer<std::int64_t, json>), text("mig_profile"));
    read_elements(device, "winners", [&](const json& winner) {
      // What was read is written again, so that equal problems are equal texts whichever version wrote them. A text
      // that this version cannot read stays as it is and has no counterpart.
      const auto problem = problem_from_json(winner.at("problem").dump());
      const auto shape = shape_from_json(winner.at("shape").dump());
      const auto config = config_from_json(winner.at("config").dump());
      const auto policy = parse_l2_policy(require<std::string>(winner, "policy"));
      if (!policy) throw std::out_of_range(policy.error().message);
      Time time{.median_us = require<double>(winner, "median_us"),
                .low_us = require<double>(winner, "low_us"),
                .high_us = require<double>(winner, "high_us"),
                .kernel = require<std::string>(winner, "kernel"),
                .config = config ? to_json(*config) : winner.at("config").dump(),
                .grid = config ? config->grid : 0};
      times[{name, problem ? to_json(*problem) : winner.at("problem").dump(),
             shape ? to_json(*shape) : winner.at("shape").dump(), *policy}] = std::move(time);
    });
  });
  return times;
}

WinnerChange change_of(const Key& key, const Time* before, const Time* after) {
  WinnerChange change;
  std::tie(change.device, change.problem, change.shape, change.policy) = key;
  if (before != nullptr)
    change.old_us = before->median_us, change.old_kernel = before->kernel, change.old_grid = before->grid;
  if (after != nullptr)
    change.new_us = after->median_us, change.new_kernel = after->kernel, change.new_grid = after->grid;
  if (before == nullptr || after == nullptr || !(before->median_us > 0) || !(after->median_us > 0)) return change;
  change.config_changed = before->config != after->config;
  change.ratio = after->median_us / before->median_us;
  // Without an interval, the median stands for both of its ends.
  const auto low = [](const Time& t) { return t.low_us > 0 ? t.low_us : t.median_us; };
  const auto high = [](const Time& t) { return t.high_us > 0 ? t.high_us : t.median_us; };
  change.ratio_low = low(*after) / high(*before), change.ratio_high = high(*after) / low(*before);
  return change;
}

}  // namespace

std::string_view WinnerChange::verdict() const {
  if (ratio == 0) return old_us > 0 ? "lost" : "new";
  return ratio_high < 1 ? "faster" : ratio_low > 1 ? "slower" : "same";
}

std::size_t ReportDifference::count(std::string_view verdict) const {
  return static_cast<std::size_t>(std::count_if(
      changes.begin(), changes.end(), [&](const WinnerChange& change) { return change.verdict() == verdict; }));
}

std::size_t ReportDifference::replaced() const {
  return static_cast<std::size_t>(
      std::count_if(changes.begin(), changes.end(), [](const WinnerChange& change) { return change.config_changed; }));
}

Result<ReportDifference> difference_from(std::string_view earlier_json, const Report& report) {
  const Result<json> document = report_document(earlier_json);
  if (!document) return tl::unexpected(document.error());
  ReportDifference difference;
  Times before;
  try {
    difference.old_revision = require<std::string>(*document, "library_revision");
    before = times_in(*document);
  } catch (const std::exception& error) {
    return fail(ErrorCode::invalid_argument, fmt::format("the report is not complete: {}", json_reason(error)));
  }
  const Times after = times_of(report);
  double logs = 0;
  std::size_t both = 0;
  for (const auto& [key, time] : after) {
    const auto found = before.find(key);
    difference.changes.push_back(change_of(key, found == before.end() ? nullptr : &found->second, &time));
    if (const double ratio = difference.changes.back().ratio; ratio > 0) logs += std::log(ratio), ++both;
  }
  for (const auto& [key, time] : before) {
    if (!after.contains(key)) difference.changes.push_back(change_of(key, &time, nullptr));
  }
  if (both > 0) difference.geometric_mean = std::exp(logs / static_cast<double>(both));
  std::stable_sort(
      difference.changes.begin(), difference.changes.end(), [](const WinnerChange& a, const WinnerChange& b) {
        const auto size = [](const WinnerChange& c) { return c.ratio > 0 ? std::abs(std::log(c.ratio)) : -1; };
        return size(a) > size(b);
      });
  return difference;
}

}  // namespace v1
}  // namespace leanattn
