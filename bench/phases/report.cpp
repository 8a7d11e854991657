#include "bench/phases/report.hpp"

#include <fmt/format.h>

#include "bench/phases/cta_moments.hpp"

namespace leanattn {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHead =
    R"(# Where the time of a launch goes

Measured on one {}, in microseconds, with a cold L2, by `bench_phases --db DIR --out DIR`.

## Merging across CTAs

The cost of the fix-up, which merges the partial results of the CTAs that share an output tile: the time of the whole kernel minus that of one that stops once its partial results are stored, with the 95 % bootstrap interval of the median. Each CTA has 256 tokens of 128 elements, and four query heads share a KV head. With `ticket` the last CTA to arrive merges all partial results of an output tile; with `wait` each CTA waits for the others' and merges a slice of the columns.

| CTAs of an output tile | ticket | wait |
|--:|--:|--:|
)";

constexpr const char* kLaunchList =
    R"(
## Tuned launches

*without merging* is the kernel that stops once its partial results are stored, and *with stamps* one whose CTAs write down when they reach each moment. The columns of moments have the times of the first, the middle and the last CTA, from the start of the launch's first CTA. A CTA is

- *placed* when it knows its range of tiles,
- *requested* when it has asked for the K and V that fit into its ring or registers,
- *streamed* when its first warp has attended to the last of its K and V,
- *gathered* when the states of all its warps are in shared memory,
- *finished* when its partial or final result is stored,
- *done* when nothing is left to do.

*spread* is how far the CTAs lie apart when they have gathered, as standard deviations: what a CTA is late by in every launch, and what changes from launch to launch.

)";

std::string fix_up_row(const Json& row) {
  const auto cost = [&](const char* form) {
    const Json& us = row.at("forms").at(form).at("cost_us");
    return fmt::format("{:.2f} [{:.2f}, {:.2f}]", us.at("median").get<double>(), us.at("low").get<double>(),
                       us.at("high").get<double>());
  };
  return fmt::format("| {} | {} | {} |\n", row.at("contributors").get<int>(), cost("ticket"), cost("wait"));
}

std::string launch_row(const Json& row) {
  const Json &problem = row.at("problem"), &shape = row.at("shape");
  const auto us = [&](const char* name) { return row.at(name).at("median").get<double>(); };
  std::string text =
      fmt::format("| {}, {}/{}, {}, {} | {:.4g} | `{}`, {}, {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |",
                  shape.at("batch").get<int>(), problem.at("q_heads").get<int>(), problem.at("kv_heads").get<int>(),
                  problem.at("head_dim").get<int>(), shape.at("longest_context").get<std::int64_t>(),
                  row.at("kv_bytes").get<double>() / 1e6, row.at("kernel").get<std::string>(),
                  row.at("config").at("grid").get<std::int64_t>(), row.at("provenance").get<std::string>(),
                  row.at("read_limit_us").get<double>(), us("us"), us("stopped_us"), us("stamped_us"));
  for (int moment = 1; moment < kMoments; ++moment) {
    std::string cell = " -";
    for (const Json& times : row.at("moments")) {
      if (times.at("moment") == to_string(static_cast<LeanMoment>(moment)))
        cell = fmt::format(" {:.2f}, {:.2f}, {:.2f}", times.at("earliest_ns").get<double>() / 1e3,
                           times.at("median_ns").get<double>() / 1e3, times.at("latest_ns").get<double>() / 1e3);
    }
    text += cell + " |";
  }
  if (!row.contains("gathered_spread_ns")) return text + " - |\n";
  const Json& spread = row.at("gathered_spread_ns");
  return text + fmt::format(" {:.2f}, {:.2f} |\n", spread.at("always").get<double>() / 1e3,
                            spread.at("now").get<double>() / 1e3);
}

}  // namespace

std::string phases_markdown(const Json& document) {
  std::string text = fmt::format(kHead, document.at("device").at("name").get<std::string>());
  for (const Json& row : document.at("fix_up")) text += fix_up_row(row);
  text += kLaunchList;
  text +=
      "| shape (B, Hq/Hkv, d, context) | KV MB | kernel, grid, provenance | read limit | us | without merging | "
      "with stamps |";
  std::string rule = "|---|--:|---|--:|--:|--:|--:|";
  for (int moment = 1; moment < kMoments; ++moment) {
    text += fmt::format(" {} |", to_string(static_cast<LeanMoment>(moment)));
    rule += "---|";
  }
  text += " spread: in every launch, changing |\n" + rule + "---|\n";
  for (const Json& row : document.at("launches")) text += launch_row(row);
  return text;
}

}  // namespace leanattn
