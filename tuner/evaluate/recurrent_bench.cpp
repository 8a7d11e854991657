#include "tuner/evaluate/recurrent_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/recurrent/recurrent_choice.hpp"
#include "tuner/backend/recurrent_backend.hpp"
#include "tuner/evaluate/device_json.hpp"
#include "tuner/measure/graph_timer.hpp"
#include "tuner/measure/statistics.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kFewRounds = 5;           // of a preliminary race
constexpr std::size_t kMostTried = 12;  // lines of a sweep that are reported

/// What is timed.
struct TimedKernel {
  RecurrentBenchLine line;
  TimedGraph graph;
  std::vector<double> samples = {};
};

/// Times all entrants in so many rounds, the first of which changes from round to round.
Result<void> run_rounds(std::vector<TimedKernel>& entrants, int rounds, const Stream& stream,
                        const std::atomic<bool>* cancel) {
  GraphTimer timer;
  for (int round = 0; round < rounds; ++round) {
    if (cancel != nullptr && cancel->load()) return fail(ErrorCode::interrupted, "interrupted while it was measured");
    std::vector<const TimedGraph*> graphs;
    const auto at = [&](std::size_t i) { return (i + static_cast<std::size_t>(round)) % entrants.size(); };
    for (std::size_t i = 0; i < entrants.size(); ++i) graphs.push_back(&entrants[at(i)].graph);
    const auto us = timer.time(*graphs.back(), graphs, stream);
    if (!us) return tl::unexpected(us.error());
    for (std::size_t i = 0; i < entrants.size(); ++i) entrants[at(i)].samples.push_back((*us)[i]);
  }
  return {};
}

}  // namespace

