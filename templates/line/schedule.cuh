// line/schedule.cuh -- the arithmetic of the schedule (docs/schedule.md). All LeanTiles lie on one line: by request,
// then KV head, row block and context (LeanAttention, section 4). A tile position is an index on it. Before the first
// LeanTile of each output tile lie `segment_cost` empty positions, because starting and finishing one takes time,
// too. Of `total` positions CTA c takes those from c * total / grid on, rounded up.
// ---
// Host and device compile this file. Ranges that cross many short requests hold fewer LeanTiles for the empty
// positions. Shares differ by one at most, and a grid that is a multiple of the number of equal output tiles cuts all
// of them alike. Where row blocks or KV heads go in step (line/rows.cuh), a range is that of several CTAs, and
// the line has one of them.
//
// Tile positions have 32 bits, because a 64-bit division would take most of a microsecond of a kernel's start. The
// host refuses a launch whose line could have 2^30 positions (lean_line_fits).
#if defined(__CUDACC__)
#define LEAN_HD __host__ __device__ __forceinline__
#elif !defined(LEAN_HD)
#define LEAN_HD inline
#endif

// A line's equal split over a grid.
struct LeanSplit {
  unsigned base;  // positions that each CTA takes
  unsigned pace;  // how many take one more, for each CTA, times 2^32
};

// The most LeanTiles that an output tile can have whose context has up to `context_capacity` tokens. Sink tokens that
// lie apart from the window end inside a LeanTile of their own, which can make one more (lean_visible).
LEAN_HD unsigned long long lean_most_tiles(unsigned long long context_capacity, unsigned tile, int sink_tokens) {
  return (context_capacity == 0 ? 1 : (context_capacity + tile - 1) / tile) + (sink_tokens > 0 ? 1 : 0);
}

// Whether any lengths up to `context_capacity` keep a line of so many output tiles below 2^30 positions.
LEAN_HD bool lean_line_fits(unsigned long long outputs, unsigned long long context_capacity, unsigned tile,
                            unsigned segment_cost, int sink_tokens) {
  const unsigned long long limit = 0x3fffffffull,
                           tiles = segment_cost + lean_most_tiles(context_capacity, tile, sink_tokens);
  return tiles <= limit && outputs <= limit / tiles;
}

// LeanTiles of a request's output tile. A request without tokens has one, empty, so that its output has an owner.
LEAN_HD unsigned lean_tiles_of(int context_length, int tile) {
  return context_length <= 0 ? 1u : ((unsigned)context_length + (unsigned)tile - 1u) / (unsigned)tile;
}

// What of a context is read, in LeanTiles. Without a window that is all of it. With one it is the `sink_tiles`
// LeanTiles that hold the first `sink_tokens` tokens, if these do not touch the window, and then the window of the
// earliest query token. Behind the sink tiles a token index is `shift` more than the token's read index
// (line/steps.cuh).
struct LeanVisible {
  unsigned tiles;
  unsigned sink_tiles;
  int shift;
};

// Of a problem with a window. run: tokens that lie together in a paged cache; the window's part begins with a whole
// run, because steps are made of runs.
LEAN_HD LeanVisible lean_visible(int context_length, int query_tokens, int tile, int window, int sink_tokens, int run) {
  LeanVisible visible = {lean_tiles_of(context_length, tile), 0u, 0};
  const int seen_from = context_length - window - query_tokens + 1, first = (seen_from < 0 ? 0 : seen_from) / run * run,
            sink_tiles = (sink_tokens + tile - 1) / tile;
  if (first <= sink_tokens) return visible;
  visible.tiles = (unsigned)sink_tiles + lean_tiles_of(context_length - first, tile);
  visible.sink_tiles = (unsigned)sink_tiles;
  visible.shift = first - sink_tiles * tile;
  return visible;
}

// The same of a part of a context, of which the window shows the tokens from `first` on, and of whose first tokens
// `sink_tokens` are sink tokens. Either may show nothing of it. Both count tokens of the part and are at most
// `part_length`.
LEAN_HD LeanVisible lean_visible_part(int part_length, int first, int sink_tokens, int tile, int run) {
  LeanVisible visible = {lean_tiles_of(part_length, tile), 0u, 0};
  const bool empty = first >= part_length;
  if (!empty) first = first / run * run;
  if (first <= sink_tokens) return visible;
  visible.sink_tiles = (unsigned)((sink_tokens + tile - 1) / tile);
  visible.tiles = visible.sink_tiles + (empty ? 0u : lean_tiles_of(part_length - first, tile));
  if (visible.tiles == 0) visible.tiles = 1;
  visible.shift = first - (int)visible.sink_tiles * tile;
  return visible;
}

// KV heads that go in step where their rows share sectors of memory (line/rows.cuh): a divisor of all of them, and 8 at
// most, because rows lie next to those of a few others only.
LEAN_HD unsigned lean_heads_in_step(unsigned kv_heads) {
  if (kv_heads <= 8) return kv_heads;
  const unsigned power = kv_heads & (0u - kv_heads);
  return power < 8 ? power : 8;
}

// Row blocks of a KV head for a request of `rows` query rows, of which a row block has up to `most`.
LEAN_HD unsigned lean_row_blocks(int rows, int most) { return (unsigned)(rows + most - 1) / (unsigned)most; }

