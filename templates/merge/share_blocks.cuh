// merge/share_blocks.cuh -- a contributor's share of a large output tile: every count-th block of eight neighbouring
// columns, from block `mine` on. Eight lanes of a warp take a block's columns, and four such groups of lanes take every
// fourth contributor. So many loads are in flight together, and few round trips to L2 follow each other. Sums are taken
// in a fixed order, so results repeat bit for bit.

constexpr int kBlockColumns = 8, kBlocks = kColumns / kBlockColumns, kMembers = 32 / kBlockColumns;

// Whether shares have so many columns that blocks take fewer round trips than columns do.
LEAN_DEVICE bool in_blocks(const Contributors& c) {
  return kColumns % kBlockColumns == 0 && c.count * (u32)(4 * kWarps) <= (u32)kColumns;
}

// Calls body(block, i, column, partial, wanted) for each load of a lane: of blocks k, k + 1, ... of the share, and of
// contributors from `begin` on.
template <int kAtOnce, int kBatch, class Body>
LEAN_DEVICE void for_each_load(const LeanDecodeArgs& args, const Contributors& c, u32 k, u32 begin, Body body) {
  const u32 lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < kAtOnce; b++)
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const u32 block = c.mine + (k + b) * c.count, contributor = begin + i * kMembers + lane / kBlockColumns;
      body(b, i, (int)(block * kBlockColumns + lane % kBlockColumns),
           partial_at(args, c.first_slot + contributor, contributor == 0 ? 1 : 0),
           block < (u32)kBlocks && contributor < c.count);
    }
}

// kAtOnce: blocks that a warp reduces together. kBatch: contributors of a lane whose loads are in flight together.
template <int kAtOnce, int kBatch>
LEAN_DEVICE void reduce_blocks(const LeanDecodeArgs& args, const Contributors& c, const Segment& segment) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = lane / kBlockColumns;
#pragma unroll 1
  for (u32 k = warp * kAtOnce; c.mine + k * c.count < (u32)kBlocks; k += kWarps * kAtOnce) {
    RowState state[kAtOnce];
    float4 o[kAtOnce];
#pragma unroll
    for (int b = 0; b < kAtOnce; b++) state[b] = {kNegInf, 0.0f}, o[b] = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (u32 begin = 0; begin < c.count; begin += kBatch * kMembers) {
      RowState stat[kAtOnce][kBatch];
      float4 out[kAtOnce][kBatch];
      for_each_load<kAtOnce, kBatch>(args, c, k, begin, [&](int b, int i, int, float*, bool) {
        stat[b][i] = {kNegInf, 0.0f}, out[b][i] = make_float4(0, 0, 0, 0);
      });
      bool all;
      u32 waited = 0;
      do {
        all = true;
        for_each_load<kAtOnce, kBatch>(args, c, k, begin, [&](int b, int i, int column, float* partial, bool wanted) {
          load_partial(partial, column, wanted && !arrived(stat[b][i], out[b][i]), stat[b][i], out[b][i]);
        });
        for_each_load<kAtOnce, kBatch>(args, c, k, begin, [&](int b, int i, int, float*, bool wanted) {
          all &= !wanted || arrived(stat[b][i], out[b][i]);
        });
        if (!all && !goes_on_waiting(args, waited)) {
          for_each_load<kAtOnce, kBatch>(args, c, k, begin, [&](int b, int i, int, float*, bool wanted) {
            give_up(wanted, stat[b][i], out[b][i]);
          });
        }
      } while (!all);
#pragma unroll
      for (int b = 0; b < kAtOnce; b++) {
        const float before = state[b].max;
#pragma unroll
        for (int i = 0; i < kBatch; i++) state[b].max = fmaxf(state[b].max, stat[b][i].max);
        const float reference = reference_of(state[b].max), keep = exp2_approx((before - reference) * args.scale_log2);
        state[b].sum *= keep;
        o[b].x *= keep, o[b].y *= keep, o[b].z *= keep, o[b].w *= keep;
#pragma unroll
        for (int i = 0; i < kBatch; i++) {
          const float weight = exp2_approx((stat[b][i].max - reference) * args.scale_log2);
          state[b].sum = fmaf(stat[b][i].sum, weight, state[b].sum);
          add_scaled(o[b], out[b][i], weight);
        }
      }
      for_each_load<kAtOnce, kBatch>(args, c, k, begin, [&](int, int, int column, float* partial, bool wanted) {
        clear_partial(partial, column, wanted);
      });
    }
#pragma unroll
    for (int b = 0; b < kAtOnce; b++) {
      float max = state[b].max;
#pragma unroll
      for (int distance = kBlockColumns; distance < 32; distance *= 2)
        max = fmaxf(max, __shfl_xor_sync(kFullMask, max, distance));
      const float weight = exp2_approx((state[b].max - reference_of(max)) * args.scale_log2);
      state[b] = {max, state[b].sum * weight};
      o[b].x *= weight, o[b].y *= weight, o[b].z *= weight, o[b].w *= weight;
#pragma unroll
      for (int distance = kBlockColumns; distance < 32; distance *= 2) {
        state[b].sum += __shfl_xor_sync(kFullMask, state[b].sum, distance);
        o[b].x += __shfl_xor_sync(kFullMask, o[b].x, distance), o[b].y += __shfl_xor_sync(kFullMask, o[b].y, distance);
        o[b].z += __shfl_xor_sync(kFullMask, o[b].z, distance), o[b].w += __shfl_xor_sync(kFullMask, o[b].w, distance);
      }
      const u32 block = c.mine + (k + b) * c.count;
      if (member == 0 && block < (u32)kBlocks) {
        const int column = (int)(block * kBlockColumns + lane);
        write_output(args, output_of(args, segment, column), state[b], o[b]);
      }
    }
  }
}

LEAN_DEVICE void reduce_share(const LeanDecodeArgs& args, const Contributors& c, const Segment& segment, u32 turn) {
  if (!in_blocks(c)) {
    reduce_columns(args, c, segment, turn);
  } else if (c.count <= 2 * kMembers) {
    reduce_blocks<4, 2>(args, c, segment);
  } else {
    reduce_blocks<1, 8>(args, c, segment);
  }
}
