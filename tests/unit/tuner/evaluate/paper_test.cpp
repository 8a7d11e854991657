// paper_test.cpp -- the points of the paper's sweeps and their order, what an interrupt and an error leave of them, and
// the summary, JSON and figures of a report.
#include "tuner/evaluate/paper.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/lookup/specs.hpp"
#include "tuner/evaluate/paper_run.hpp"

namespace leanattn {
namespace {

constexpr std::int64_t kH200 = 141'000'000'000, kGibibyte = 1 << 30;

BenchLine line(const char* mode, std::vector<double> samples, std::int64_t grid = 8) {
  BenchLine made;
  made.mode = mode, made.provenance = "test";
  made.config = {.spec = base_spec({9, 0, true}, problem_of({})), .grid = grid};
  made.median_us = samples[samples.size() / 2], made.samples_us = std::move(samples);
  return made;
}

PaperMeasurement measured(const PaperPoint& point, double fa2, double fd) {
  return {.point = point,
          .lean = line("lean", {10, 20, 10}),
          .flash_attention2 = line("fa2", {10 * fa2, 20 * fa2, 10 * fa2}),
          .flash_decoding = line("fd", {10 * fd, 20 * fd, 10 * fd}),
          .read = line("read", {9, 18, 9})};
}

PaperReport report_of(std::vector<PaperMeasurement> measurements) {
  return {.device = "GPU",
          .arch = "sm_90a",
          .provenance = R"({"name":"GPU","arch":"sm_90a"})",
          .revision = "r1",
          .measurements = std::move(measurements),
          .missing = {{.point = {.head_dim = 64, .heads = 8, .batch = 1, .context = 1024}, .reason = "budget"}}};
}

TEST(PaperPlan, CoversThePapersRanges) {
  const auto points = paper_points(paper_lines(), kH200);
  const auto has = [&](auto member, std::int64_t value) {
    return std::any_of(points.begin(), points.end(), [&](const PaperPoint& p) { return p.*member == value; });
  };
  for (const int head_dim : {64, 128}) EXPECT_TRUE(has(&PaperPoint::head_dim, head_dim));
  for (const int heads : {8, 16, 32, 56, 128}) EXPECT_TRUE(has(&PaperPoint::heads, heads)) << heads;
  for (const int batch : {1, 4, 16}) EXPECT_TRUE(has(&PaperPoint::batch, batch)) << batch;
  for (std::int64_t context = 1024; context <= 524288; context *= 2)
    EXPECT_TRUE(has(&PaperPoint::context, context)) << context;
  // The paper's largest speed-up is here.
  EXPECT_EQ(std::count(points.begin(), points.end(),
                       PaperPoint{.head_dim = 128, .heads = 16, .batch = 1, .context = 1 << 19}),
            1);
  for (const PaperPoint& point : points) EXPECT_TRUE(validate(problem_of(point), shape_of(point)));
}

TEST(PaperPlan, MeasuresEveryPointOnceAndOnlyWhatFits) {
  for (const std::int64_t memory : {kH200, 24 * kGibibyte, kGibibyte}) {
    const auto points = paper_points(paper_lines(), memory);
    EXPECT_EQ(std::set<PaperPoint>(points.begin(), points.end()).size(), points.size());
    EXPECT_FALSE(points.empty());
    for (const PaperPoint& point : points) EXPECT_LE(kv_bytes(problem_of(point), shape_of(point)), memory / 2);
  }
  EXPECT_LT(paper_points(paper_lines(), kGibibyte).size(), paper_points(paper_lines(), kH200).size());
}

TEST(PaperPlan, TwoFifthsOfThePointsStillSpanEveryLine) {
  const auto lines = paper_lines();
  const auto all = paper_points(lines, kH200);
  const std::set<PaperPoint> first(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() * 2 / 5));
  for (const PaperLine& line : lines) {
    EXPECT_TRUE(first.contains(line.at(line.values.front()))) << to_string(line.axis);
    EXPECT_TRUE(first.contains(line.at(line.values.back()))) << to_string(line.axis);
    const auto measured_of_line = std::count_if(line.values.begin(), line.values.end(),
                                                [&](std::int64_t value) { return first.contains(line.at(value)); });
    EXPECT_GE(measured_of_line, 3) << to_string(line.axis);
  }
}

constexpr PaperPoint kFirst{.heads = 8}, kSecond{.heads = 16}, kThird{.heads = 32}, kFourth{.heads = 56};

/// Measures four points, of which one answers as `answer` says.
std::optional<Error> measure_four(PaperReport& report, const PaperPoint& special,
                                  const std::function<Result<BenchReport>()>& answer,
                                  const std::atomic<bool>* cancel = nullptr) {
  const auto bench_point = [&](const PaperPoint& point) -> Result<BenchReport> {
    if (point == special) return answer();
    BenchReport benched;
    for (const char* mode : {"lean", "fa2", "fd", "read"}) benched.lines.push_back(line(mode, {10, 20, 10}));
    return benched;
  };
  return measure_points(report, {kFourth, kFirst, kSecond, kThird}, {}, bench_point, {}, cancel);
}

std::vector<PaperPoint> measured_points(const PaperReport& report) {
  std::vector<PaperPoint> points;
  for (const PaperMeasurement& measurement : report.measurements) points.push_back(measurement.point);
  return points;
}

TEST(PaperRun, AnErrorLeavesWhatWasMeasuredBeforeIt) {
  for (const ErrorCode code : {ErrorCode::launch_failed, ErrorCode::context_lost, ErrorCode::wrong_result}) {
    PaperReport report;
    const auto failure = measure_four(report, kSecond, [&] { return fail(code, "it failed"); });
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code, code);
    EXPECT_EQ(measured_points(report), (std::vector<PaperPoint>{kFirst, kFourth}));
    EXPECT_EQ(report.missing,
              (std::vector<PaperGap>{{kSecond, "it failed"}, {kThird, "an earlier point had an error"}}));
  }
}

