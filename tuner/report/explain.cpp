// explain.cpp -- cuts the line into segments and lays the CTAs on the SMs.
#include "tuner/report/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <queue>
#include <utility>

#include "generator/integers.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

#include "templates/line/schedule.cuh"

constexpr std::int64_t kMostSegments = 1'000'000;

bool is_ragged(const ScheduleInput& input) { return !input.query_tokens.empty(); }

int row_blocks_of(const ScheduleInput& input, std::size_t request) {
  if (!is_ragged(input)) return input.row_blocks;
  return static_cast<int>(lean_row_blocks(input.query_tokens[request] * input.ragged.group, input.ragged.rows));
}

/// An output tile of a request.
struct OutputTile {
  std::int64_t tiles = 0;
  int rows = 0, positions = 1;
};
OutputTile output_tile(const ScheduleInput& input, std::size_t request, int row_block) {
  const int context = input.context_lengths[request];
  if (!is_ragged(input)) return {.tiles = lean_tiles_of(context, input.tile)};
  const RaggedRows& ragged = input.ragged;
  const int tokens = input.query_tokens[request], rows = tokens * ragged.group - row_block * ragged.rows;
  const int end =
      ragged.causal ? lean_block_end(context - tokens, tokens, row_block, ragged.rows, ragged.group) : context;
  std::int64_t tiles = lean_tiles_of(end, input.tile);
  if (ragged.window_tiles > 0) tiles = ragged.sink_tiles + std::min<std::int64_t>(tiles, ragged.window_tiles);
  return {.tiles = tiles,
          .rows = std::min(rows, ragged.rows),
          .positions = 2 * rows <= ragged.rows ? ragged.light_tile_positions : ragged.tile_positions};
}

/// Calls visit(request, kv_head, row_block, output tile) in the order of the line.
template <class Visit>
void for_each_output_tile(const ScheduleInput& input, Visit visit) {
  for (std::size_t request = 0; request < input.context_lengths.size(); ++request) {
    const int blocks = row_blocks_of(input, request);
    for (int kv_head = 0; kv_head < input.kv_heads; ++kv_head)
      for (int block = 0; block < blocks; ++block)
        visit(static_cast<int>(request), kv_head, block, output_tile(input, request, block));
  }
}

Result<void> validate_requests(const ScheduleInput& input) {
  if (input.context_lengths.empty()) return fail(ErrorCode::invalid_argument, "there is no request to draw");
  for (const int length : input.context_lengths) {
    if (length < 0)
      return fail(ErrorCode::invalid_argument, fmt::format("a context length is {}, but must not be negative", length));
  }
  if (!is_ragged(input)) return {};
  if (input.query_tokens.size() != input.context_lengths.size())
    return fail(ErrorCode::invalid_argument, fmt::format("there are {} numbers of query tokens for {} requests",
                                                         input.query_tokens.size(), input.context_lengths.size()));
  constexpr int kMostTokens = 1 << 17;
  for (const int tokens : input.query_tokens) {
    if (tokens < 0 || tokens > kMostTokens)
      return fail(ErrorCode::invalid_argument, fmt::format("a request has {} query tokens", tokens),
                  fmt::format("Give 0 to {}.", kMostTokens));
  }
  if (std::all_of(input.query_tokens.begin(), input.query_tokens.end(), [](int tokens) { return tokens == 0; }))
    return fail(ErrorCode::invalid_argument, "no request has a query token, so there is nothing to draw");
  return {};
}

Result<void> validate_input(const ScheduleInput& input) {
  const auto below_one = [](const char* what, std::int64_t value) {
    return fail(ErrorCode::invalid_argument, fmt::format("{} is {}, but must be at least 1", what, value));
  };
  if (auto valid = validate_requests(input); !valid) return valid;
  if (input.kv_heads < 1) return below_one("the number of KV heads", input.kv_heads);
  if (input.row_blocks < 1) return below_one("the number of row blocks", input.row_blocks);
  if (input.tile < 1) return below_one("the tile", input.tile);
  if (input.grid < 1) return below_one("the grid", input.grid);
  if (input.ctas_per_output_tile < 0)
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} CTAs of an output tile were asked for", input.ctas_per_output_tile));
  if (input.sm_count < 1) return below_one("the number of SMs", input.sm_count);
  const std::int64_t outputs = output_tiles_on_line(input);
  if (outputs > kMostSegments - std::min(input.grid, kMostSegments)) {
    return fail(ErrorCode::unsupported,
                fmt::format("{} CTAs over {} output tiles give more than a million segments", input.grid, outputs),
                "Draw a smaller batch or grid.");
  }
  if (input.ctas_per_output_tile > 0 && input.grid != outputs * input.ctas_per_output_tile) {
    return fail(ErrorCode::invalid_argument, fmt::format("a grid of {} CTAs is not {} for each of {} output tiles",
                                                         input.grid, input.ctas_per_output_tile, outputs));
  }
  return {};
}