// The sum of (first + i * step) / by, rounded down, over 0 <= i < count. first + count * step is below 2^32. Where
// `step` and `by` divide each other, as those of usual row blocks and LeanTiles do, this needs no second round.
LEAN_HD unsigned lean_sum_of_quotients(unsigned count, unsigned first, unsigned step, unsigned by) {
  unsigned sum = 0;
  for (;;) {
    sum += count * (first / by), first %= by;
    sum += count * (count - 1) / 2 * (step / by), step %= by;
    // What is left are the points below a flat line. They are counted along the other axis.
    const unsigned last = first + count * step;
    if (last < by) return sum;
    count = last / by, first = last % by;
    const unsigned swapped = step;
    step = by, by = swapped;
  }
}

// Where every query token sees the context up to itself, a row block reads up to its last query token, of which
// `rows` * (row_block + 1) / `group`, rounded up, are in it and those before. `before`: tokens of the context before
// the first query token; below 0 if there are more query tokens than the context has.
LEAN_HD int lean_block_end(int before, int query_tokens, int row_block, int rows, int group) {
  const int tokens = ((row_block + 1) * rows + group - 1) / group,
            end = before + (tokens < query_tokens ? tokens : query_tokens);
  return end < 0 ? 0 : end;
}

// LeanTiles of the first `blocks` row blocks together, all of whose rows exist. A row block without tokens has one.
LEAN_HD unsigned lean_tiles_of_blocks(int before, unsigned blocks, int rows, int group, int tile) {
  const int context = before < 0 ? 0 : before, missing = context - before, whole = context / tile;
  unsigned empty = (unsigned)(missing * group / rows);
  if (empty > blocks) empty = blocks;
  const int first =
      ((int)empty + 1) * rows + (context % tile - missing) * group;  // rows up to the end, from a LeanTile
  return empty + (blocks - empty) * (unsigned)whole +
         lean_sum_of_quotients(blocks - empty, (unsigned)(first + group * tile - 1), (unsigned)rows,
                               (unsigned)(group * tile));
}

// LeanTiles behind the sink tokens that a row block with query tokens within `tokens` of each other can read at most,
// where a query token sees `window` tokens. Runs are as in lean_visible.
LEAN_HD constexpr unsigned lean_window_tiles(int window, int tokens, int tile, int run) {
  return (unsigned)(window + tokens + run - 2 + tile - 1) / (unsigned)tile;
}

// The same sum where no row block has more than `most`.
LEAN_HD unsigned lean_tiles_of_blocks(int before, unsigned blocks, int rows, int group, int tile, unsigned most) {
  const int whole = ((int)most * tile - before) * group / rows;  // row blocks that end within so many LeanTiles
  const unsigned growing = whole < 0 ? 0u : (unsigned)whole < blocks ? (unsigned)whole : blocks;
  return lean_tiles_of_blocks(before, growing, rows, group, tile) + (blocks - growing) * most;
}

// floor((2^32 - 1) / grid), by which the kernel splits the line without a division.
LEAN_HD unsigned lean_reciprocal(unsigned grid) { return 0xffffffffu / grid; }

// kLeast: the fewest positions of a range; a LeanTile has no more. Its range is that of its first position.
template <unsigned kLeast = 1>
LEAN_HD LeanSplit lean_split(unsigned total, unsigned grid, unsigned reciprocal) {
  unsigned base = (unsigned)((unsigned long long)total * reciprocal >> 32);  // the quotient or one less
  unsigned extra = total - base * grid;
  if (extra >= grid) base++, extra -= grid;
  if (total < grid * kLeast) return {kLeast, 0};  // no CTA without work may lie between two that share an output tile
  return {base, extra * reciprocal};
}

// n / d rounded down, for quotients below 2^20: off by one at most.
#if defined(__CUDA_ARCH__)
LEAN_HD unsigned lean_estimate(float n, float d) { return (unsigned)__fdividef(n, d); }
#else
LEAN_HD unsigned lean_estimate(float n, float d) { return (unsigned)(n / d); }
#endif

// n / d for n, d < 2^30 and quotients below 2^20.
LEAN_HD unsigned lean_quotient(unsigned n, unsigned d) {
  const unsigned quotient = lean_estimate((float)n, (float)d);
  const int rest = (int)(n - quotient * d);
  return rest < 0 ? quotient - 1 : quotient + (rest >= (int)d ? 1 : 0);
}

// Where a CTA's range begins, if the line is long enough. With less than 2^16 CTAs the product is too small by less
// than one. With more it may miss the end of the line, which the last range then has in addition.
LEAN_HD unsigned lean_first_tile(const LeanSplit& split, unsigned cta) {
  return cta * split.base + (unsigned)(((unsigned long long)cta * split.pace + 0xffffffffu) >> 32);
}

// The first tile position of a CTA's range on a line of `total`, and the one behind its last. Equal: it is empty.
LEAN_HD unsigned lean_range_begin(const LeanSplit& split, unsigned cta, unsigned total) {
  const unsigned first = lean_first_tile(split, cta);
  return first < total ? first : total;
}
LEAN_HD unsigned lean_range_end(const LeanSplit& split, unsigned cta, unsigned grid, unsigned total) {
  return cta + 1 < grid ? lean_range_begin(split, cta + 1, total) : total;
}

// The CTA whose range holds tile position `tile`, which is on the line. Of the last range it may say `grid`.
LEAN_HD unsigned lean_owner(const LeanSplit& split, unsigned tile) {
  const unsigned cta = lean_estimate((float)tile, (float)split.base + (float)split.pace * 0x1p-32f);
  if (cta > 0 && lean_first_tile(split, cta) > tile) return cta - 1;
  return cta + (lean_first_tile(split, cta + 1) <= tile ? 1 : 0);
}
