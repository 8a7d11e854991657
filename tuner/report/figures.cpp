// figures.cpp -- puts a report's numbers into series of points.
#include "tuner/report/figures.hpp"
#include "tuner/report/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr std::size_t kMostLines = 8, kFewestPoints = 3;

std::string heads_name(const DecodeProblem& problem) {
  return problem.q_heads == problem.kv_heads ? std::to_string(problem.q_heads)
                                             : fmt::format("{}/{}", problem.q_heads, problem.kv_heads);
}

/// What a name says of the L2 policy: nothing of a cold L2, which is the usual one.
const char* policy_suffix(L2Policy policy) { return policy == L2Policy::cold ? "" : " warm"; }

/// problem_name() without its "32/8 x ", which may be on the axis.
std::string name_without_heads(const DecodeProblem& problem, L2Policy policy) {
  const std::string name = problem_name(problem);
  const std::size_t at = name.find(" x ");
  return "d " + name.substr(at + 3) + policy_suffix(policy);
}

double x_of(const SpeedUpPoint& point, PaperAxis axis) {
  switch (axis) {
    case PaperAxis::context: return static_cast<double>(point.context);
    case PaperAxis::heads: return point.q_heads;
    case PaperAxis::batch: return point.batch;
  }
  return 0;
}

/// The name of a line: everything that its points have in common. If heads are on the axis, it has the group.
std::string line_name(const SpeedUpPoint& point, PaperAxis axis) {
  switch (axis) {
    case PaperAxis::context: return fmt::format("{} heads, {}, batch {}", point.heads, point.problem, point.batch);
    case PaperAxis::heads: {
      const std::size_t slash = point.heads.find('/');
      const int group = slash == std::string::npos ? 1 : point.q_heads / std::stoi(point.heads.substr(slash + 1));
      return fmt::format("{}{}, batch {} x {}", point.problem, group > 1 ? fmt::format(", group {}", group) : "",
                         point.batch, size_name(point.context));
    }
    case PaperAxis::batch:
      return fmt::format("{} heads, {}, context {}", point.heads, point.problem, size_name(point.context));
  }
  return {};
}

TimeRatio measured_ratio(const PairedRatio& ratio) {
  return {.ratio = ratio.ratio, .low = ratio.pairs > 1 ? ratio.low : 0, .high = ratio.pairs > 1 ? ratio.high : 0};
}

}  // namespace

std::vector<SpeedUpPoint> speed_up_points(const DeviceReport& device) {
  std::vector<SpeedUpPoint> points;
  for (const ReportedWinner& winner : device.winners) {
    if (!is_uniform(winner.shape)) continue;
    SpeedUpPoint point{.problem = name_without_heads(winner.problem, winner.policy),
                       .heads = heads_name(winner.problem),
                       .q_heads = winner.problem.q_heads,
                       .batch = winner.shape.batch,
                       .context = winner.shape.longest_context,
                       .over_fa2 = {},
                       .over_fd = {}};
    if (winner.flash_attention2) point.over_fa2 = winner.flash_attention2->over_winner;
    if (winner.flash_decoding) point.over_fd = winner.flash_decoding->over_winner;
    points.push_back(std::move(point));
  }
  return points;
}

std::vector<SpeedUpPoint> speed_up_points(const PaperReport& report) {
  std::vector<SpeedUpPoint> points;
  for (const PaperMeasurement& measured : report.measurements) {
    points.push_back({.problem = fmt::format("d {}", measured.point.head_dim),
                      .heads = std::to_string(measured.point.heads),
                      .q_heads = measured.point.heads,
                      .batch = measured.point.batch,
                      .context = measured.point.context,
                      .over_fa2 = measured_ratio(measured.over_flash_attention2()),
                      .over_fd = measured_ratio(measured.over_flash_decoding())});
  }
  return points;
}

