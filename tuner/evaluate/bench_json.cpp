// bench_json.cpp -- writes bench reports as JSON, with all that is needed to judge and repeat them.
#include "tuner/evaluate/bench_json.hpp"

#include "generator/generator.hpp"
#include "tuner/evaluate/device_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

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
      "CUDA graphs are replayed. With the cold policy, launches take turns over copies of K and V that together exceed "
      "three times the L2. Every round times all modes, in rotated order. Times are microseconds per launch: the "
      "median, the median absolute deviation, and a 95 % bootstrap interval of the median. With pdl in the problem, "
      "launches whose config has pdl follow each other with programmatic dependent launch.";
  document["reports"] = nlohmann::ordered_json::array();
  for (const BenchReport& report : reports) {
    nlohmann::ordered_json json{{"device", device_json(report.device)},
                                {"problem", nlohmann::ordered_json::parse(to_json(report.problem))},
                                {"shape", nlohmann::ordered_json::parse(to_json(report.shape))},
                                {"policy", to_string(report.policy)},
                                {"interrupted", report.interrupted}};
    json["lines"] = nlohmann::ordered_json::array();
    for (const BenchLine& line : report.lines) json["lines"].push_back(detail::line_json(line));
    document["reports"].push_back(std::move(json));
  }
  return document.dump(2);
}

}  // namespace v1
}  // namespace leanattn
