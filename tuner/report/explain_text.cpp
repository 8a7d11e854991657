// explain_text.cpp -- writes a row of letters for each SM, and what the letters mean.
#include <fmt/format.h>

#include <algorithm>

#include "tuner/report/explain.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kMostColumns = 96;
constexpr int kMostRows = 64;

/// Capitals and then others; of requests with query tokens of their own, capitals for chunks and small letters for
/// decodes.
char letter(const ScheduleInput& input, const ScheduleSegment& segment) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  constexpr std::size_t kAlphabet = 26;
  const auto output = static_cast<std::size_t>(segment.output_tile);
  if (input.query_tokens.empty()) return kLetters[output % kLetters.size()];
  return kLetters[output % kAlphabet + (is_of_chunk(input, segment) ? 0 : kAlphabet)];
}

std::string one(const Schedule& schedule) {
  const ScheduleInput& input = schedule.input;
  const std::int64_t per_column = (schedule.longest + kMostColumns - 1) / kMostColumns;
  const std::int64_t columns = (schedule.longest + per_column - 1) / per_column;
  const bool weighted = input.ragged.tile_positions > 1 && !input.query_tokens.empty();
  const char* const unit = weighted ? "tile positions" : "LeanTiles";
  std::string text = fmt::format(
      "{}: {} CTAs on {} SMs, {} output tiles, {} LeanTiles of {} tokens\n"
      "  busy {:.1f}% of {} x {} {}; {} partials to merge, at most {} per output tile\n",
      input.title, input.grid, input.sm_count, schedule.output_tiles, schedule.lean_tiles, input.tile,
      100 * schedule.busy, input.sm_count, schedule.longest, unit, schedule.partials, schedule.most_contributors);
  if (weighted)
    text += fmt::format(
        "  a LeanTile has {} tile positions, {} where at most half of {} rows exist; {} lie before each "
        "output tile\n",
        input.ragged.tile_positions, input.ragged.light_tile_positions, input.ragged.rows,
        input.ragged.segment_cost * input.ragged.tile_positions);
  if (per_column > 1) text += fmt::format("  one letter is {} {}\n", per_column, unit);

  const int rows = std::min(input.sm_count, kMostRows);
  std::vector<std::string> grid(static_cast<std::size_t>(rows), std::string(static_cast<std::size_t>(columns), '.'));
  for (const ScheduleSegment& segment : schedule.segments) {
    if (segment.sm >= rows) continue;
    const std::int64_t first = segment.start / per_column;
    const std::int64_t last = (segment.start + segment.width() - 1) / per_column;
    std::string& row = grid[static_cast<std::size_t>(segment.sm)];
    for (std::int64_t column = first; column <= last; ++column) {
      row[static_cast<std::size_t>(column)] = letter(input, segment);
    }
  }
  const std::size_t width = std::to_string(rows - 1).size();
  for (int sm = 0; sm < rows; ++sm) {
    text += fmt::format("  SM {:>{}} |{}|\n", sm, width, grid[static_cast<std::size_t>(sm)]);
  }
  if (rows < input.sm_count)
    text += fmt::format("  ... and {} more SMs; --json lists every segment\n", input.sm_count - rows);

  // The first ones, of chunks and of others.
  constexpr int kMostLegends = 16;
  const bool any_chunks = std::any_of(schedule.segments.begin(), schedule.segments.end(),
                                      [&](const ScheduleSegment& segment) { return is_of_chunk(input, segment); });
  const int most = any_chunks ? kMostLegends / 2 : kMostLegends;
  int chunks = 0, others = 0;
  for (const ScheduleSegment& segment : schedule.segments) {
    if (!segment.host) continue;
    int& legends = is_of_chunk(input, segment) ? chunks : others;
    if (legends++ < most) text += fmt::format("  {} = {}\n", letter(input, segment), where(schedule, segment));
  }
  if (chunks > most || others > most) text += fmt::format("  ... {} output tiles in all\n", schedule.output_tiles);
  if (any_chunks) text += "  capitals are chunks, small letters decodes\n";
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
