// bench_json.cpp -- bench reports as JSON, with everything needed to judge and repeat them.
#include "tuner/bench_json.hpp"

#include "generator/generator.hpp"
#include "runtime/lookup.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

nlohmann::ordered_json device_json(const DeviceFacts& device) {
  const Environment environment = current_environment(device);
  return {{"name", device.name},
          {"arch", to_string(device.arch)},
          {"sm_count", device.sm_count},
          {"l2_bytes", device.l2_bytes},
          {"memory_bytes", device.memory_bytes},
          {"ecc", device.ecc},
          {"clock_khz", environment.clock_khz},
          {"memory_clock_khz", environment.memory_clock_khz},
          {"power_limit_mw", environment.power_limit_mw},
          {"driver_version", environment.driver_version},
          {"driver_release", environment.driver_release},
          {"nvrtc_version", environment.nvrtc_version}};
}

nlohmann::ordered_json line_json(const BenchLine& line) {
  nlohmann::ordered_json json{{"mode", line.mode}, {"provenance", line.provenance}};
  if (line.mode != "read") {
    json["kernel"] = kernel_name(line.config.spec);
    json["config"] = nlohmann::ordered_json::parse(to_json(line.config));
  }
  json["median_us"] = line.median_us;
  json["mad_us"] = line.mad_us;
  json["low_us"] = line.low_us;
  json["high_us"] = line.high_us;
  json["gb_per_s"] = line.gb_per_s;
  json["ratio_to_read"] = line.ratio_to_read;
  json["samples_us"] = line.samples_us;
  return json;
}

}  // namespace detail

std::string to_json(const std::vector<BenchReport>& reports) {
  nlohmann::ordered_json document{{"schema_version", 1}, {"generator_revision", generator_revision()}};
  document["method"] =
      "CUDA graph replay, KV rotated over at least three times the L2 (cold policy), modes interleaved in rotated "
      "rounds; median, median "
      "absolute deviation, 95 % bootstrap interval of the median; microseconds a launch. With pdl in the "
      "problem, launches follow each other with programmatic dependent launch, except those of the read limit";
  document["reports"] = nlohmann::ordered_json::array();
  for (const BenchReport& report : reports) {
    nlohmann::ordered_json json{{"device", detail::device_json(report.device)},
                                {"problem", nlohmann::ordered_json::parse(to_json(report.problem))},
                                {"shape", nlohmann::ordered_json::parse(to_json(report.shape))},
                                {"policy", report.policy == L2Policy::cold ? "cold" : "warm"},
                                {"interrupted", report.interrupted}};
    json["lines"] = nlohmann::ordered_json::array();
    for (const BenchLine& line : report.lines) json["lines"].push_back(detail::line_json(line));
    document["reports"].push_back(std::move(json));
  }
  return document.dump(2);
}

}  // namespace v1
}  // namespace leanattn
