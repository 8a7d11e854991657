// decode_roles.cuh -- the kernel of the wgmma family whose warpgroups have roles: warps 0 .. 3 lead, warps 4 .. 7
// follow (attend/wgmma_roles.cuh), and the warps behind them produce.

static_assert(sizeof(Operands) + kStages * kStageBytes + kLeanAtomBytes == kSharedBytes,
              "host and device must agree on dynamic shared memory");

// A CTA must not end while the other one of its cluster may still write to its shared memory.
LEAN_DEVICE void leave_cluster() {
  arrive_in_cluster();
  wait_for_cluster();
}

extern "C" __global__ void
#if defined(LEAN_CLUSTER)
__cluster_dims__(kConvertingCtas)
#endif
    __launch_bounds__(kThreads + 32 * kProducerWarps, kCtasPerSm)
        KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args, const __grid_constant__ LeanTensorMap k_map,
                    const __grid_constant__ LeanTensorMap v_map) {
  if constexpr (kPdl && kSelectionBlock > 0) wait_for_previous_kernel();  // which may write the selection
  if constexpr (kStamped) stamp(args, kStarted);
  const int length = first_length(args);
  __shared__ u32 part_sums[kParts];
  unsigned char* const shared = walk_shared();
  Operands& operands = *(Operands*)shared;
  const KvRing ring = kv_ring(shared_address(shared) + (u32)sizeof(Operands));
  const u32 weighed = weighed_barriers();
  const int lane = threadIdx.x % 32;
  // The shuffle tells the compiler that `warp` is uniform.
  const int warp = __shfl_sync(kFullMask, threadIdx.x / 32, 0);
  if constexpr (kPdl) asm volatile("griddepcontrol.launch_dependents;");
  if (warp == kWarps) {
    if (lane == 0) {
      if constexpr (!kGathers) prefetch_map(k_map), prefetch_map(v_map);
      init_weighed(weighed);
      init_ring(ring);
    }
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"n"(kFirstBarrier + 2), "n"(kThreads + 32) : "memory");
  }
  if constexpr (kConvertingCtas > 1) arrive_in_cluster();  // with barriers that the other CTA may use
  if (warp < kWarps) init_fix_up();

  Walk walk;
  const bool any = start_walk(args, length, part_sums, walk);
  if constexpr (kStamped) {
    if (any) stamp(args, kPlaced);
  }
  if (warp >= kWarps) {
    hand_over_registers();
    if constexpr (kGathers || kPartProducers > 1) sync_producers();
    if constexpr (kConvertingCtas > 1) wait_for_cluster();
    if constexpr (kStamped) {
      if (any) stamp(args, kRequested, kThreads);
    }
    if (any && (kGathers || warp < kWarps + kPartProducers)) produce(args, k_map, v_map, ring, walk);
    if constexpr (kConvertingCtas > 1) leave_cluster();
    return;
  }

  take_registers();
  if constexpr (kPdl) wait_for_previous_kernel();  // which may still write q, and read o and the workspace
  if (threadIdx.x == 0) found_segment(0) = {walk, any};
  asm volatile("bar.sync %0, %1;" ::"n"(kFirstBarrier + 2), "n"(kThreads + 32) : "memory");  // the ring is initialised
  if constexpr (kConvertingCtas > 1) wait_for_cluster();
  RingPosition at;
  FixUp fix = {};
#pragma unroll 1
  for (int number = 0; take_segment(number, walk); number++) {
    const Segment& s = walk.segment;
    const bool whole = is_whole(s);
    if (!whole) plan_fix_up(args, walk, fix);  // while the first KV is on its way
    Attention attention;
    clear(attention);
    if (warp < 4) {
      load_query_rows(args, s, 0, 0, operands.q);
      lead(args, s, ring, weighed, operands, at, attention);
    } else {
      if (warp == 4) {  // while the leader makes the first weights
        Walk next = walk;
        const bool more = next_segment(args, next);
        if (lane == 0) found_segment(number + 1) = {next, more};
      }
      follow(args, s, ring, weighed, operands, at, attention);
    }
    if constexpr (kStamped) stamp(args, kStreamed);
    if (!whole) begin_fix_up(args, walk, fix);
    sync_workers();  // all are done with q, whose place write_results takes, and with the fix-up before
    if constexpr (kStamped) stamp(args, kGathered);
    const bool complete = whole || completes_pair(args, fix, attention);
    finish_segment(args, walk, complete, fix, attention);
    if constexpr (kStamped) stamp(args, kFinished);
  }
  end_fix_up(args);
  if constexpr (kConvertingCtas > 1) leave_cluster();
  if constexpr (kStamped) {
    if (any) stamp(args, kDone);  // a CTA without a range gets here, too
  }
}
