// explain.hpp -- Schedule: which CTA computes which LeanTiles, on which SM and when, drawn as text, SVG or JSON. Pure
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

/// What a schedule follows from. Context lengths and tile are in tokens.
struct ScheduleInput {
  std::string title;
  std::vector<int> context_lengths;  ///< [batch]; an empty request has one empty LeanTile for each output tile
  int kv_heads = 1;
  int row_blocks = 1;     ///< of one KV head
  int tile = 64;          ///< the LeanTile
  std::int64_t grid = 1;  ///< in CTAs
  int sm_count = 1;       ///< how many CTAs run at once
  /// 0: every CTA takes an equal share of the line, whichever output tiles it crosses, as leanattn's kernels do. Else
  /// so many CTAs share each output tile and touch no other, as in FlashAttention-2 (1) and FlashDecoding; `grid` is
  /// then their number.
  int ctas_per_output_tile = 0;
};

/// What one CTA does for one output tile.
struct ScheduleSegment {
  std::int64_t cta = 0;
  std::int64_t output_tile = 0;  ///< (request * kv_heads + kv_head) * row_blocks + row_block
  int request = 0, kv_head = 0, row_block = 0;
  std::int64_t first_tile = 0;  ///< in the output tile
  std::int64_t tiles = 0;       ///< how many LeanTiles
  bool host = false;            ///< whether it has the output tile's first LeanTile
  bool whole = false;           ///< whether it is the whole output tile, which then has no fix-up
  int sm = 0;              ///< on which it runs, if all LeanTiles take the same time and a free SM takes the next CTA
  std::int64_t start = 0;  ///< when it starts, in LeanTiles
};

struct Schedule {
  ScheduleInput input;
  std::int64_t output_tiles = 0;
  std::int64_t lean_tiles = 0;            ///< on the line
  std::int64_t longest = 0;               ///< the time at which the last SM ends, in LeanTiles
  std::int64_t partials = 0;              ///< how many have to be merged
  std::int64_t most_contributors = 0;     ///< of one output tile
  double busy = 0;                        ///< the share of the SMs' time in which they compute, 0 to 1
  std::vector<ScheduleSegment> segments;  ///< in the order of the line
};

/// The schedule, computed by templates/line/schedule.cuh as in the kernel. Errors: invalid_argument (there is no
/// request, a value is below one), unsupported (more than a million segments, a line of 2^30 LeanTiles).
Result<Schedule> make_schedule(const ScheduleInput& input);

/// The grid of a mode. "fa2" has one CTA for each output tile. "fd" has the same number of CTAs for each output tile,
/// as many as the SMs hold at once and at least one. "lean" has one CTA for each SM, but no more than there are
/// LeanTiles. Errors: invalid_argument, naming the modes.
Result<std::int64_t> grid_for_mode(std::string_view mode, std::int64_t output_tiles, std::int64_t lean_tiles,
                                   int sm_count);

/// The number of LeanTiles on the line.
std::int64_t lean_tiles_on_line(const ScheduleInput& input);

/// A row for each SM and a letter for each LeanTile, or for several when they do not fit. The letter names the output
/// tile.
std::string to_text(std::span<const Schedule> schedules);
/// An SVG without scripts that can be read on light and dark pages. Errors: invalid_argument (no schedule), unsupported
/// (too many bars to be seen).
Result<std::string> to_svg(std::span<const Schedule> schedules);
/// {"schema_version":1,"schedules":[...]}, with every segment.
std::string to_json(std::span<const Schedule> schedules);

}  // namespace v1
}  // namespace leanattn
