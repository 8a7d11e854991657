// fixup_wait.cuh -- fix-up "wait": contributors store their partials, wait for each other's and reduce a slice of the columns each. The paper's
// host block (LeanAttention, algorithm 2) waits and reduces alone; spread over all contributors, a reduction of any width takes one hop
// through L2. Correct only on a co-resident grid (cooperative launch). Sums are taken in a fixed order, so results repeat bit for bit.
//
// A CTA shares at most two output tiles: the one it begins inside of and the one it ends inside of. It waits for neither before all its
// own partials are stored.

constexpr u32 kSliceBatch = 4;   // partials a lane has in flight together

struct FixUp { Contributors c; };

struct SharedTile { Contributors c; Segment segment; };

LEAN_DEVICE SharedTile* shared_tiles() {
  __shared__ SharedTile tiles[2];   // [slot]; count 0: none
  return tiles;
}

LEAN_DEVICE void init_fix_up() {
  if (threadIdx.x < 2) shared_tiles()[threadIdx.x].c.count = 0;   // visible after the first barrier of the main loop
}

LEAN_DEVICE FixUp plan_fix_up(const LeanDecodeArgs&, const Walk& walk) { return {contributors_of(walk)}; }
LEAN_DEVICE void begin_fix_up(const LeanDecodeArgs&, const Walk&, FixUp&) {}

LEAN_DEVICE void finish_fix_up(const LeanDecodeArgs& args, const Walk& walk, FixUp& f, const MergeBuffer& buffer, bool live) {
  store_own_partial(args, f.c, buffer, live);
  if (threadIdx.x == 0 && live) shared_tiles()[f.c.mine == 0 ? 1 : 0] = {f.c, walk.segment};
}

// The columns mine, mine + count, mine + 2 count, ... of one tile. `lanes` neighbouring lanes take one column: lane i of them the
// contributors i, i + lanes, ...
LEAN_DEVICE void reduce_slice(const LeanDecodeArgs& args, const Contributors& c, const Segment& segment, bool live) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int lane_bits = c.count > 16 ? 5 : 32 - __clz((int)c.count - 1);   // count >= 2
  const u32 lanes = 1u << lane_bits, member = lane & (lanes - 1), columns_per_warp = 32 >> lane_bits;
#pragma unroll 1
  for (u32 k = warp * columns_per_warp;; k += kWarps * columns_per_warp) {
    if (c.mine + k * c.count >= (u32)kColumns && live) return;   // the warp's first column: the same for all lanes
    const u32 column = c.mine + (k + (lane >> lane_bits)) * c.count;
    const u32 count = live && column < (u32)kColumns ? c.count : 0;
    RowState state = {kNegInf, 0.0f};
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (u32 begin = 0; begin < c.count; begin += kSliceBatch * lanes) {
      RowState stat[kSliceBatch];
      float4 out[kSliceBatch];
#pragma unroll
      for (u32 i = 0; i < kSliceBatch; i++) stat[i] = {kNegInf, 0.0f}, out[i] = make_float4(0, 0, 0, 0);
      bool all;
      do {
        all = true;
#pragma unroll
        for (u32 i = 0; i < kSliceBatch; i++) {
          const u32 from = begin + i * lanes + member;
          load_partial(partial_at(args, c.first_cta + from, from == 0 ? 1 : 0), (int)column, from < count, stat[i], out[i]);
        }
#pragma unroll
        for (u32 i = 0; i < kSliceBatch; i++) all &= arrived(stat[i], out[i]) || begin + i * lanes + member >= count;
      } while (!all);
      float max = state.max;
#pragma unroll
      for (u32 i = 0; i < kSliceBatch; i++) {
        const u32 from = begin + i * lanes + member;
        clear_partial(partial_at(args, c.first_cta + from, from == 0 ? 1 : 0), (int)column, from < count);
        max = fmaxf(max, stat[i].max);
      }
#pragma unroll 1
      for (u32 distance = 1; distance < lanes; distance *= 2) max = fmaxf(max, __shfl_xor_sync(kFullMask, max, distance));
      const float reference = reference_of(max), keep = exp2_approx((state.max - reference) * args.scale_log2);
      state.max = max;
      state.sum *= keep;
      o.x *= keep, o.y *= keep, o.z *= keep, o.w *= keep;
#pragma unroll
      for (u32 i = 0; i < kSliceBatch; i++) {
        const float weight = exp2_approx((stat[i].max - reference) * args.scale_log2);
        state.sum = fmaf(stat[i].sum, weight, state.sum);
        add_scaled(o, out[i], weight);
      }
    }
#pragma unroll 1
    for (u32 distance = 1; distance < lanes; distance *= 2) {
      state.sum += __shfl_xor_sync(kFullMask, state.sum, distance);
      o.x += __shfl_xor_sync(kFullMask, o.x, distance), o.y += __shfl_xor_sync(kFullMask, o.y, distance);
      o.z += __shfl_xor_sync(kFullMask, o.z, distance), o.w += __shfl_xor_sync(kFullMask, o.w, distance);
    }
    write_output(args, segment, (int)column, state, o, member == 0 && count != 0);
    if (!live) return;
  }
}

LEAN_DEVICE void end_fix_up(const LeanDecodeArgs& args, bool live) {
  __syncthreads();
#pragma unroll 1
  for (int slot = 0; slot < 2; slot++) {
    Contributors c = shared_tiles()[slot].c;
    if (c.count == 0 && (live || slot == 0)) continue;
    if (!live) c = {0, 2, 0};   // a rehearsal: any count, nothing is loaded or stored
    reduce_slice(args, c, shared_tiles()[slot].segment, live);
  }
}
