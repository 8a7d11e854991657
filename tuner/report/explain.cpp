// explain.cpp -- cuts the line into segments and lays the CTAs on the SMs.
#include "tuner/report/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <queue>
#include <utility>

namespace leanattn {
inline namespace v1 {
namespace {

#include "templates/line/schedule.cuh"

constexpr std::int64_t kMostSegments = 1'000'000;

Result<void> validate_input(const ScheduleInput& input) {
  const auto below_one = [](const char* what, std::int64_t value) {
    return fail(ErrorCode::invalid_argument, fmt::format("{} is {}, but must be at least 1", what, value));
  };
  if (input.context_lengths.empty()) return fail(ErrorCode::invalid_argument, "there is no request to draw");
  for (const int length : input.context_lengths) {
    if (length < 0)
      return fail(ErrorCode::invalid_argument, fmt::format("a context length is {}, but must not be negative", length));
  }
  if (input.kv_heads < 1) return below_one("the number of KV heads", input.kv_heads);
  if (input.row_blocks < 1) return below_one("the number of row blocks", input.row_blocks);
  if (input.tile < 1) return below_one("the tile", input.tile);
  if (input.grid < 1) return below_one("the grid", input.grid);
  if (input.ctas_per_output_tile < 0)
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} CTAs of an output tile were asked for", input.ctas_per_output_tile));
  if (input.sm_count < 1) return below_one("the number of SMs", input.sm_count);
  const std::int64_t per_request = std::int64_t{input.kv_heads} * input.row_blocks;
  const auto batch = static_cast<std::int64_t>(input.context_lengths.size());
  if (per_request > kMostSegments / batch || per_request * batch + input.grid > kMostSegments ||
      input.grid > kMostSegments) {
    return fail(ErrorCode::unsupported,
                fmt::format("{} CTAs over {} x {} output tiles give more than a million segments", input.grid, batch,
                            per_request),
                "Draw a smaller batch or grid.");
  }
  if (input.ctas_per_output_tile > 0 && input.grid != per_request * batch * input.ctas_per_output_tile) {
    return fail(ErrorCode::invalid_argument, fmt::format("a grid of {} CTAs is not {} for each of {} output tiles",
                                                         input.grid, input.ctas_per_output_tile, per_request * batch));
  }
  return {};
}

/// Runs the CTAs in order, each on the SM that is free first, and fills in where and when every segment runs.
void assign_sms(Schedule& schedule) {
  using Free = std::pair<std::int64_t, int>;  // (when, SM)
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (int sm = 0; sm < schedule.input.sm_count; ++sm) free.emplace(0, sm);
  auto segment = schedule.segments.begin();
  while (segment != schedule.segments.end()) {
    auto [now, sm] = free.top();
    free.pop();
    const std::int64_t cta = segment->cta;
    for (; segment != schedule.segments.end() && segment->cta == cta; ++segment) {
      segment->sm = sm;
      segment->start = now;
      now += segment->tiles;
    }
    schedule.longest = std::max(schedule.longest, now);
    free.emplace(now, sm);
  }
  schedule.busy = static_cast<double>(schedule.lean_tiles) /
                  (static_cast<double>(schedule.longest) * static_cast<double>(schedule.input.sm_count));
}

}  // namespace

std::int64_t lean_tiles_on_line(const ScheduleInput& input) {
  std::int64_t total = 0;
  for (const int length : input.context_lengths) total += lean_tiles_of(length, input.tile);
  return total * input.kv_heads * input.row_blocks;
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
  schedule.lean_tiles = lean_tiles_on_line(input);
  if (schedule.lean_tiles > std::int64_t{(std::int64_t{1} << 30) - 1}) {
    return fail(
        ErrorCode::unsupported,
        fmt::format("a line of {} LeanTiles is too long, because it must have fewer than 2^30", schedule.lean_tiles),
        "Draw a larger tile or a smaller batch.");
  }
  const auto total = static_cast<unsigned>(schedule.lean_tiles), grid = static_cast<unsigned>(input.grid);
  const LeanSplit split = lean_split(total, grid, lean_reciprocal(grid));

  std::int64_t line = 0;  // the first LeanTile of the present output tile
  unsigned cta = 0;
  const unsigned sharing = static_cast<unsigned>(input.ctas_per_output_tile);
  std::int64_t tiles_here = 0;  // LeanTiles of the present output tile
  // Where the range of a CTA ends on the line.
  const auto range_end = [&](unsigned c) {
    if (sharing == 0) return std::int64_t{lean_range_end(split, c, grid, total)};
    const auto tiles = static_cast<unsigned>(tiles_here);
    const LeanSplit own = lean_split(tiles, sharing, lean_reciprocal(sharing));
    return line + std::int64_t{lean_range_end(own, c % sharing, sharing, tiles)};
  };
  for (int request = 0; request < static_cast<int>(input.context_lengths.size()); ++request) {
    const auto tiles =
        static_cast<std::int64_t>(lean_tiles_of(input.context_lengths[static_cast<std::size_t>(request)], input.tile));
    for (int kv_head = 0; kv_head < input.kv_heads; ++kv_head) {
      for (int row_block = 0; row_block < input.row_blocks; ++row_block) {
        std::int64_t contributors = 0;
        tiles_here = tiles;
        if (sharing > 0) cta = static_cast<unsigned>(schedule.output_tiles) * sharing;
        for (std::int64_t done = 0; done < tiles;) {
          while (range_end(cta) <= line + done) ++cta;
          const std::int64_t count = std::min(tiles - done, range_end(cta) - (line + done));
          schedule.segments.push_back({.cta = cta,
                                       .output_tile = schedule.output_tiles,
                                       .request = request,
                                       .kv_head = kv_head,
                                       .row_block = row_block,
                                       .first_tile = done,
                                       .tiles = count,
                                       .host = done == 0,
                                       .whole = count == tiles});
          done += count;
          ++contributors;
        }
        if (contributors > 1) schedule.partials += contributors;
        schedule.most_contributors = std::max(schedule.most_contributors, contributors);
        line += tiles;
        ++schedule.output_tiles;
      }
    }
  }
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
  }
  return nlohmann::ordered_json{{"schema_version", 1}, {"schedules", std::move(list)}}.dump(2) + "\n";
}

}  // namespace v1
}  // namespace leanattn
