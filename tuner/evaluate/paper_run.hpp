// paper_run.hpp -- PaperRun: the paper's sweeps as far as they got, so that an error near their end does not cost what
// was measured before it. One call at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "tuner/evaluate/paper.hpp"

namespace leanattn {
inline namespace v1 {

struct PaperOptions {
  int device = 0;
  std::chrono::milliseconds budget{240'000};  ///< the time after which no point is begun
  int rounds = 15;
};
using PaperProgress = std::function<void(std::size_t done, std::size_t total, const PaperPoint& next)>;

struct PaperRun {
  PaperReport report;
  std::optional<Error> error;  ///< that ended the sweeps; its point and those after it are missing in the report
};

/// Measures the points. Each is checked against the oracle before it is timed. When the budget is spent or `cancel` is
/// set, the report has the points that were measured. A kernel that does not compile, too little memory, or a baseline
/// that has no grid costs its point only. Errors: those that there are before the first point; later ones are in the
/// result.
Result<PaperRun> run_paper(const PaperOptions& options, const std::optional<std::filesystem::path>& directory,
                           CubinCache* cubins, const PaperProgress& progress, const std::atomic<bool>* cancel);

/// Times all modes at a point, as bench() does.
using PaperMeasure = std::function<Result<BenchReport>(const PaperPoint& point)>;
/// Measures the points in their order, and adds every one to the measurements of the report or to what is missing in
/// it. A point that was interrupted between its rounds is missing. Returns the error that ended the sweeps, if one did.
std::optional<Error> measure_points(PaperReport& report, const std::vector<PaperPoint>& points,
                                    const PaperOptions& options, const PaperMeasure& bench_point,
                                    const PaperProgress& progress, const std::atomic<bool>* cancel);

}  // namespace v1
}  // namespace leanattn
