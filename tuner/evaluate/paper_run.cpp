// paper_run.cpp -- measures the paper's sweeps on a GPU, point after point until the budget is spent.
#include "tuner/evaluate/paper_run.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "generator/generator.hpp"
#include "tuner/evaluate/device_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// There are about ninety points, so fewer kernels and grids are tried than in a tuning session. All modes choose among
// the same ones.
constexpr int kKernels = 4, kLeanGrids = 3;

Result<BenchLine> line_of(const BenchReport& report, const char* mode) {
  const auto found =
      std::find_if(report.lines.begin(), report.lines.end(), [&](const BenchLine& line) { return line.mode == mode; });
  if (found == report.lines.end()) return fail(ErrorCode::internal, std::string("bench() did not time ") + mode);
  return *found;
}

Result<BenchReport> measure(const PaperPoint& point, const PaperOptions& options,
                            const std::optional<std::filesystem::path>& directory, CubinCache* cubins,
                            const std::atomic<bool>* cancel) {
  const BenchOptions bench_options{.device = options.device,
                                   .rank_devices = {},
                                   .policy = L2Policy::cold,
                                   .rounds = options.rounds,
                                   .modes = {},
                                   .requests = {},
                                   .kernels = kKernels,
                                   .lean_grids = kLeanGrids};
  return bench(problem_of(point), shape_of(point), bench_options, directory, cubins, cancel);
}

Result<PaperMeasurement> measurement_of(const PaperPoint& point, const BenchReport& report) {
  PaperMeasurement measured;
  measured.point = point;
  for (const auto& [mode, line] : {std::pair("lean", &measured.lean), std::pair("fa2", &measured.flash_attention2),
                                   std::pair("fd", &measured.flash_decoding), std::pair("read", &measured.read)}) {
    Result<BenchLine> found = line_of(report, mode);
    if (!found) return tl::unexpected(found.error());
    *line = std::move(*found);
  }
  return measured;
}

/// Whether an error concerns only the point at which it happened.
bool costs_one_point(ErrorCode code) {
  return code == ErrorCode::out_of_memory || code == ErrorCode::compile_failed || code == ErrorCode::kernel_rejected ||
         code == ErrorCode::unsupported;
}

}  // namespace

std::optional<Error> measure_points(PaperReport& report, const std::vector<PaperPoint>& points,
                                    const PaperOptions& options, const PaperMeasure& bench_point,
                                    const PaperProgress& progress, const std::atomic<bool>* cancel) {
  const auto ends = std::chrono::steady_clock::now() + options.budget;
  std::optional<Error> failure;
  std::string ended;  // why no further point is begun
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (ended.empty() && cancel != nullptr && cancel->load()) ended = "interrupted";
    if (ended.empty() && std::chrono::steady_clock::now() >= ends) ended = "budget";
    if (!ended.empty()) {
      report.missing.push_back({points[i], ended});
      continue;
    }
    if (progress) progress(i, points.size(), points[i]);
    const Result<BenchReport> benched = bench_point(points[i]);
    if (benched) report.warnings = benched->warnings;
    if (benched ? benched->interrupted : benched.error().code == ErrorCode::interrupted) {
      // Rounds that were measured before it are too few to stand beside those of the other points.
      ended = "interrupted";
      report.missing.push_back({points[i], ended});
      continue;
    }
    Result<PaperMeasurement> measured =
        benched.and_then([&](const BenchReport& lines) { return measurement_of(points[i], lines); });
    if (measured) {
      report.measurements.push_back(std::move(*measured));
      continue;
    }
    report.missing.push_back({points[i], measured.error().message});
    if (costs_one_point(measured.error().code)) continue;
    failure = measured.error();
    ended = "an earlier point had an error";
  }
  // The report has the points in the order of the figures.
  std::sort(report.measurements.begin(), report.measurements.end(),
            [](const PaperMeasurement& a, const PaperMeasurement& b) { return a.point < b.point; });
  return failure;
}

Result<PaperRun> run_paper(const PaperOptions& options, const std::optional<std::filesystem::path>& directory,
                           CubinCache* cubins, const PaperProgress& progress, const std::atomic<bool>* cancel) {
  const Result<DeviceFacts> device = device_facts(options.device);
  if (!device) return tl::unexpected(device.error());
  PaperRun run{.report = {.device = device->name,
                          .arch = to_string(device->arch),
                          .provenance = device_json(*device).dump(-1, ' ', false,
                                                                  nlohmann::ordered_json::error_handler_t::replace),
                          .revision = generator_revision(),
                          .measurements = {},
                          .missing = {}},
               .error = {}};
  const auto bench_point = [&](const PaperPoint& point) { return measure(point, options, directory, cubins, cancel); };
  run.error = measure_points(run.report, paper_points(paper_lines(), device->memory_bytes), options, bench_point,
                             progress, cancel);
  return run;
}

}  // namespace v1
}  // namespace leanattn
