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

/// What requests with query tokens of their own have on the line (templates/line/work.cuh).
struct RaggedRows {
  int rows = 128;      ///< query rows of an output tile
  int group = 1;       ///< of each query token
  bool causal = true;  ///< an output tile reads up to its own last query token, else the whole context
  int window_tiles = 0, sink_tiles = 0;  ///< the most LeanTiles of an output tile, with a window; 0: no window
  /// Tile positions of a LeanTile, and of one of an output tile of which at most half of the rows exist.
  int tile_positions = 1, light_tile_positions = 1;
  int segment_cost = 0;  ///< before each output tile, in LeanTiles
};

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
  /// [batch], where requests have query tokens of their own; empty: what is said above and below holds for all. A
  /// request then has the row blocks that these fill, in place of `row_blocks`.
  std::vector<int> query_tokens = {};
  RaggedRows ragged = {};
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
  int rows = 0;                 ///< query rows of the output tile that exist; 0: those of `row_blocks`
  int positions = 1;            ///< tile positions of each LeanTile
  int sm = 0;  ///< on which it runs, if a tile position takes the same time everywhere and a free SM takes the
               ///< next CTA
  std::int64_t start = 0;  ///< when it starts, in tile positions

  std::int64_t width() const { return tiles * positions; }
};

struct Schedule {
  ScheduleInput input;
  std::int64_t output_tiles = 0;
  std::int64_t lean_tiles = 0;            ///< on the line
  std::int64_t longest = 0;               ///< the time at which the last SM ends, in tile positions
  std::int64_t partials = 0;              ///< how many have to be merged
  std::int64_t most_contributors = 0;     ///< of one output tile
  double busy = 0;                        ///< the share of the SMs' time in which they compute, 0 to 1
  std::vector<ScheduleSegment> segments;  ///< in the order of the line
};

/// The schedule, computed by templates/line/schedule.cuh as in the kernel. Errors: invalid_argument (there is no
/// request, a value is below one), unsupported (more than a million segments, a line of 2^30 LeanTiles).
Result<Schedule> make_schedule(const ScheduleInput& input);

/// Whether a segment is a chunk's: of a request with several query tokens, where these differ.
bool is_of_chunk(const ScheduleInput& input, const ScheduleSegment& segment);
/// "request 3, KV head 1, rows 2", with the request's query tokens and context where these differ.
std::string where(const Schedule& schedule, const ScheduleSegment& segment);

/// The grid of a mode. "fa2" has one CTA for each output tile. "fd" has the same number of CTAs for each output tile,
/// as many as the SMs hold at once and at least one. "lean" has one CTA for each SM, but no more than there are
/// LeanTiles. Errors: invalid_argument, naming the modes.
Result<std::int64_t> grid_for_mode(std::string_view mode, std::int64_t output_tiles, std::int64_t lean_tiles,
                                   int sm_count);

/// The number of output tiles, and of LeanTiles, on the line.
std::int64_t output_tiles_on_line(const ScheduleInput& input);
std::int64_t lean_tiles_on_line(const ScheduleInput& input);

/// A row for each SM and a letter for each tile position, or for several when they do not fit. The letter names the
/// output tile. Where requests have query tokens of their own, chunks have capitals and decodes small letters.
std::string to_text(std::span<const Schedule> schedules);
/// An SVG without scripts that can be read on light and dark pages. Errors: invalid_argument (no schedule), unsupported
/// (too many bars to be seen).
Result<std::string> to_svg(std::span<const Schedule> schedules);
/// {"schema_version":1,"schedules":[...]}, with every segment.
std::string to_json(std::span<const Schedule> schedules);

}  // namespace v1
}  // namespace leanattn
