// merge/slice.cuh -- one contributor's share of an output tile's reduction: the columns mine, mine + count, mine + 2
// count, ... from the workspace. Some neighbouring lanes take a column together. Lane i of them takes the contributors
// i, i + lanes, ..., kBatch of them at a time. Sums are taken in a fixed order, so results repeat bit for bit. Shares
// of many columns are taken otherwise (merge/share_strips.cuh).

// log2 of the lanes that take one column. There are at least two contributors.
LEAN_DEVICE int slice_lane_bits(const Contributors& c) { return min(32 - __clz((int)c.count - 1), 5); }

// Turns that a share takes. In each, a warp reduces as many columns as it has groups of lanes.
LEAN_DEVICE u32 share_turns(const Contributors& c) {
  const u32 columns = lean_quotient((u32)kColumns + c.count - 1 - min(c.mine, (u32)kColumns), c.count);
  return ((columns << slice_lane_bits(c)) + 31) / 32;
}

// turn: this warp's first; its next is kWarps further. kBatch is 1 for up to 32 contributors.
template <u32 kBatch>
LEAN_DEVICE void reduce_slice(const LeanDecodeArgs& args, const Contributors& c, const Segment& segment, u32 turn) {
  const int lane = threadIdx.x % 32;
  const int lane_bits = kBatch > 1 ? 5 : slice_lane_bits(c);
  const u32 lanes = 1u << lane_bits, member = lane & (lanes - 1), columns_per_warp = 32 >> lane_bits;
#pragma unroll 1
  for (u32 k = turn * columns_per_warp;; k += kWarps * columns_per_warp) {
    if (c.mine + k * c.count >= (u32)kColumns) return;  // the warp's first column: the same for all lanes
    const u32 column = c.mine + (k + (lane >> lane_bits)) * c.count;
    const u32 count = column < (u32)kColumns ? c.count : 0;
    const auto output = destination_of(args, segment, (int)column);
    RowState state = {kNegInf, 0.0f};
    float4 o = make_float4(0, 0, 0, 0);
    u32 begin = 0;
#pragma unroll 1
    do {
      RowState stat[kBatch];
      float4 out[kBatch];
      float* from[kBatch];
#pragma unroll
      for (u32 i = 0; i < kBatch; i++) {
        const u32 contributor = begin + i * lanes + member;
        from[i] = partial_at(args, c.first_slot + contributor, contributor == 0 ? 1 : 0);
        stat[i] = {kNegInf, 0.0f}, out[i] = make_float4(0, 0, 0, 0);
      }
      bool all;
      u32 waited = 0;
      do {
        all = true;
#pragma unroll
        for (u32 i = 0; i < kBatch; i++)
          load_partial(from[i], (int)column, begin + i * lanes + member < count && !arrived(stat[i], out[i]), stat[i],
                       out[i]);
#pragma unroll
        for (u32 i = 0; i < kBatch; i++) all &= arrived(stat[i], out[i]) || begin + i * lanes + member >= count;
        if (!all && !goes_on_waiting(args, waited)) {
#pragma unroll
          for (u32 i = 0; i < kBatch; i++) give_up(begin + i * lanes + member < count, stat[i], out[i]);
        }
      } while (!all);
      float max = state.max;
#pragma unroll
      for (u32 i = 0; i < kBatch; i++) max = fmaxf(max, stat[i].max);
#pragma unroll 1
      for (u32 distance = 1; distance < lanes; distance *= 2)
        max = fmaxf(max, __shfl_xor_sync(kFullMask, max, distance));
      const float reference = reference_of(max);
      if constexpr (kBatch > 1) {
        const float keep = exp2_approx((state.max - reference) * args.scale_log2);
        state.sum *= keep;
        o.x *= keep, o.y *= keep, o.z *= keep, o.w *= keep;
      }
      state.max = max;
#pragma unroll
      for (u32 i = 0; i < kBatch; i++) {
        const float weight = exp2_approx((stat[i].max - reference) * args.scale_log2);
        state.sum = fmaf(stat[i].sum, weight, state.sum);
        add_scaled(o, out[i], weight);
        clear_partial(from[i], (int)column, begin + i * lanes + member < count);
      }
      begin += kBatch * lanes;
    } while (kBatch > 1 && begin < c.count);
#pragma unroll 1
    for (u32 distance = 1; distance < lanes; distance *= 2) {
      state.sum += __shfl_xor_sync(kFullMask, state.sum, distance);
      o.x += __shfl_xor_sync(kFullMask, o.x, distance), o.y += __shfl_xor_sync(kFullMask, o.y, distance);
      o.z += __shfl_xor_sync(kFullMask, o.z, distance), o.w += __shfl_xor_sync(kFullMask, o.w, distance);
    }
    if (member == 0 && count != 0) write_output(args, output, state, o);
  }
}

// All columns of the share. A lane takes all its partials of a column in one round trip up to 160 contributors, and
// five at a time above.
LEAN_DEVICE void reduce_share(const LeanDecodeArgs& args, const Contributors& c, const Segment& segment, u32 turn) {
  if (c.count <= 32) {
    reduce_slice<1>(args, c, segment, turn);
  } else if (c.count <= 64) {
    reduce_slice<2>(args, c, segment, turn);
  } else if (c.count <= 128) {
    reduce_slice<4>(args, c, segment, turn);
  } else {
    reduce_slice<5>(args, c, segment, turn);
  }
}
