// partial_io.cuh -- partials in the workspace: stored by one CTA, read by another through L2 (never the non-coherent
// path).
//
// The workspace is all zero between launches, and a stored column of O and its (max, sum) both start with a non-zero
// word (0.0 is stored as -0.0). Each is written and read as a unit (PTX ISA, memory consistency model: 64- and 128-bit
// scalars are single-copy atomic), so each tells by itself whether it has arrived: readers need no flag and writers no
// fence. Readers put the zeros back.

// The CTAs that share an output tile, in context order: first_cta, first_cta + 1, ... Batch-invariant kernels make a
// partial of every LeanTile, so that nothing depends on where ranges end: there, places on the line stand for CTAs.
struct Contributors {
  u32 first_cta;
  u32 count;
  u32 mine;  // this CTA's place among them
};

LEAN_DEVICE Contributors contributors_of(const LeanDecodeArgs& args, const Walk& walk) {
  const Segment& s = walk.segment;
  if constexpr (kBatchInvariant) return {walk.origin, s.tiles, s.tile_begin};
  const u32 first = walk.origin + args.segment_cost;  // place of the output tile's first LeanTile
  Contributors c;
  c.first_cta = s.tile_begin == 0 ? blockIdx.x : lean_owner(walk.split, first);
  c.count = (s.tile_end == s.tiles ? blockIdx.x : lean_owner(walk.split, first + s.tiles - 1)) - c.first_cta + 1;
  c.mine = blockIdx.x - c.first_cta;
  return c;
}

LEAN_DEVICE u32 own_cta(const Contributors& c) { return kBatchInvariant ? c.first_cta + c.mine : blockIdx.x; }

// Slots of the workspace, [grid, 2] partials: slot 1 for the tile a CTA is first of, slot 0 for the tile it begins
// inside of.
LEAN_DEVICE float* partial_at(const LeanDecodeArgs& args, u32 cta, u32 slot) {
  return args.partials + (u64)(2 * cta + slot) * kPartialFloats;
}
LEAN_DEVICE float* own_partial(const LeanDecodeArgs& args, const Contributors& c) {
  return partial_at(args, own_cta(c), c.mine == 0 ? 1 : 0);
}
LEAN_DEVICE float* partial_column(float* partial, int column) { return partial + column * 4; }
LEAN_DEVICE float* partial_stats(float* partial, int column) { return partial + kColumns * 4 + column * 2; }

LEAN_DEVICE float present(float x) { return x == 0.0f ? -0.0f : x; }
LEAN_DEVICE bool arrived(float x) { return __float_as_uint(x) != 0; }

LEAN_DEVICE void store_partial(float* partial, int column, RowState state, const float4& o) {
  asm volatile(
      "{ .reg .b64 lo, hi; .reg .b128 x; mov.b64 lo, {%1, %2}; mov.b64 hi, {%3, %4}; mov.b128 x, {lo, hi};\n"
      "st.relaxed.gpu.global.b128 [%0], x; }" ::"l"(partial_column(partial, column)),
      "f"(present(o.x)), "f"(o.y), "f"(o.z), "f"(o.w)
      : "memory");
  asm volatile(
      "{ .reg .b64 x; mov.b64 x, {%1, %2}; st.relaxed.gpu.global.b64 [%0], x; }" ::"l"(partial_stats(partial, column)),
      "f"(present(state.max)), "f"(state.sum)
      : "memory");
}

// Loads a column into `o` and `state` if `wanted`; leaves them alone otherwise.
LEAN_DEVICE void load_partial(float* partial, int column, bool wanted, RowState& state, float4& o) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 lo, hi; .reg .b128 x; setp.ne.u32 p, %5, 0; mov.b64 lo, {%0, %1}; mov.b64 hi, {%2, "
      "%3}; mov.b128 x, {lo, hi};\n"
      "@p ld.relaxed.gpu.global.b128 x, [%4]; mov.b128 {lo, hi}, x; mov.b64 {%0, %1}, lo; mov.b64 {%2, %3}, hi; }"
      : "+f"(o.x), "+f"(o.y), "+f"(o.z), "+f"(o.w)
      : "l"(partial_column(partial, column)), "r"((u32)wanted)
      : "memory");
  asm volatile(
      "{ .reg .pred p; .reg .b64 x; setp.ne.u32 p, %3, 0; mov.b64 x, {%0, %1}; @p ld.relaxed.gpu.global.b64 x, [%2]; "
      "mov.b64 {%0, %1}, x; }"
      : "+f"(state.max), "+f"(state.sum)
      : "l"(partial_stats(partial, column)), "r"((u32)wanted)
      : "memory");
}

LEAN_DEVICE bool arrived(const RowState& state, const float4& o) { return arrived(state.max) && arrived(o.x); }

LEAN_DEVICE void clear_partial(float* partial, int column, bool wanted) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v4.u32 [%0], {%2, %2, %2, %2}; @p st.global.v2.u32 [%1], "
      "{%2, %2}; }" ::"l"(partial_column(partial, column)),
      "l"(partial_stats(partial, column)), "r"(0), "r"((u32)wanted)
      : "memory");
}

// Other kernels push the workspace out of L2 between launches, and a contributor that looks for a partial would wait
// for DRAM, behind KV. So each asks for its slot while its first KV is on its way. Not for slots so large that a grid
// of them would take L2 from everyone else, nor with batch invariance, where a CTA stores a partial per LeanTile.
LEAN_DEVICE void keep_own_partial(const LeanDecodeArgs& args, const Contributors& c) {
  constexpr int kBytes = kPartialFloats * 4, kLine = 128;
  if constexpr (!kBatchInvariant && kBytes <= 32 << 10) {
    const char* mine = (const char*)own_partial(args, c);
    const int before = kBytes % kLine == 0 ? 0 : (int)((u64)mine % kLine);  // of the first line
#pragma unroll 1
    for (int at = (int)threadIdx.x * kLine - before; at < kBytes; at += kThreads * kLine) keep_in_l2(mine + at);
  }
}

// This CTA's merged state as its partial.
LEAN_DEVICE void store_own_partial(const LeanDecodeArgs& args, const Contributors& c, const MergeBuffer& buffer) {
  float* mine = own_partial(args, c);
  for_each_column([&](int column) {
    float4 o;
    const RowState state = merge_states(buffer, column, args.scale_log2, o);
    store_partial(mine, column, state, o);
  });
}
