// paper.hpp -- the LeanAttention paper's sweeps on this GPU: which points, their speed-ups over FlashAttention-2 and
// FlashDecoding, and the summary beside the paper's numbers. Plain data and pure functions but for run_paper(), which
// is bench()'s kind of call: one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/bench.hpp"
#include "tuner/statistics.hpp"

namespace leanattn {
inline namespace v1 {

/// One attention of the sweeps: every query head has its own KV head.
struct PaperPoint {
  int head_dim = 128;
  int heads = 32;
  int batch = 1;
  std::int64_t context = 1024;

  auto operator<=>(const PaperPoint&) const = default;
};
DecodeProblem problem_of(const PaperPoint& point);
Shape shape_of(const PaperPoint& point);

/// What one line of a figure varies; everything else stays as in `fixed`.
enum class PaperAxis { context, heads, batch };
std::string_view to_string(PaperAxis axis);
struct PaperLine {
  PaperAxis axis = PaperAxis::context;
  PaperPoint fixed;
  std::vector<std::int64_t> values;

  PaperPoint at(std::int64_t value) const;
};

/// The figures' lines: context 1k to 512k, heads 8 to 128, batch 1 to 16, at head_dim 64 and 128.
std::vector<PaperLine> paper_lines();
/// Each point of the lines once, as far as its K and V take at most half of `memory_bytes`. Coarse before fine in every
/// line, so that a budget that runs out leaves every figure, with fewer points.
std::vector<PaperPoint> paper_points(const std::vector<PaperLine>& lines, std::int64_t memory_bytes);

/// A measured point. Samples in microseconds a launch; sample i of each mode is from the same round.
struct PaperMeasurement {
  PaperPoint point;
  BenchLine lean, flash_attention2, flash_decoding, read;

  PairedRatio over_flash_attention2() const { return paired_ratio(flash_attention2.samples_us, lean.samples_us); }
  PairedRatio over_flash_decoding() const { return paired_ratio(flash_decoding.samples_us, lean.samples_us); }
};

/// A point that was not measured, and why.
struct PaperGap {
  PaperPoint point;
  std::string reason;  ///< "budget", "interrupted", or what went wrong

  bool operator==(const PaperGap&) const = default;
};

struct PaperReport {
  std::string device;      ///< name
  std::string arch;        ///< "sm_90a"
  std::string provenance;  ///< the JSON object of device, driver and compiler
  std::string revision;    ///< of the generator
  std::vector<PaperMeasurement> measurements;
  std::vector<PaperGap> missing;
};

/// Speed-ups of lean over one of the other modes.
struct SpeedUps {
  std::size_t points = 0;
  double average = 0;  ///< arithmetic mean, as papers quote it
  double geometric_mean = 0;
  double largest = 0, smallest = 0;
  PaperPoint largest_at, smallest_at;
};
struct PaperSummary {
  SpeedUps over_flash_attention2, over_flash_decoding;
};
PaperSummary summarize(const PaperReport& report);

/// Published for an A100: the first version of the paper and its later abstract (arXiv 2405.10480).
struct PublishedSpeedUp {
  const char* what;
  const char* over;  ///< "fa2" or "fd"
  double speed_up;
};
const std::vector<PublishedSpeedUp>& published_speed_ups();

struct PaperOptions {
  int device = 0;
  std::chrono::milliseconds budget{240'000};  ///< no point is begun after it
  int rounds = 15;
};
using PaperProgress = std::function<void(std::size_t done, std::size_t total, const PaperPoint& next)>;

/// Every point is checked against the oracle before it is timed. Stops at the budget or at `cancel` with what has been
/// measured. Errors: as bench(), but that a kernel which does not compile, or too little memory, costs the point alone.
Result<PaperReport> run_paper(const PaperOptions& options, TuningDb& db, CubinCache* cubins,
                              const PaperProgress& progress, const std::atomic<bool>* cancel);

/// With provenance and raw samples; paper_from_json() reads it. Errors of the latter: invalid_argument.
std::string to_json(const PaperReport& report);
Result<PaperReport> paper_from_json(std::string_view json);
/// Summary beside the paper's numbers and a table of all points. `figures`: paths of SVG files to show, may be empty.
std::string to_markdown(const PaperReport& report, const std::vector<std::string>& figures);

/// A figure's name ("speed-up-over-context") and the SVG document, for every axis that has points.
struct PaperFigure {
  std::string name, title, svg;
};
std::vector<PaperFigure> paper_figures(const PaperReport& report);

}  // namespace v1
}  // namespace leanattn
