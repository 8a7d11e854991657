// schedule.cuh -- the stream-K line: which LeanTiles a CTA takes and who owns an output tile. Host and device compile this file.
// Line order: batch -> KV head -> row block -> context (LeanAttention, section 4). CTA c takes the contiguous range that starts at
// c * base + min(c, extra), so sizes differ by at most one tile. A request of length zero still has one (empty) LeanTile per output
// tile, so every output tile has an owner.
#if defined(__CUDACC__)
#define LEAN_HD __host__ __device__ __forceinline__
#else
#define LEAN_HD inline
#endif

typedef unsigned long long lean_u64;

// Equal split of `total` tiles over `grid` CTAs.
struct LeanSplit {
  lean_u64 total;
  lean_u64 base;    // tiles every CTA takes
  unsigned extra;   // the first `extra` CTAs take one more
  unsigned grid;
};

// n / d. 64-bit division costs about a microsecond at kernel start; both operands nearly always fit 32 bits.
LEAN_HD lean_u64 lean_divide(lean_u64 n, lean_u64 d) {
  if (((n | d) >> 32) == 0) return (unsigned)n / (unsigned)d;
  return n / d;
}

// LeanTiles of one output tile of a request; never zero.
LEAN_HD unsigned lean_tiles_of(int context_length, int tile) {
  return context_length <= 0 ? 1u : ((unsigned)context_length + (unsigned)tile - 1u) / (unsigned)tile;
}

LEAN_HD LeanSplit lean_split(lean_u64 total, unsigned grid) {
  LeanSplit split;
  split.total = total;
  split.base = lean_divide(total, grid);
  split.extra = (unsigned)(total - split.base * grid);
  split.grid = grid;
  return split;
}

// First tile of a CTA's range; lean_first_tile(split, grid) == total.
LEAN_HD lean_u64 lean_first_tile(const LeanSplit& split, unsigned cta) {
  return cta * split.base + (cta < split.extra ? cta : split.extra);
}

// The CTA whose range holds `tile` (tile < total).
LEAN_HD unsigned lean_owner(const LeanSplit& split, lean_u64 tile) {
  const lean_u64 longer = split.extra * (split.base + 1);   // tiles that lie in ranges of base + 1
  if (tile < longer) return (unsigned)lean_divide(tile, split.base + 1);
  return split.extra + (unsigned)lean_divide(tile - longer, split.base);
}