/// Tile positions before each output tile.
std::int64_t empty_positions(const ScheduleInput& input) {
  return is_ragged(input) ? std::int64_t{input.ragged.segment_cost} * input.ragged.tile_positions : 0;
}

/// Runs the CTAs in order, each on the SM that is free first, and fills in where and when every segment runs.
void assign_sms(Schedule& schedule) {
  using Free = std::pair<std::int64_t, int>;  // (when, SM)
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (int sm = 0; sm < schedule.input.sm_count; ++sm) free.emplace(0, sm);
  auto segment = schedule.segments.begin();
  std::int64_t busy = 0;
  while (segment != schedule.segments.end()) {
    auto [now, sm] = free.top();
    free.pop();
    const std::int64_t cta = segment->cta;
    for (; segment != schedule.segments.end() && segment->cta == cta; ++segment) {
      if (segment->host) now += empty_positions(schedule.input);
      segment->sm = sm;
      segment->start = now;
      now += segment->width();
      busy += segment->width();
    }
    schedule.longest = std::max(schedule.longest, now);
    free.emplace(now, sm);
  }
  schedule.busy = static_cast<double>(busy) /
                  (static_cast<double>(schedule.longest) * static_cast<double>(schedule.input.sm_count));
}

}  // namespace

bool is_of_chunk(const ScheduleInput& input, const ScheduleSegment& segment) {
  return is_ragged(input) && input.query_tokens[static_cast<std::size_t>(segment.request)] > 1;
}

std::string where(const Schedule& schedule, const ScheduleSegment& segment) {
  const ScheduleInput& input = schedule.input;
  const auto request = static_cast<std::size_t>(segment.request);
  std::string text;
  if (input.context_lengths.size() > 1 || is_ragged(input)) text += fmt::format("request {}", segment.request);
  if (is_ragged(input)) text += fmt::format(" ({} of {})", input.query_tokens[request], input.context_lengths[request]);
  text += fmt::format("{}KV head {}", text.empty() ? "" : ", ", segment.kv_head);
  if (row_blocks_of(input, request) > 1) text += fmt::format(", rows {}", segment.row_block);
  return text;
}

std::int64_t output_tiles_on_line(const ScheduleInput& input) {
  std::int64_t total = 0;
  for (std::size_t request = 0; request < input.context_lengths.size(); ++request)
    total = saturating_sum(total, saturating_product(input.kv_heads, row_blocks_of(input, request)));
  return total;
}

std::int64_t lean_tiles_on_line(const ScheduleInput& input) {
  std::int64_t total = 0;
  for_each_output_tile(input, [&](int, int, int, const OutputTile& output) { total += output.tiles; });
  return total;
}

Result<std::int64_t> grid_for_mode(std::string_view mode, std::int64_t output_tiles, std::int64_t lean_tiles,
                                   int sm_count) {
  if (mode == "fa2") return output_tiles;
  if (mode == "fd") return output_tiles * std::max<std::int64_t>(1, sm_count / output_tiles);
  if (mode == "lean") return std::min<std::int64_t>(sm_count, lean_tiles);
  return fail(ErrorCode::invalid_argument, fmt::format("'{}' is not a mode", mode), "Give lean, fa2, fd or all.");
}

