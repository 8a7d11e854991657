// explain_svg.cpp -- draws a panel for each schedule, with a row for each SM and a bar for each segment.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tuner/report/explain.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// Geometry in SVG user units.
constexpr int kWidth = 760;
constexpr int kLeft = 64;
constexpr int kRight = 16;
constexpr int kPanelHead = 44;
constexpr int kPanelGap = 18;
constexpr int kFoot = 40;
constexpr int kMostHeight = 2400;
constexpr std::size_t kMostBars = 20'000;

// Dark text (#16181d) on these fills has a contrast above 4.5, on light and on dark pages.
constexpr std::array<const char*, 8> kFills = {"#7cb5ec", "#f7b267", "#90d19b", "#d3a4e8",
                                               "#f2938c", "#7fd1cf", "#e3cf57", "#b8b8c8"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string label(const Schedule& schedule, const ScheduleSegment& segment) {
  const ScheduleInput& input = schedule.input;
  std::string text = input.context_lengths.size() > 1 ? fmt::format("r{} ", segment.request) : std::string();
  text += fmt::format("head {}", segment.kv_head);
  if (input.row_blocks > 1 || is_of_chunk(input, segment)) text += fmt::format(" rows {}", segment.row_block);
  return text;
}

std::string_view unit_of(const ScheduleInput& input) {
  return !input.query_tokens.empty() && input.ragged.tile_positions > 1 ? "tile positions" : "LeanTiles";
}

/// The share of a row's height that a bar has: as many query rows as the output tile has, but not less than can be
/// seen.
double height_of(const ScheduleInput& input, const ScheduleSegment& segment) {
  constexpr double kLeast = 0.6;
  if (segment.rows == 0) return 1;
  return std::max(kLeast, static_cast<double>(segment.rows) / input.ragged.rows);
}

struct Panel {
  const Schedule& schedule;
  int top;
  double row_height;
  double units_per_position;
};

void append_panel(std::string& svg, const Panel& panel) {
  const Schedule& schedule = panel.schedule;
  const ScheduleInput& input = schedule.input;
  svg += fmt::format("<text class=\"t\" x=\"{}\" y=\"{}\">{}</text>\n", kLeft, panel.top + 16, escaped(input.title));
  svg += fmt::format(
      "<text class=\"s\" x=\"{}\" y=\"{}\">{} CTAs on {} SMs, busy {:.0f}%, done after {} {}, {} partials to "
      "merge</text>\n",
      kLeft, panel.top + 34, input.grid, input.sm_count, 100 * schedule.busy, schedule.longest, unit_of(input),
      schedule.partials);
  const double top = panel.top + kPanelHead;
  const double bar = panel.row_height > 6 ? panel.row_height - 3 : panel.row_height * 0.8;
  // Every row is named if there is room, else only the first and the last one.
  for (int sm = 0; sm < input.sm_count; ++sm) {
    const double y = top + sm * panel.row_height;
    svg += fmt::format("<rect class=\"i\" x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\"/>\n", kLeft, y,
                       kWidth - kLeft - kRight, bar);
    if (panel.row_height >= 12 || sm == 0 || sm + 1 == input.sm_count) {
      svg += fmt::format("<text class=\"s\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">SM {}</text>\n", kLeft - 8,
                         y + bar / 2 + 4, sm);
    }
  }
  for (const ScheduleSegment& segment : schedule.segments) {
    const double x = kLeft + static_cast<double>(segment.start) * panel.units_per_position;
    const double height = bar * height_of(input, segment), y = top + segment.sm * panel.row_height + bar - height;
    const double unit = segment.positions * panel.units_per_position;
    const double width = static_cast<double>(segment.width()) * panel.units_per_position;
    const char* fill = kFills[static_cast<std::size_t>(segment.output_tile) % kFills.size()];
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\">"
        "<title>CTA {}: {}, LeanTiles {} to {}{}</title></rect>\n",
        segment.host && !segment.whole ? "h" : "b", x, y, width, height, fill, segment.cta,
        input.query_tokens.empty() ? label(schedule, segment) : where(schedule, segment), segment.first_tile,
        segment.first_tile + segment.tiles - 1, segment.host ? ", host" : "");
    // The borders of LeanTiles are drawn as long as they can be told apart.
    if (unit >= 8 && segment.tiles > 1) {
      std::string path;
      for (std::int64_t tile = 1; tile < segment.tiles; ++tile) {
        path += fmt::format("M{:.2f} {:.1f}v{:.1f}", x + static_cast<double>(tile) * unit, y, height);
      }
      svg += fmt::format("<path class=\"k\" d=\"{}\"/>\n", path);
    }
    const std::string text = label(schedule, segment);
    if (panel.row_height >= 12 && width > 7.0 * static_cast<double>(text.size())) {
      svg += fmt::format("<text class=\"l\" x=\"{:.2f}\" y=\"{:.1f}\">{}</text>\n", x + 6, y + height / 2 + 4, text);
    }
  }
}

}  // namespace