Chart speed_up_chart(std::span<const SpeedUpPoint> points, PaperAxis axis, Baseline baseline) {
  const bool fa2 = baseline == Baseline::flash_attention2;
  const char* const over = fa2 ? "FlashAttention-2" : "FlashDecoding";
  std::map<std::string, ChartSeries> lines;
  for (const SpeedUpPoint& point : points) {
    const TimeRatio& ratio = fa2 ? point.over_fa2 : point.over_fd;
    if (!ratio.known()) continue;
    const std::string name = line_name(point, axis);
    ChartSeries& line = lines[name];
    line.name = name;
    line.points.push_back(
        {.x = x_of(point, axis),
         .y = ratio.ratio,
         .low = ratio.low,
         .high = ratio.high,
         .title = fmt::format("{} heads, {}, batch {}, context {}: {} times", point.heads, point.problem, point.batch,
                              size_name(point.context), interval_name(ratio))});
  }
  const char* const titles[] = {"context length, tokens", "query heads", "batch"};
  Chart chart{.label = fmt::format("Speed-up over {} against {}", over, titles[static_cast<int>(axis)]),
              .x_title = titles[static_cast<int>(axis)],
              .y_title = fmt::format("times as fast as {}", over),
              .x_log = true,
              .y_log = true,
              .x_ticks = {},
              .most_y = 1.2,
              .reference = {{1.0, ""}},
              .series = {}};
  for (auto& [name, line] : lines) {
    if (line.points.size() >= kFewestPoints) chart.series.push_back(std::move(line));
  }
  std::stable_sort(chart.series.begin(), chart.series.end(),
                   [](const auto& a, const auto& b) { return a.points.size() > b.points.size(); });
  if (chart.series.size() > kMostLines) chart.series.resize(kMostLines);
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    chart.series[i].colour = static_cast<int>(i);
    std::stable_sort(chart.series[i].points.begin(), chart.series[i].points.end(),
                     [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  }
  chart.x_ticks = axis == PaperAxis::context ? size_ticks(chart.series) : value_ticks(chart.series);
  return chart;
}

Chart distance_chart(const DeviceReport& device) {
  Chart chart{.label = "The time of every winner over its read limit, against the bytes that it reads",
              .x_title = "bytes of K and V read",
              .y_title = "time over the read limit",
              .x_log = true,
              .y_log = true,
              .joined = false,
              .x_ticks = {},
              .most_y = 1.2,
              .reference = {{1.0, "read limit"}},
              .series = {}};
  double least = 1e300, most = 0;
  int colour = 0;
  for (const ProblemReport& group : device.problems) {
    ChartSeries series{
        .name = problem_name(group.problem) + policy_suffix(group.policy), .points = {}, .colour = colour};
    for (const std::size_t i : group.winners) {
      const ReportedWinner& winner = device.winners[i];
      if (winner.over_limit() <= 0) continue;
      const auto bytes = static_cast<double>(winner.kv_bytes);
      least = std::min(least, bytes), most = std::max(most, bytes);
      series.points.push_back(
          {.x = bytes,
           .y = winner.over_limit(),
           .title = fmt::format("{}, {}: {} us, {:.2f} times the limit; {}", series.name, shape_name(winner.shape),
                                us_name(winner.median_us), winner.over_limit(), why(winner, device.device))});
    }
    if (series.points.empty()) continue;
    ++colour;
    chart.series.push_back(std::move(series));
  }
  if (chart.series.size() > kMostLines) {  // more than there are colours; the titles of the dots name the problems
    ChartSeries all;
    for (const ChartSeries& one : chart.series)
      all.points.insert(all.points.end(), one.points.begin(), one.points.end());
    chart.series = {std::move(all)};
  }
  for (double tick = 1e3; tick <= most; tick *= 10) {
    if (tick >= least) chart.x_ticks.emplace_back(tick, bytes_name(static_cast<std::int64_t>(tick)));
  }
  return chart;
}

Chart progress_chart(const ReportedWinner& winner, Effort effort) {
  const bool trials = effort == Effort::trials;
  Chart chart{.label = trials ? "The best time so far against trials" : "The best time so far against seconds",
              .x_title = trials ? "trials" : "seconds since the first trial",
              .y_title = "best time so far, us",
              .x_log = trials,
              .y_log = true,
              .stepped = true,
              .height = 130,
              .x_ticks = {},
              .least_y = winner.median_us,
              .most_y = winner.median_us,
              .reference = {},
              .series = {}};
  ChartSeries series;
  for (const ProgressStep& step : winner.progress) {
    series.points.push_back(
        {.x = trials ? static_cast<double>(step.trials) : step.seconds,
         .y = step.best_us,
         .title = fmt::format("{} us after {} trials and {:.3g} s", us_name(step.best_us), step.trials, step.seconds)});
  }
  if (series.points.empty()) return chart;
  chart.series.push_back(std::move(series));
  chart.x_ticks = round_ticks(chart.series, chart.x_log);
  // What is far from the search's own times would press these together.
  constexpr double kFar = 2;
  const double slowest = chart.series.front().points.front().y;
  if (winner.read_limit_us * kFar > winner.median_us) chart.reference.emplace_back(winner.read_limit_us, "read limit");
  if (winner.default_config && winner.default_config->median_us < slowest * kFar)
    chart.reference.emplace_back(winner.default_config->median_us, "default");
  return chart;
}

Chart regret_chart(const RegretReport& report) {
  Chart chart{.label = "The regret of every held-out shape, the largest first",
              .x_title = "held-out shapes, the largest regret first",
              .y_title = "regret, per cent",
              .joined = false,
              .x_ticks = {},
              .least_y = 0,
              .most_y = 11,
              .reference = {{2.0, "2 %"}, {10.0, "10 %"}},
              .series = {}};
  ChartSeries series;
  for (const HeldOutCase& one : report.cases) {
    const auto rank = static_cast<double>(series.points.size() + 1);
    series.points.push_back({.x = rank,
                             .y = 100 * one.regret(),
                             .title = fmt::format("{}, {}: {:.2f} %, {}", problem_name(one.problem),
                                                  shape_name(one.shape), 100 * one.regret(), one.answer)});
  }
  chart.x_ticks = {{1, "1"}, {static_cast<double>(report.cases.size()), std::to_string(report.cases.size())}};
  chart.series.push_back(std::move(series));
  return chart;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
