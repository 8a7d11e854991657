// paper.hpp -- PaperReport: the LeanAttention paper's sweeps on this GPU, with speed-ups over FlashAttention-2 and
// FlashDecoding and a summary beside the paper's numbers. Plain data and pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/evaluate/bench.hpp"
#include "tuner/measure/statistics.hpp"

namespace leanattn {
inline namespace v1 {

/// One attention of the sweeps. Every query head has a KV head of its own.
struct PaperPoint {
  int head_dim = 128;
  int heads = 32;
  int batch = 1;
  std::int64_t context = 1024;

  auto operator<=>(const PaperPoint&) const = default;
};
DecodeProblem problem_of(const PaperPoint& point);
Shape shape_of(const PaperPoint& point);

/// What varies along a line of a figure.
enum class PaperAxis { context, heads, batch };
std::string_view to_string(PaperAxis axis);
/// One line of a figure: `axis` takes the `values`, and everything else is as in `fixed`.
struct PaperLine {
  PaperAxis axis = PaperAxis::context;
  PaperPoint fixed;
  std::vector<std::int64_t> values;

  PaperPoint at(std::int64_t value) const;
};

/// The lines of the figures: contexts of 1k to 512k, 8 to 128 heads and batches of 1 to 16, for head sizes 64 and 128.
std::vector<PaperLine> paper_lines();
/// The different points of the lines whose K and V take at most half of `memory_bytes`. In every line, points far apart
/// come first, so that a budget that runs out leaves every figure with fewer points.
std::vector<PaperPoint> paper_points(const std::vector<PaperLine>& lines, std::int64_t memory_bytes);

/// A measured point. Samples are microseconds per launch, and sample i of every mode is from the same round.
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
  std::string device;      ///< its name
  std::string arch;        ///< "sm_90a"
  std::string provenance;  ///< the text of device_json()
  std::string revision;    ///< of the generator
  std::vector<PaperMeasurement> measurements;
  std::vector<PaperGap> missing;
  std::vector<std::string> warnings = {};  ///< of winners that could not be read; not in the JSON
};

/// The speed-ups of lean over one of the other modes.
struct SpeedUps {
  std::size_t points = 0;
  double average = 0;  ///< the arithmetic mean, which papers quote
  double geometric_mean = 0;
  double largest = 0, smallest = 0;
  PaperPoint largest_at, smallest_at;
};
struct PaperSummary {
  SpeedUps over_flash_attention2, over_flash_decoding;
};
PaperSummary summarize(const PaperReport& report);

/// A speed-up on an A100 that the paper's first version or its later abstract reports (arXiv 2405.10480).
struct PublishedSpeedUp {
  const char* what;
  const char* over;  ///< "fa2" or "fd"
  double speed_up;
};
const std::vector<PublishedSpeedUp>& published_speed_ups();

/// The report as JSON with device and all samples, and its reader. Errors of the reader: invalid_argument.
std::string to_json(const PaperReport& report);
Result<PaperReport> paper_from_json(std::string_view json);
/// The summary beside the paper's numbers, and a table of all points. `figures` are paths of SVG files to show.
std::string to_markdown(const PaperReport& report, const std::vector<std::string>& figures);

/// A figure as an SVG document. The name, such as "fa2-over-context", serves as a file name.
struct PaperFigure {
  std::string name, title, svg;
};
/// The figures of both baselines over every axis that has points.
std::vector<PaperFigure> paper_figures(const PaperReport& report);

}  // namespace v1
}  // namespace leanattn