Result<std::string> to_svg(std::span<const Schedule> schedules) {
  if (schedules.empty()) return fail(ErrorCode::invalid_argument, "there is no schedule to draw");
  std::int64_t longest = 1;
  int rows = 0;
  std::size_t bars = 0;
  for (const Schedule& schedule : schedules) {
    longest = std::max(longest, schedule.longest);
    rows += std::min(schedule.input.sm_count, kMostHeight);
    bars += schedule.segments.size();
  }
  if (bars > kMostBars || rows > kMostHeight / 4) {
    return fail(ErrorCode::unsupported, fmt::format("{} bars in {} rows are more than an SVG can show", bars, rows),
                "Draw fewer requests, heads or SMs, or use --format text or --json.");
  }
  const double row_height = std::clamp(static_cast<double>(kMostHeight) / rows, 4.0, 24.0);

  // All panels have the same scale, so that their lengths can be compared.
  const double units_per_position = static_cast<double>(kWidth - kLeft - kRight) / static_cast<double>(longest);
  std::string body;
  int top = 8;
  for (const Schedule& schedule : schedules) {
    append_panel(body, {schedule, top, row_height, units_per_position});
    top += kPanelHead + static_cast<int>(schedule.input.sm_count * row_height) + kPanelGap;
  }
  const ScheduleInput& first = schedules.front().input;
  const auto note = [&](std::string_view text) {
    body += fmt::format("<text class=\"s\" x=\"{}\" y=\"{}\">{}</text>\n", kLeft, top + 8, text);
  };
  constexpr std::string_view kKey = "a colour is an output tile; an outline marks its host CTA where there is a fix-up";
  if (first.query_tokens.empty()) {
    note(fmt::format("time, in LeanTiles of {} tokens \xE2\x86\x92 {}", first.tile, kKey));
  } else {
    const RaggedRows& ragged = first.ragged;
    note(
        fmt::format("time, in tile positions; a LeanTile of {} tokens has {}, or {} where few of {} query rows exist "
                    "\xE2\x86\x92",
                    first.tile, ragged.tile_positions, ragged.light_tile_positions, ragged.rows));
    top += 16;
    note(fmt::format("{}; a low bar has few query rows", kKey));
  }
  const int height = top + kFoot;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
             "role=\"img\" "
             "aria-label=\"Which CTA computes which LeanTiles\">\n"
             "<style>\n"
             "text{{font-family:system-ui,sans-serif;font-size:12px;fill:#3b4048}}\n"
             ".t{{font-size:15px;font-weight:600;fill:#16181d}}\n"
             ".l{{font-size:11px;fill:#16181d}}\n"
             ".i{{fill:#8884;stroke:none}}\n"
             ".b{{stroke:none}}\n"
             ".k{{stroke:#16181d;stroke-opacity:.25;stroke-width:1;fill:none}}\n"
             ".h{{stroke:#16181d;stroke-width:1.6}}\n"
             "@media "
             "(prefers-color-scheme:dark){{text{{fill:#aab2bd}}.t{{fill:#e9edf2}}.l{{fill:#16181d}}.h{{stroke:#e9edf2}}"
             "}}\n"
             "</style>\n",
             kWidth, height) +
         body + "</svg>\n";
}

}  // namespace v1
}  // namespace leanattn
