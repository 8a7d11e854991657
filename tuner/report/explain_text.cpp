// explain_text.cpp -- writes a row of letters for each SM, and what the letters mean.
#include <fmt/format.h>

#include <algorithm>

#include "tuner/report/explain.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kMostColumns = 96;
constexpr int kMostRows = 64;

char letter(std::int64_t output_tile) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  return kLetters[static_cast<std::size_t>(output_tile) % kLetters.size()];
}

std::string where(const Schedule& schedule, const ScheduleSegment& segment) {
  std::string text;
  if (schedule.input.context_lengths.size() > 1) text += fmt::format("request {}, ", segment.request);
  text += fmt::format("KV head {}", segment.kv_head);
  if (schedule.input.row_blocks > 1) text += fmt::format(", rows {}", segment.row_block);
  return text;
}

std::string one(const Schedule& schedule) {
  const ScheduleInput& input = schedule.input;
  const std::int64_t tiles_per_column = (schedule.longest + kMostColumns - 1) / kMostColumns;
  const std::int64_t columns = (schedule.longest + tiles_per_column - 1) / tiles_per_column;
  std::string text = fmt::format(
      "{}: {} CTAs on {} SMs, {} output tiles, {} LeanTiles of {} tokens\n"
      "  busy {:.1f}% of {} x {} LeanTiles; {} partials to merge, at most {} per output tile\n",
      input.title, input.grid, input.sm_count, schedule.output_tiles, schedule.lean_tiles, input.tile,
      100 * schedule.busy, input.sm_count, schedule.longest, schedule.partials, schedule.most_contributors);
  if (tiles_per_column > 1) text += fmt::format("  one letter is {} LeanTiles\n", tiles_per_column);

  const int rows = std::min(input.sm_count, kMostRows);
  std::vector<std::string> grid(static_cast<std::size_t>(rows), std::string(static_cast<std::size_t>(columns), '.'));
  for (const ScheduleSegment& segment : schedule.segments) {
    if (segment.sm >= rows) continue;
    const std::int64_t first = segment.start / tiles_per_column;
    const std::int64_t last = (segment.start + segment.tiles - 1) / tiles_per_column;
    std::string& row = grid[static_cast<std::size_t>(segment.sm)];
    for (std::int64_t column = first; column <= last; ++column) {
      row[static_cast<std::size_t>(column)] = letter(segment.output_tile);
    }
  }
  const std::size_t width = std::to_string(rows - 1).size();
  for (int sm = 0; sm < rows; ++sm) {
    text += fmt::format("  SM {:>{}} |{}|\n", sm, width, grid[static_cast<std::size_t>(sm)]);
  }
  if (rows < input.sm_count)
    text += fmt::format("  ... and {} more SMs; --json lists every segment\n", input.sm_count - rows);

  constexpr std::int64_t kMostLegends = 16;
  for (const ScheduleSegment& segment : schedule.segments) {
    if (!segment.host || segment.output_tile >= kMostLegends) continue;
    text += fmt::format("  {} = {}\n", letter(segment.output_tile), where(schedule, segment));
  }
  if (schedule.output_tiles > kMostLegends)
    text += fmt::format("  ... {} output tiles in all\n", schedule.output_tiles);
  return text;
}

}  // namespace

std::string to_text(std::span<const Schedule> schedules) {
  std::string text;
  for (const Schedule& schedule : schedules) text += fmt::format("{}{}", text.empty() ? "" : "\n", one(schedule));
  return text;
}

}  // namespace v1
}  // namespace leanattn