TEST(PaperRun, AnErrorOfOnePointCostsThatPointOnly) {
  PaperReport report;
  EXPECT_FALSE(measure_four(report, kSecond, [] { return fail(ErrorCode::out_of_memory, "too large"); }));
  EXPECT_EQ(measured_points(report), (std::vector<PaperPoint>{kFirst, kThird, kFourth}));
  EXPECT_EQ(report.missing, (std::vector<PaperGap>{{kSecond, "too large"}}));
}

TEST(PaperRun, APointThatWasInterruptedBetweenItsRoundsIsMissing) {
  std::atomic<bool> cancel = false;
  PaperReport report;
  const auto after_one_round = [&]() -> Result<BenchReport> {
    cancel = true;
    BenchReport benched;
    for (const char* mode : {"lean", "fa2", "fd", "read"}) benched.lines.push_back(line(mode, {10}));
    benched.interrupted = true;
    return benched;
  };
  EXPECT_FALSE(measure_four(report, kSecond, after_one_round, &cancel));
  EXPECT_EQ(measured_points(report), (std::vector<PaperPoint>{kFirst, kFourth}));
  EXPECT_EQ(report.missing, (std::vector<PaperGap>{{kSecond, "interrupted"}, {kThird, "interrupted"}}));
}

TEST(PaperSummary, AveragesAndExtremesAreOfPairedRatios) {
  const PaperPoint a{.heads = 8}, b{.heads = 16}, c{.heads = 32};
  const PaperSummary summary = summarize(report_of({measured(a, 1, 1.1), measured(b, 4, 0.9), measured(c, 2, 1)}));
  const SpeedUps& fa2 = summary.over_flash_attention2;
  EXPECT_EQ(fa2.points, 3u);
  EXPECT_NEAR(fa2.average, 7.0 / 3, 1e-9);
  EXPECT_NEAR(fa2.geometric_mean, 2, 1e-9);
  EXPECT_NEAR(fa2.largest, 4, 1e-9);
  EXPECT_EQ(fa2.largest_at, b);
  EXPECT_NEAR(fa2.smallest, 1, 1e-9);
  EXPECT_EQ(fa2.smallest_at, a);
  EXPECT_EQ(summary.over_flash_decoding.smallest_at, b);
  EXPECT_NEAR(summary.over_flash_decoding.average, 1, 1e-9);
}

TEST(PaperSummary, OfNothingIsZero) {
  EXPECT_EQ(summarize(report_of({})).over_flash_attention2.points, 0u);
  EXPECT_EQ(summarize(report_of({})).over_flash_attention2.average, 0);
}

