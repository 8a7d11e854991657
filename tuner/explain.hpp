// explain.hpp -- who computes what: a stream-K schedule laid out on SMs over time, as text, SVG or JSON. Pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// One schedule to draw. Lengths and tile in tokens.
struct ScheduleInput {
  std::string title;
  std::vector<int> context_lengths;  ///< [batch]; a zero-length request still has one empty LeanTile per output tile
  int kv_heads = 1;
  int row_blocks = 1;     ///< row blocks of one KV head's group
  int tile = 64;          ///< LeanTile
  std::int64_t grid = 1;  ///< CTAs
  int sm_count = 1;       ///< CTAs that run at once: SMs, times the CTAs that one SM holds
};

/// What one CTA does for one output tile.
struct ScheduleSegment {
  std::int64_t cta = 0;
  std::int64_t output_tile = 0;  ///< (request * kv_heads + kv_head) * row_blocks + row_block
  int request = 0, kv_head = 0, row_block = 0;
  std::int64_t first_tile = 0;  ///< within the output tile
  std::int64_t tiles = 0;
  bool host = false;       ///< takes the output tile's first LeanTile
  bool whole = false;      ///< takes all of it, so there is nothing to fix up
  int sm = 0;              ///< where it runs when every LeanTile costs the same and a free SM takes the next CTA
  std::int64_t start = 0;  ///< when, in LeanTiles
};

struct Schedule {
  ScheduleInput input;
  std::int64_t output_tiles = 0;
  std::int64_t lean_tiles = 0;            ///< on the line
  std::int64_t longest = 0;               ///< when the last SM finishes, in LeanTiles
  std::int64_t partials = 0;              ///< segments that must be merged
  std::int64_t most_contributors = 0;     ///< of one output tile
  double busy = 0;                        ///< share of the SMs' time that computes, 0..1
  std::vector<ScheduleSegment> segments;  ///< in line order
};

/// The arithmetic is templates/schedule.cuh's, so the picture is what the kernel does.
/// Errors: invalid_argument (nothing to draw, a value below one), unsupported (more than a million segments, a line of
/// 2^30 LeanTiles).
Result<Schedule> make_schedule(const ScheduleInput& input);

/// Grid of a named mode: "fa2" one CTA an output tile, "fd" the largest even multiple of the output tiles that fits the
/// SMs at once (at least one each), "lean" one CTA an SM, never more than there are LeanTiles. Errors:
/// invalid_argument, naming the choices.
Result<std::int64_t> grid_for_mode(std::string_view mode, std::int64_t output_tiles, std::int64_t lean_tiles,
                                   int sm_count);

/// LeanTiles on the line.
std::int64_t lean_tiles_on_line(const ScheduleInput& input);

/// One row an SM, one letter a LeanTile (or several, when they would not fit), letters by output tile.
std::string to_text(std::span<const Schedule> schedules);
/// A self-contained SVG without scripts, legible on light and dark pages. Errors: unsupported (too many bars to be
/// seen).
Result<std::string> to_svg(std::span<const Schedule> schedules);
/// {"schema_version":1,"schedules":[...]} with every segment.
std::string to_json(std::span<const Schedule> schedules);

}  // namespace v1
}  // namespace leanattn
