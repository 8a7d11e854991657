// paper_markdown.cpp -- writes the paper's sweeps as Markdown and draws their figures.
#include <fmt/format.h>

#include "tuner/evaluate/paper.hpp"
#include "tuner/report/escape.hpp"
#include "tuner/report/figures.hpp"
#include "tuner/report/names.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using namespace detail;

std::string point_name(const PaperPoint& point) {
  return fmt::format("{} heads, head_dim {}, batch {}, context {}", point.heads, point.head_dim, point.batch,
                     size_name(point.context));
}

std::string summary_row(const char* name, const char* key, const SpeedUps& speed_ups) {
  std::string published;
  for (const PublishedSpeedUp& one : published_speed_ups()) {
    if (std::string_view(key) == one.over)
      published += fmt::format("{}{:.2f} {}", published.empty() ? "" : "; ", one.speed_up, one.what);
  }
  return fmt::format("| {} | {} | {:.2f} | {:.2f} | {:.2f} at {} | {:.2f} at {} | {} |\n", name, speed_ups.points,
                     speed_ups.average, speed_ups.geometric_mean, speed_ups.largest, point_name(speed_ups.largest_at),
                     speed_ups.smallest, point_name(speed_ups.smallest_at), published);
}

}  // namespace

std::string to_markdown(const PaperReport& report, const std::vector<std::string>& figures) {
  const PaperSummary summary = summarize(report);
  std::string text = fmt::format(
      "## The LeanAttention paper's sweeps\n\nMeasured on {} ({}) with library {}. All attentions are bf16 with one KV "
      "head for each query head. Each time is of replays of a CUDA graph with cold L2, and every round times all "
      "modes. "
      "Each mode has its own best kernel and grid out of the same kernels: FlashAttention-2 has one CTA for each "
      "output "
      "tile, FlashDecoding the best number of CTAs for each, and lean any grid.\n\n"
      "| speed-up over | points | average | geometric mean | largest | smallest | published for an A100 "
      "|\n|---|--:|--:|--:|---|---|---|\n",
      escape_markdown(report.device), escape_markdown(report.arch), escape_markdown(report.revision));
  text += summary_row("FlashAttention-2", "fa2", summary.over_flash_attention2);
  text += summary_row("FlashDecoding", "fd", summary.over_flash_decoding);
  for (const std::string& figure : figures) text += fmt::format("\n![{0}]({0})\n", figure);
  text +=
      "\n| heads | head_dim | batch | context | lean us | FA2 us | FD us | read limit us | over FA2 | 95% | over FD | "
      "95% | "
      "lean grid | FD grid | lean kernel |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n";
  for (const PaperMeasurement& m : report.measurements) {
    const PairedRatio fa2 = m.over_flash_attention2(), fd = m.over_flash_decoding();
    text += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {:.2f} | {:.2f} to {:.2f} | {:.3f} | {:.3f} to {:.3f} | {} | {} | "
        "`{}` |\n",
        m.point.heads, m.point.head_dim, m.point.batch, size_name(m.point.context), us_name(m.lean.median_us),
        us_name(m.flash_attention2.median_us), us_name(m.flash_decoding.median_us), us_name(m.read.median_us),
        fa2.ratio, fa2.low, fa2.high, fd.ratio, fd.low, fd.high, m.lean.config.grid, m.flash_decoding.config.grid,
        kernel_name(m.lean.config.spec));
  }
  if (!report.missing.empty()) text += "\nThese points were not measured:\n\n";
  for (const PaperGap& gap : report.missing)
    text += fmt::format("- {}: {}\n", point_name(gap.point), escape_markdown(gap.reason));
  return text;
}

std::vector<PaperFigure> paper_figures(const PaperReport& report) {
  const std::vector<SpeedUpPoint> points = speed_up_points(report);
  std::vector<PaperFigure> figures;
  for (const PaperAxis axis : {PaperAxis::context, PaperAxis::heads, PaperAxis::batch}) {
    for (const auto& [baseline, name] :
         {std::pair(Baseline::flash_attention2, "fa2"), std::pair(Baseline::flash_decoding, "fd")}) {
      const Chart chart = speed_up_chart(points, axis, baseline);
      if (chart.series.empty()) continue;
      figures.push_back({fmt::format("{}-over-{}", name, to_string(axis)), chart.label, svg_document(chart)});
    }
  }
  return figures;
}

}  // namespace v1
}  // namespace leanattn