Result<RecurrentBenchReport> recurrent_bench(const RecurrentProblem& problem, int batch,
                                             const RecurrentBenchOptions& options, CubinCache* cubins,
                                             const std::atomic<bool>* cancel) {
  if (auto ok = validate(problem); !ok) return tl::unexpected(ok.error());
  const auto device = device_facts(options.device);
  if (!device) return tl::unexpected(device.error());
  const auto backend = RecurrentBackend::create(*device, problem, options.policy, cubins);
  if (!backend) return tl::unexpected(backend.error());
  if (auto ok = (*backend)->begin_batch(batch); !ok) return tl::unexpected(ok.error());
  const Stream& stream = (*backend)->stream();
  const Rotation& rotation = (*backend)->rotation();
  RecurrentBenchReport report{.device = *device,
                              .problem = problem,
                              .batch = batch,
                              .traffic_bytes = state_traffic(problem, batch),
                              .copies = rotation.copies,
                              .stays_in_l2 = rotation.stays_in_l2};
  const int slots = problem.snapshots ? problem.tokens : 1;

  std::vector<RecurrentKernel> kernels;
  kernels.reserve(1 + (options.sweep ? recurrent_search_space(device->arch, problem).size() : 0));
  const auto entrant = [&](std::string mode, const RecurrentTunables& tunables) -> Result<TimedKernel> {
    auto kernel = (*backend)->prepare(tunables);
    if (!kernel) return tl::unexpected(kernel.error());
    const auto failure = (*backend)->check(*kernel);
    if (!failure) return tl::unexpected(failure.error());
    if (!failure->empty())
      return fail(ErrorCode::wrong_result, fmt::format("{}: {}", kernel_name(kernel->spec()), *failure),
                  "Run leanattn verify --only recurrent to see whether other kernels are affected.");
    kernels.push_back(*std::move(kernel));
    const RecurrentKernel& kept = kernels.back();
    auto graph = (*backend)->graph(kept);
    if (!graph) return tl::unexpected(graph.error());
    return TimedKernel{
        {.mode = std::move(mode), .kernel = kernel_name(kept.spec()), .registers = kept.resources().registers},
        *std::move(graph)};
  };
  const auto copy_entrant = [&](std::string mode, int writes) -> Result<TimedKernel> {
    auto copy = (*backend)->fastest_copy(writes);
    if (!copy) return tl::unexpected(copy.error());
    return TimedKernel{{.mode = std::move(mode), .kernel = std::move(copy->variant.name)}, std::move(copy->graph)};
  };

  std::vector<TimedKernel> entrants;
  auto lean = entrant("lean", recurrent_launch_order(*device, problem, batch, options.winners).front().spec.tunables);
  if (!lean) return tl::unexpected(lean.error());
  entrants.push_back(*std::move(lean));
  std::vector<TimedKernel> tried;
  if (options.sweep) {
    for (const RecurrentTunables& tunables : recurrent_search_space(device->arch, problem)) {
      auto made = entrant("tried", tunables);
      if (!made && made.error().code == ErrorCode::kernel_rejected) continue;
      if (!made) return tl::unexpected(made.error());
      tried.push_back(*std::move(made));
    }
    if (auto ok = run_rounds(tried, kFewRounds, stream, cancel); !ok) return tl::unexpected(ok.error());
    std::sort(tried.begin(), tried.end(),
              [](const TimedKernel& a, const TimedKernel& b) { return median(a.samples) < median(b.samples); });
    entrants.push_back({tried.front().line, std::move(tried.front().graph)});
    entrants.back().line.mode = "best";
    tried.erase(tried.begin());
    if (tried.size() > kMostTried) tried.erase(tried.begin() + kMostTried, tried.end());
  }
  const std::size_t copy_at = entrants.size();
  auto copy = copy_entrant("copy", 1);
  if (!copy) return tl::unexpected(copy.error());
  entrants.push_back(*std::move(copy));
  if (slots > 1) {
    auto traffic = copy_entrant("traffic", slots);
    if (!traffic) return tl::unexpected(traffic.error());
    entrants.push_back(*std::move(traffic));
  }
  if (auto ok = run_rounds(entrants, options.rounds, stream, cancel); !ok) return tl::unexpected(ok.error());

  const std::vector<double> copy_us = entrants[copy_at].samples, traffic_us = entrants.back().samples;
  for (TimedKernel& each : tried) entrants.push_back(std::move(each));
  for (TimedKernel& each : entrants) {
    const Summary summary = summarize(each.samples);
    RecurrentBenchLine& line = each.line;
    line.median_us = summary.median, line.low_us = summary.low, line.high_us = summary.high;
    const std::int64_t bytes = line.mode == "copy" ? state_bytes(problem) * 2 * batch : report.traffic_bytes;
    line.gb_per_s = static_cast<double>(bytes) / (summary.median * 1e3);
    const bool paired = line.mode != "tried";  // the others were timed in rounds of their own
    const auto ratio = [&](const std::vector<double>& to) {
      return paired ? paired_ratio(each.samples, to).ratio : independent_ratio(each.samples, to).ratio;
    };
    line.ratio_to_copy = ratio(copy_us), line.ratio_to_traffic = ratio(traffic_us);
    line.samples_us = std::move(each.samples);
    report.lines.push_back(std::move(line));
  }
  return report;
}

std::string to_json(const std::vector<RecurrentBenchReport>& reports) {
  nlohmann::ordered_json document{{"schema_version", 1}};
  document["method"] =
      "CUDA graphs are replayed. Launches take turns over states that together exceed four times the L2. Every round "
      "times all kernels, in rotated order. Times are microseconds per launch.";
  document["reports"] = nlohmann::ordered_json::array();
  for (const RecurrentBenchReport& report : reports) {
    nlohmann::ordered_json json{{"device", device_json(report.device)},
                                {"problem", nlohmann::ordered_json::parse(to_json(report.problem))},
                                {"batch", report.batch},
                                {"traffic_bytes", report.traffic_bytes},
                                {"copies", report.copies},
                                {"stays_in_l2", report.stays_in_l2}};
    json["lines"] = nlohmann::ordered_json::array();
    for (const RecurrentBenchLine& line : report.lines) {
      json["lines"].push_back({{"mode", line.mode},
                               {"kernel", line.kernel},
                               {"registers", line.registers},
                               {"median_us", line.median_us},
                               {"low_us", line.low_us},
                               {"high_us", line.high_us},
                               {"gb_per_s", line.gb_per_s},
                               {"ratio_to_copy", line.ratio_to_copy},
                               {"ratio_to_traffic", line.ratio_to_traffic},
                               {"samples_us", line.samples_us}});
    }
    document["reports"].push_back(std::move(json));
  }
  return document.dump(2);
}

}  // namespace v1
}  // namespace leanattn