TEST(PaperJson, ComesBackWithItsSamples) {
  const PaperReport before = report_of({measured({.heads = 8}, 3, 1.25), measured({.heads = 16}, 2, 1.5)});
  const auto after = paper_from_json(to_json(before));
  ASSERT_TRUE(after) << after.error().message;
  ASSERT_EQ(after->measurements.size(), 2u);
  EXPECT_EQ(after->device, "GPU");
  EXPECT_EQ(after->measurements[1].point, before.measurements[1].point);
  EXPECT_EQ(after->measurements[0].flash_decoding.samples_us, before.measurements[0].flash_decoding.samples_us);
  EXPECT_EQ(after->measurements[0].lean.config, before.measurements[0].lean.config);
  EXPECT_EQ(after->missing, before.missing);
  EXPECT_EQ(to_json(*after), to_json(before));
  const auto document = nlohmann::json::parse(to_json(before));
  EXPECT_NEAR(document["summary"]["over_fa2"]["average"].get<double>(), 2.5, 1e-9);
  EXPECT_EQ(document["published"].size(), published_speed_ups().size());
}

TEST(PaperJson, DamageIsAnErrorThatSaysWhere) {
  const auto good = nlohmann::json::parse(to_json(report_of({measured({}, 3, 1.25)})));
  const auto message = [](const nlohmann::json& document) {
    const auto read = paper_from_json(document.dump());
    EXPECT_FALSE(read) << document.dump();
    return read ? std::string() : read.error().message;
  };
  for (const char* path : {"/measurements/0/lines/1/samples_us", "/measurements/0/lines/3",
                           "/measurements/0/point/heads", "/device/name"}) {
    nlohmann::json document = good;
    document[nlohmann::json::json_pointer(path)] = nullptr;
    EXPECT_FALSE(message(document).empty()) << path;
  }
  nlohmann::json document = good;
  document["measurements"][0]["lines"][1]["samples_us"] = {1.0, 2.0};
  EXPECT_NE(message(document).find("measurement 0: the modes have different numbers"), std::string::npos)
      << message(document);
  document["measurements"][0]["lines"][1]["samples_us"] = {1.0, -2.0, 3.0};
  EXPECT_NE(message(document).find("a sample is -2"), std::string::npos);
  document = good;
  document["kind"] = "something else";
  EXPECT_FALSE(message(document).empty());
}

TEST(PaperJson, AFileTooDeeplyNestedIsRefused) {
  constexpr std::size_t kDeep = 200'000;
  const std::string deep = std::string(kDeep, '[') + std::string(kDeep, ']');
  EXPECT_FALSE(paper_from_json(
      R"({"kind":"leanattn bench --paper","schema_version":1,"device":{"name":"","arch":"","x":)" + deep + "}}"));
}

TEST(PaperMarkdown, HasTheSummaryBesideThePublishedNumbers) {
  const std::string text = to_markdown(report_of({measured({.heads = 8}, 3, 1.25)}), {"fa2-over-heads.svg"});
  EXPECT_NE(text.find("| FlashAttention-2 | 1 | 3.00 | 3.00 | 3.00 at 8 heads"), std::string::npos) << text;
  EXPECT_NE(text.find("8.33 largest (16 heads, 512k)"), std::string::npos);
  EXPECT_NE(text.find("1.27 average"), std::string::npos);
  EXPECT_NE(text.find("(fa2-over-heads.svg)"), std::string::npos);
  EXPECT_NE(text.find("- 8 heads, head_dim 64, batch 1, context 1k: budget"), std::string::npos);
}

TEST(PaperFigures, ALineNeedsThreePoints) {
  const auto at = [](int heads) {
    return measured({.head_dim = 64, .heads = heads, .batch = 1, .context = 65536}, 2, 1.1);
  };
  EXPECT_TRUE(paper_figures(report_of({at(8), at(16)})).empty());
  const auto figures = paper_figures(report_of({at(8), at(16), at(32)}));
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].name, "fa2-over-heads");
  EXPECT_EQ(figures[1].name, "fd-over-heads");
  for (const PaperFigure& figure : figures) {
    EXPECT_EQ(figure.svg.substr(0, 5), "<svg ");
    EXPECT_NE(figure.svg.find("prefers-color-scheme:dark"), std::string::npos);
    EXPECT_EQ(figure.svg.find("nan"), std::string::npos);
    std::size_t dots = 0;
    for (std::size_t i = figure.svg.find("<title>"); i != std::string::npos; i = figure.svg.find("<title>", i + 1))
      ++dots;
    EXPECT_EQ(dots, 3u);
  }
}

}  // namespace
}  // namespace leanattn
