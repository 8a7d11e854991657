// merge/workspace.cuh -- partials in the workspace, through which CTAs exchange them by way of L2. They announce
// themselves: the workspace is all zero between launches, and a column of O and its (max, sum) are stored as units
// whose first word is not zero, because 0.0 becomes -0.0 (PTX ISA, memory consistency model: scalars of 64 and 128 bits
// are single-copy atomic). So there is neither flag nor fence. The reader puts the zeros back.
// ---
// Large partials are counted instead (merge/counted_partials.cuh).

// The contributors to an output tile, in context order, have neighbouring slots of the workspace. A slot is a CTA's, or
// in a batch-invariant kernel, where every LeanTile is a contribution of its own, a tile position.
struct Contributors {
  u32 first_slot;
  u32 count;
  u32 mine;  // which of them this one is
};

// The slots of an output tile's CTAs are neighbours, also where row blocks or KV heads go in step.
LEAN_DEVICE u32 slot_of_range(const Walk& walk, u32 range, int row_block) {
#if defined(LEAN_HEADS_IN_STEP)
  return blockIdx.x % walk.in_step * ranges(walk) + range;
#endif
  if constexpr (kRowBlocksInStep == 1) return range;
  return (u32)number_in_step(row_block) * ranges(walk) + range;
}

LEAN_DEVICE Contributors contributors_of(const LeanDecodeArgs& args, const Walk& walk) {
  const Segment& s = walk.segment;
  if constexpr (kBatchInvariant) return {walk.origin, s.tiles, s.tile_begin};
  const u32 first = walk.origin + empty_positions(args);  // tile position of the output tile's first LeanTile
  LeanSplit split = walk.split;
  asm volatile("" : "+r"(split.base), "+r"(split.pace));  // lest what was made of them be kept in registers
  // No CTA has what lies behind a line that has changed since it was split.
  const u32 begin = s.tile_begin == 0 ? own_range(walk) : min(lean_owner(split, first), own_range(walk)),
            last = s.tile_end == s.tiles
                       ? own_range(walk)
                       : min(lean_owner(split, first + tile_positions(s, s.tiles) - tile_positions(s, 1)),
                             ranges(walk) - 1);
  return {slot_of_range(walk, begin, s.row_block), last - begin + 1, own_range(walk) - begin};
}

// A slot has room for two partials, because a CTA shares two output tiles at most: 1 is of the tile that it is the
// first contributor of, 0 of the one that it begins inside of.
LEAN_DEVICE float* partial_at(const LeanDecodeArgs& args, u32 slot, u32 which) {
  if constexpr (kFewTokens > 0)  // in front are those of the other walk
    return args.partials + (u64)gridDim.x * kPartialsBefore + (u64)(2 * slot + which) * kPartialFloats;
  return args.partials + (u64)(2 * slot + which) * kPartialFloats;
}
LEAN_DEVICE u32* ticket_counter(const LeanDecodeArgs& args, u32 slot) {
  if constexpr (kFewTokens > 0) return args.tickets + gridDim.x * kTicketsBefore + slot;
  return args.tickets + slot;
}
LEAN_DEVICE float* own_partial(const LeanDecodeArgs& args, const Contributors& c) {
  return partial_at(args, c.first_slot + c.mine, c.mine == 0 ? 1 : 0);
}
LEAN_DEVICE float* partial_column(float* partial, int column) { return partial + column * 4; }
LEAN_DEVICE float* partial_state(float* p, int column) { return p + kColumns * 4 + column / kStateColumns * 2; }
// Whether the thread that has `column` writes the column's state, and puts its zeros back.
LEAN_DEVICE bool has_state(int column) { return column % kStateColumns == 0; }

LEAN_DEVICE float present(float x) { return x == 0.0f ? -0.0f : x; }
LEAN_DEVICE bool arrived(const RowState& state, const float4& o) {
  return __float_as_uint(state.max) != 0 && __float_as_uint(o.x) != 0;
}
// Takes NaN for a column that did not arrive within the bound. It counts as arrived, so that the loop that polls ends
// by the one condition that it has: with a second one, or NaN only for what is missing, some kernels spill.
LEAN_DEVICE void give_up(bool wanted, RowState& state, float4& o) {
  if (wanted) state.max = o.x = __uint_as_float(0x7fffffffu);
}

// Loads a column if `wanted`, and leaves `o` and `state` as they are otherwise.
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
      : "l"(partial_state(partial, column)), "r"((u32)wanted)
      : "memory");
}
