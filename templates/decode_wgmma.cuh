// decode_wgmma.cuh -- the kernel of the wgmma family: one producer warp streams KV, warpgroups attend to its steps in
// turn, merge, and fix up across CTAs. Warps 0 .. kWarps - 1 are the warpgroups; the last warp is the producer.

constexpr int kMergeBytes = ((int)sizeof(MergeBuffer) + 1023) / 1024 * 1024;
static_assert(kMergeBytes + kStates * (int)sizeof(Operands) + kStages * kStageBytes + 1024 == kSharedBytes,
              "host and device must agree on dynamic shared memory");
static_assert(kPartialFloats == kHostPartialFloats, "host and device must agree on the workspace");

LEAN_DEVICE void store_state(MergeBuffer& buffer, const Attention& a) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = tile * 8 + 2 * c + i;
      if (g == 0) {
        if (warp % 4 == 0) buffer.max[warp / 4][row] = a.max[tile][i];  // the same in all warps of a warpgroup
        buffer.sum[warp][row] = a.sum[tile][i];
      }
      if (row < kRows) {
#pragma unroll
        for (int d = 0; d < kOutTiles; d++) {
          float* out = &buffer.out[warp / 4][row][d * 64 + warp % 4 * 16 + g];
          out[0] = a.out[d][tile][i], out[8] = a.out[d][tile][i + 2];
        }
      }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads + 32 * kProducerWarps, kCtasPerSm)
    KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args, const __grid_constant__ LeanTensorMap k_map,
                const __grid_constant__ LeanTensorMap v_map) {
  const int length = first_length(args);
  extern __shared__ unsigned char dynamic_shared[];
  __shared__ u32 part_sums[kParts];
  unsigned char* const shared =
      dynamic_shared + (-shared_address(dynamic_shared) & 1023);  // swizzle atoms start at multiples of 1024
  MergeBuffer& buffer = *(MergeBuffer*)shared;
  const KvRing ring = kv_ring(shared_address(shared) + kMergeBytes + kStates * (u32)sizeof(Operands));
  const int lane = threadIdx.x % 32;
  Walk walk;
  if constexpr (kPdl) asm volatile("griddepcontrol.launch_dependents;");
  if (threadIdx.x >= kThreads) {  // the producer warp, first in the code: everything waits for its first request
    if (lane == 0) {
      prefetch_map(k_map), prefetch_map(v_map);
      init_ring(ring);
    }
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"(kThreads + 32) : "memory");
    if (start_walk(args, length, part_sums, walk)) produce(args, k_map, v_map, ring, walk);
    return;
  }

  init_fix_up();
  if (!start_walk(args, length, part_sums, walk)) return;        // more CTAs than tiles
  const int warp = __shfl_sync(kFullMask, threadIdx.x / 32, 0);  // the shuffle tells the compiler that warp is uniform
  const int warpgroup = warp / 4;
  Operands& operands = ((Operands*)(shared + kMergeBytes))[warpgroup];
  Query q;
  wait_for_previous_kernel();  // q may come from it
  load_query(args, walk.segment, q);
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads + 32) : "memory");  // the ring is initialised
  RingPosition at;
  FixUp fix = {};
  int turn = 0;  // the warpgroup that takes the next step
#pragma unroll 1
  for (bool more = true; more;) {
    const Walk here = walk;
    const bool whole = is_whole(here.segment);
    store_query(operands, q);
    if (!whole) plan_fix_up(args, here, fix);  // while the first KV is on its way
    Attention attention;
    clear(attention);
    sync_warpgroup(warpgroup);  // q is in place
    const int end = end_place(here.segment);
#pragma unroll 1
    for (int place = first_place(here.segment); place < end; place += kStepTokens) {
      if (turn == warpgroup) {
        wait_barrier(ring.full + at.stage * 8, at.parity);
        attend(args, here.segment, step_at(here.segment, place), ring.stages + at.stage * kStageBytes, operands,
               attention, warpgroup);
        if (lane == 0) arrive(ring.empty + at.stage * 8);
      }
      if (++turn == kStates) turn = 0;
      at.next();
    }
    if (!whole) begin_fix_up(args, here, fix);
    reduce_sums(attention);
    more = next_segment(args, walk);
    if (more) load_query(args, walk.segment, q);  // before the fix-up, which is all latency
    sync_workers();                               // the last readers of the buffer are done
    store_state(buffer, attention);
    sync_workers();
    finish_segment(args, here, whole, fix, buffer);
  }
  end_fix_up(args);
}
