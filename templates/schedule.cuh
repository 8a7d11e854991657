// schedule.cuh -- the stream-K line: which LeanTiles a CTA takes and who owns an output tile. Host and device compile
// this file.
//
// Line order: batch -> KV head -> row block -> context (LeanAttention, section 4). CTA c takes the contiguous range
// that starts at c * base + min(c, extra), so sizes differ by at most one tile. A request of length zero still has one
// (empty) LeanTile per output tile, so every output tile has an owner.
//
// Starting and finishing an output tile costs time too. It is charged as `segment_cost` places on the line before the
// output tile's first LeanTile, places that hold nothing: ranges that cross many short requests take fewer LeanTiles
// than those inside a long one.
//
// Positions are 32-bit: a 64-bit division costs a kernel start most of a microsecond. The host refuses a launch whose
// line could be 2^30 tiles or longer (lean_line_fits); at 16 tokens of 64 dims a tile that takes 4 TB of KV.
#if defined(__CUDACC__)
#define LEAN_HD __host__ __device__ __forceinline__
#else
#define LEAN_HD inline
#endif

// Equal split of `total` tiles over `grid` CTAs.
struct LeanSplit {
  unsigned base;   // tiles every CTA takes
  unsigned extra;  // the first `extra` CTAs take one more
};

// Whether any lengths up to `context_capacity` keep the line below 2^30 tiles. outputs: KV heads * row blocks.
LEAN_HD bool lean_line_fits(unsigned long long batch, unsigned long long outputs, unsigned long long context_capacity,
                            unsigned tile, unsigned segment_cost) {
  const unsigned long long limit = 0x3fffffffull,
                           tiles = segment_cost + (context_capacity == 0 ? 1 : (context_capacity + tile - 1) / tile);
  return tiles <= limit && outputs <= limit / tiles && batch <= limit / (tiles * outputs);
}

// LeanTiles of one output tile of a request; never zero.
LEAN_HD unsigned lean_tiles_of(int context_length, int tile) {
  return context_length <= 0 ? 1u : ((unsigned)context_length + (unsigned)tile - 1u) / (unsigned)tile;
}

// floor((2^32 - 1) / grid), which lets the kernel split the line without dividing.
LEAN_HD unsigned lean_reciprocal(unsigned grid) { return 0xffffffffu / grid; }

LEAN_HD LeanSplit lean_split(unsigned total, unsigned grid, unsigned reciprocal) {
  LeanSplit split;
  split.base = (unsigned)((unsigned long long)total * reciprocal >> 32);  // the quotient or one less
  split.extra = total - split.base * grid;
  if (split.extra >= grid) split.base++, split.extra -= grid;
  return split;
}

// n / d for n, d < 2^30 and quotients below 2^20: on the device a float estimate, off by one at most, and its
// correction.
LEAN_HD unsigned lean_quotient(unsigned n, unsigned d) {
#if defined(__CUDA_ARCH__)
  unsigned quotient = (unsigned)__fdividef((float)n, (float)d);
  const int rest = (int)(n - quotient * d);
  return rest < 0 ? quotient - 1 : quotient + (rest >= (int)d ? 1 : 0);
#else
  return n / d;
#endif
}

// First tile of a CTA's range; lean_first_tile(split, grid) == total.
LEAN_HD unsigned lean_first_tile(const LeanSplit& split, unsigned cta) {
  return cta * split.base + (cta < split.extra ? cta : split.extra);
}

// The CTA whose range holds `tile` (tile < total).
LEAN_HD unsigned lean_owner(const LeanSplit& split, unsigned tile) {
  const bool longer = tile < split.extra * (split.base + 1);  // the first `extra` ranges hold base + 1 tiles
  const unsigned skipped = longer ? 0 : split.extra;
  return skipped + lean_quotient(tile - skipped * (split.base + 1), split.base + (longer ? 1 : 0));
}