Result<Schedule> make_schedule(const ScheduleInput& input) {
  if (const Result<void> valid = validate_input(input); !valid) return tl::unexpected(valid.error());
  Schedule schedule;
  schedule.input = input;
  const std::int64_t empty = empty_positions(input);
  std::int64_t positions = 0;
  for_each_output_tile(input, [&](int, int, int, const OutputTile& output) {
    schedule.lean_tiles += output.tiles;
    positions += empty + output.tiles * output.positions;
  });
  if (positions > std::int64_t{(std::int64_t{1} << 30) - 1}) {
    return fail(
        ErrorCode::unsupported,
        fmt::format("a line of {} LeanTiles is too long, because it must have fewer than 2^30", schedule.lean_tiles),
        "Draw a larger tile or a smaller batch.");
  }
  const auto total = static_cast<unsigned>(positions), grid = static_cast<unsigned>(input.grid);
  const LeanSplit split = lean_split(total, grid, lean_reciprocal(grid));

  std::int64_t line = 0;  // the first position of the present output tile
  unsigned cta = 0;
  const auto sharing = static_cast<unsigned>(input.ctas_per_output_tile);
  for_each_output_tile(input, [&](int request, int kv_head, int row_block, const OutputTile& output) {
    const std::int64_t first = line + empty;
    // Where the range of a CTA ends on the line.
    const auto range_end = [&](unsigned c) {
      if (sharing == 0) return std::int64_t{lean_range_end(split, c, grid, total)};
      const auto tiles = static_cast<unsigned>(output.tiles);
      const LeanSplit own = lean_split(tiles, sharing, lean_reciprocal(sharing));
      return first + std::int64_t{lean_range_end(own, c % sharing, sharing, tiles)} * output.positions;
    };
    std::int64_t contributors = 0;
    if (sharing > 0) cta = static_cast<unsigned>(schedule.output_tiles) * sharing;
    for (std::int64_t done = 0; done < output.tiles;) {
      // A LeanTile is of the range that has its first position.
      const std::int64_t at = first + done * output.positions;
      while (range_end(cta) <= at) ++cta;
      const std::int64_t count =
          std::min(output.tiles - done, divide_up(range_end(cta) - at, std::int64_t{output.positions}));
      schedule.segments.push_back({.cta = cta,
                                   .output_tile = schedule.output_tiles,
                                   .request = request,
                                   .kv_head = kv_head,
                                   .row_block = row_block,
                                   .first_tile = done,
                                   .tiles = count,
                                   .host = done == 0,
                                   .whole = count == output.tiles,
                                   .rows = output.rows,
                                   .positions = output.positions});
      done += count;
      ++contributors;
    }
    if (contributors > 1) schedule.partials += contributors;
    schedule.most_contributors = std::max(schedule.most_contributors, contributors);
    line = first + output.tiles * output.positions;
    ++schedule.output_tiles;
  });
  assign_sms(schedule);
  return schedule;
}

std::string to_json(std::span<const Schedule> schedules) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Schedule& schedule : schedules) {
    nlohmann::ordered_json segments = nlohmann::ordered_json::array();
    for (const ScheduleSegment& segment : schedule.segments) {
      segments.push_back({{"cta", segment.cta},
                          {"request", segment.request},
                          {"kv_head", segment.kv_head},
                          {"row_block", segment.row_block},
                          {"output_tile", segment.output_tile},
                          {"first_tile", segment.first_tile},
                          {"tiles", segment.tiles},
                          {"host", segment.host},
                          {"sm", segment.sm},
                          {"start", segment.start}});
      if (is_ragged(schedule.input))
        segments.back()["rows"] = segment.rows, segments.back()["positions"] = segment.positions;
    }
    list.push_back({{"title", schedule.input.title},
                    {"context_lengths", schedule.input.context_lengths},
                    {"kv_heads", schedule.input.kv_heads},
                    {"row_blocks", schedule.input.row_blocks},
                    {"tile", schedule.input.tile},
                    {"grid", schedule.input.grid},
                    {"sms", schedule.input.sm_count},
                    {"output_tiles", schedule.output_tiles},
                    {"lean_tiles", schedule.lean_tiles},
                    {"longest", schedule.longest},
                    {"partials", schedule.partials},
                    {"most_contributors", schedule.most_contributors},
                    {"busy", schedule.busy},
                    {"segments", std::move(segments)}});
    if (!is_ragged(schedule.input)) continue;
    list.back()["query_tokens"] = schedule.input.query_tokens;
    list.back()["segment_cost"] = schedule.input.ragged.segment_cost;
  }
  return nlohmann::ordered_json{{"schema_version", 1}, {"schedules", std::move(list)}}.dump(2) + "\n";
}

}  // namespace v1
}  // namespace leanattn
