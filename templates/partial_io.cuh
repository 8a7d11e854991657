// partial_io.cuh -- partials in the workspace: stored by one CTA, read by another through L2 (never the non-coherent path).

// The CTAs that share an output tile, in context order: first_cta, first_cta + 1, ...
struct Contributors {
  u32 first_cta;
  u32 count;
  u32 first_slot;     // slot of first_cta's partial; all others begin inside the tile and use slot 0
  u32 mine;           // this CTA's place among them
};

LEAN_DEVICE Contributors contributors_of(const Walk& walk) {
  const Segment& s = walk.segment;
  const u64 origin = walk.position - s.tile_begin;   // line position of the output tile's first LeanTile
  Contributors c;
  c.first_cta = s.tile_begin == 0 ? blockIdx.x : lean_owner(walk.split, origin);
  const u32 last_cta = s.tile_end == s.tiles ? blockIdx.x : lean_owner(walk.split, origin + s.tiles - 1);
  c.count = last_cta - c.first_cta + 1;
  c.first_slot = lean_first_tile(walk.split, c.first_cta) == origin ? 0u : 1u;
  c.mine = blockIdx.x - c.first_cta;
  return c;
}

// Contributor i's place in the workspace: [grid, 2] partials.
LEAN_DEVICE u32 partial_index(const Contributors& c, u32 i) { return 2 * (c.first_cta + i) + (i == 0 ? c.first_slot : 0u); }
LEAN_DEVICE float* partial_of(const LeanDecodeArgs& args, const Contributors& c, u32 i) { return args.partials + (u64)partial_index(c, i) * kPartialFloats; }
LEAN_DEVICE float* partial_out(float* partial, int column) { return partial + 4 * kHeadRows + column * 4; }

// One ticket per partial (for groups of contributors), then one counter per output tile.
LEAN_DEVICE u32* tile_counter(const LeanDecodeArgs& args, const Segment& s) {
  return args.tickets + 2 * (u64)gridDim.x + ((u64)s.request * args.kv_heads + s.kv_head) * kRowBlocks + s.row_block;
}

// `merged` picks the statistics written by a group's merge instead of those its CTA stored.
LEAN_DEVICE void store_partial(float* partial, bool merged, int column, RowState state, const float4& o) {
  __stcg((float4*)partial_out(partial, column), o);
  if (column % kPositions == 0) {
    float* stats = partial + (merged ? 2 * kHeadRows : 0) + column / kPositions;
    __stcg(stats, state.max);
    __stcg(stats + kHeadRows, state.sum);
  }
}

// Adds partials first, first + stride, ... (count of them, in context order) to column `column` of `state` and `o`.
// All loads of a batch are issued before any is used: the merge costs one round trip to L2 per kMergeBatch partials.
LEAN_DEVICE void merge_partials(const LeanDecodeArgs& args, const Contributors& c, u32 first, u32 stride, u32 count, bool merged, int column, RowState& state, float4& o) {
  constexpr u32 kBatch = kMergeBatch;
  const int row = column / kPositions + (merged ? 2 * kHeadRows : 0);
  for (u32 begin = 0; begin < count; begin += kBatch) {
    float max[kBatch], sum[kBatch];
    float4 out[kBatch];
#pragma unroll
    for (u32 i = 0; i < kBatch; i++) {
      max[i] = kNegInf, sum[i] = 0.0f, out[i] = make_float4(0, 0, 0, 0);
      if (begin + i < count) {
        float* partial = partial_of(args, c, first + (begin + i) * stride);
        max[i] = __ldcg(partial + row);
        sum[i] = __ldcg(partial + row + kHeadRows);
        out[i] = __ldcg((const float4*)partial_out(partial, column));
      }
    }
    float reference = state.max;
#pragma unroll
    for (u32 i = 0; i < kBatch; i++) reference = fmaxf(reference, max[i]);
    const float keep = piece_weight(state.max, reference);
    state.max = reference;
    state.sum *= keep;
    o.x *= keep, o.y *= keep, o.z *= keep, o.w *= keep;
#pragma unroll
    for (u32 i = 0; i < kBatch; i++) {
      const float weight = piece_weight(max[i], reference);
      state.sum = fmaf(sum[i], weight, state.sum);
      add_scaled(o, out[i], weight);
    }
  }
}

// Calls body(column) for the columns this thread owns.
template <class Body>
LEAN_DEVICE void for_each_column(Body body) {
#pragma unroll 1
  for (int i = 0; i < kColumnsPerThread; i++) {
    const int column = i * kThreads + (int)threadIdx.x;
    if (kColumns % kThreads == 0 || column < kColumns) body(column);
  }
}
