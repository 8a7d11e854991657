// paper_json.cpp -- writes the paper's sweeps as JSON and reads samples and device back. Speed-ups and summary follow
// from the samples.
#include <fmt/format.h>

#include <cmath>

#include "generator/parse_json.hpp"
#include "tuner/evaluate/bench_json.hpp"
#include "tuner/evaluate/paper.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKind = "leanattn bench --paper";

Json json_of(const PaperPoint& point) {
  return {{"head_dim", point.head_dim}, {"heads", point.heads}, {"batch", point.batch}, {"context", point.context}};
}

Json json_of(const PairedRatio& ratio) { return {{"ratio", ratio.ratio}, {"low", ratio.low}, {"high", ratio.high}}; }

Json json_of(const SpeedUps& speed_ups) {
  return {{"points", speed_ups.points},
          {"average", speed_ups.average},
          {"geometric_mean", speed_ups.geometric_mean},
          {"largest", speed_ups.largest},
          {"largest_at", json_of(speed_ups.largest_at)},
          {"smallest", speed_ups.smallest},
          {"smallest_at", json_of(speed_ups.smallest_at)}};
}

Json json_of(const PaperMeasurement& measured) {
  return {{"point", json_of(measured.point)},
          {"over_fa2", json_of(measured.over_flash_attention2())},
          {"over_fd", json_of(measured.over_flash_decoding())},
          {"lines", Json::array({detail::line_json(measured.lean), detail::line_json(measured.flash_attention2),
                                 detail::line_json(measured.flash_decoding), detail::line_json(measured.read)})}};
}

PaperPoint read_point(const Json& json) {
  return {.head_dim = read_key(json, "head_dim", require_integer<int, Json>),
          .heads = read_key(json, "heads", require_integer<int, Json>),
          .batch = read_key(json, "batch", require_integer<int, Json>),
          .context = read_key(json, "context", require_integer<std::int64_t, Json>)};
}

Result<BenchLine> read_line(const Json& json) {
  BenchLine line;
  line.mode = require<std::string>(json, "mode");
  line.provenance = require<std::string>(json, "provenance");
  if (line.mode != "read") {
    const Result<Config> config = config_from_json(json.at("config").dump());
    if (!config) return tl::unexpected(config.error());
    line.config = *config;
  }
  line.median_us = require<double>(json, "median_us"), line.mad_us = require<double>(json, "mad_us");
  line.low_us = require<double>(json, "low_us"), line.high_us = require<double>(json, "high_us");
  line.gb_per_s = require<double>(json, "gb_per_s"), line.ratio_to_read = require<double>(json, "ratio_to_read");
  line.samples_us = require<std::vector<double>>(json, "samples_us");
  for (const double sample : line.samples_us) {
    if (!std::isfinite(sample) || !(sample > 0))
      return fail(ErrorCode::invalid_argument, fmt::format("a sample is {} us", sample));
  }
  if (line.samples_us.empty()) return fail(ErrorCode::invalid_argument, "a line has no samples");
  return line;
}

Result<PaperMeasurement> read_measurement(const Json& json) {
  PaperMeasurement measured;
  measured.point = read_point(json.at("point"));
  if (const auto valid = validate(problem_of(measured.point), shape_of(measured.point)); !valid)
    return tl::unexpected(valid.error());
  std::size_t index = 0;
  for (BenchLine* line : {&measured.lean, &measured.flash_attention2, &measured.flash_decoding, &measured.read}) {
    Result<BenchLine> read = read_line(json.at("lines").at(index++));
    if (!read) return tl::unexpected(read.error());
    *line = std::move(*read);
    if (line->samples_us.size() != measured.lean.samples_us.size())
      return fail(ErrorCode::invalid_argument, "the modes have different numbers of samples");
  }
  return measured;
}

}  // namespace

std::string to_json(const PaperReport& report) {
  const PaperSummary summary = summarize(report);
  Json published = Json::array();
  for (const PublishedSpeedUp& one : published_speed_ups())
    published.push_back({{"gpu", "A100"}, {"over", one.over}, {"what", one.what}, {"speed_up", one.speed_up}});
  Json measurements = Json::array(), missing = Json::array();
  for (const PaperMeasurement& measured : report.measurements) measurements.push_back(json_of(measured));
  for (const PaperGap& gap : report.missing) {
    missing.push_back(json_of(gap.point));
    missing.back()["reason"] = gap.reason;
  }
  const Json document{
      {"schema_version", 1},
      {"kind", kKind},
      {"generator_revision", report.revision},
      {"device", Json::parse(report.provenance, nullptr, /*allow_exceptions=*/false)},
      {"method",
       "CUDA graphs are replayed, and launches take turns over copies of K and V that together exceed three times the "
       "L2. Every round times all modes, in rotated order. All are bf16 with one KV head for each query head. Times "
       "are "
       "microseconds per launch. Each mode has its own best kernel and grid out of the same kernels: fa2 with one CTA "
       "for each output tile, fd with the best number of CTAs for each, lean with any grid. Speed-ups are medians of "
       "paired ratios with 95 % bootstrap intervals."},
      {"summary",
       {{"over_fa2", json_of(summary.over_flash_attention2)}, {"over_fd", json_of(summary.over_flash_decoding)}}},
      {"published", std::move(published)},
      {"measurements", std::move(measurements)},
      {"missing", std::move(missing)}};
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<PaperReport> paper_from_json(std::string_view json) {
  // parse_json() refuses text that is nested too deeply. The second parse keeps the order of the keys.
  const Json document = parse_json(json).is_discarded() ? Json() : Json::parse(json);
  if (!document.is_object() || document.value("kind", Json()) != kKind)
    return fail(ErrorCode::invalid_argument, "the file is not the JSON of `leanattn bench --paper`");
  if (document.value("schema_version", Json()) != 1)
    return fail(ErrorCode::invalid_argument, "its schema_version is not 1");
  PaperReport report;
  try {
    const Json& device = document.at("device");
    report.device = require<std::string>(device, "name"), report.arch = require<std::string>(device, "arch");
    report.provenance = device.dump();
    report.revision = require<std::string>(document, "generator_revision");
    for (const Json& one : document.at("measurements")) {
      Result<PaperMeasurement> measured = read_measurement(one);
      if (!measured)
        return fail(ErrorCode::invalid_argument,
                    fmt::format("measurement {}: {}", report.measurements.size(), measured.error().message));
      report.measurements.push_back(std::move(*measured));
    }
    for (const Json& gap : document.at("missing"))
      report.missing.push_back({read_point(gap), require<std::string>(gap, "reason")});
  } catch (const std::exception& error) {
    return fail(ErrorCode::invalid_argument, fmt::format("the result is not complete: {}", json_reason(error)));
  }
  return report;
}

}  // namespace v1
}  // namespace leanattn
