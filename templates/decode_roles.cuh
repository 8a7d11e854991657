// decode_roles.cuh -- the kernel of the wgmma family whose warpgroups have roles: warps 0 .. 7 hold O, warps 8 .. 11
// weigh, and warp 12 requests KV. Each role walks the CTA's range by itself, and they meet at the barriers of the ring
// only. So the weigher is at the next segment's first step while the others still hand over a result.

static_assert(kHasRoles, "the ring counts the readers of a stage");
static_assert(sizeof(Operands) + kStages * kStageBytes + kLeanAtomBytes == kSharedBytes,
              "host and device must agree on dynamic shared memory");

// Registers of a thread once the others have handed some of their own to the value warpgroups (PTX ISA,
// "setmaxnreg"). A producer that converts rows needs most.
constexpr bool kProducesMuch = kAppend || kSecondCache || kConvertsRows;
constexpr int kValueRegisters = kProducesMuch ? 168 : 176,
              kWeigherRegisters = kConvertsRows ? 96
                                  : kGathers    ? 104
                                                : 112,
              kProducerRegisters = kConvertsRows   ? 80
                                   : kProducesMuch ? 72
                                   : kGathers      ? 56
                                                   : 48;
static_assert(kThreads * kValueRegisters + 128 * (kWeigherRegisters + kProducerRegisters) <= 65536,
              "an SM has 64 Ki registers");

// `weighed` of the stages: their weights are there.
LEAN_DEVICE u32 weighed_barriers() {
  __shared__ __align__(8) u64 barriers[kStages];
  return shared_address(barriers);
}

// To be called by the weigher.
LEAN_DEVICE void weigh_range(const LeanDecodeArgs& args, const KvRing& ring, u32 weighed, Operands& operands,
                             Walk& walk) {
  RingPosition at;
#pragma unroll 1
  do {
    const Segment& s = walk.segment;
    load_query(args, s, operands);
    Softmax softmax;
    const int end = end_read(s);
#pragma unroll 1
    for (int read = first_read(s); read < end; read += kStepTokens) {
      weigh_step(args, s, step_at(s, read), read + kStepTokens >= end, ring.stages + at.stage * kStageBytes,
                 full_barriers(ring, at), at.parity, operands, operands.rows[at.stage], softmax);
      if (threadIdx.x % 32 == 0) arrive(weighed + at.stage * 8);
      at.next();
    }
  } while (next_segment(args, walk));
}

extern "C" __global__ void __launch_bounds__(kThreads + 32 * kProducerWarps, kCtasPerSm)
    KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args, const __grid_constant__ LeanTensorMap k_map,
                const __grid_constant__ LeanTensorMap v_map) {
  if constexpr (kPdl && kSelectionBlock > 0) wait_for_previous_kernel();  // which may write the selection
  const int length = first_length(args);
  extern __shared__ unsigned char dynamic_shared[];
  __shared__ u32 part_sums[kParts];
  unsigned char* const shared =
      dynamic_shared + (-shared_address(dynamic_shared) & 1023);  // swizzle atoms start at multiples of 1024
  Operands& operands = *(Operands*)shared;
  const KvRing ring = kv_ring(shared_address(shared) + (u32)sizeof(Operands));
  const u32 weighed = weighed_barriers();
  const int lane = threadIdx.x % 32;
  // The shuffle tells the compiler that `warp` is uniform.
  const int warp = __shfl_sync(kFullMask, threadIdx.x / 32, 0);
  if constexpr (kPdl) asm volatile("griddepcontrol.launch_dependents;");
  if (warp == kWarps + 4) {
    if (lane == 0) {
      if constexpr (!kGathers) prefetch_map(k_map);
#pragma unroll
      for (int s = 0; s < kStages; s++) init_barrier(weighed + (u32)(s * 8), 4);
      init_ring(ring);
    }
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"(kThreads + 128 + 32) : "memory");
  }
  if (warp < kWarps) init_fix_up();

  // Each role has a walk of its own, so that no register is taken by it in all of them. A walk that does not start
  // means that there are more CTAs than tile positions.
  if (warp >= kWarps + 4) {
    Walk walk;
    if (!start_walk(args, length, part_sums, walk)) return;
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    if constexpr (kGathers) {
      sync_gatherers();
      produce(args, k_map, v_map, ring, walk);
      return;
    }
    if (warp == kWarps + 4) produce(args, k_map, v_map, ring, walk);
    return;
  }

  if (warp >= kWarps) {
    Walk walk;
    if (!start_walk(args, length, part_sums, walk)) return;
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kWeigherRegisters));
    if constexpr (kPdl) wait_for_previous_kernel();                         // which may write q
    asm volatile("bar.sync 2, %0;" ::"n"(kThreads + 128 + 32) : "memory");  // the barriers are initialised
    weigh_range(args, ring, weighed, operands, walk);
    return;
  }

  Walk walk;
  if (!start_walk(args, length, part_sums, walk)) return;
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kValueRegisters));
  if constexpr (kPdl) wait_for_previous_kernel();  // which may still read what this one writes
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads + 128 + 32) : "memory");
  RingPosition at;
  FixUp fix = {};
#pragma unroll 1
  do {
    const Segment& s = walk.segment;
    const bool whole = is_whole(s);
    if (!whole) plan_fix_up(args, walk, fix);  // while the first KV is on its way
    Attention attention;
    clear(attention);
    const int end = end_read(s);
#pragma unroll 1
    for (int read = first_read(s); read < end; read += kStepTokens) {
#pragma unroll
      for (int part = 0; part < kStageParts; part++) wait_ring(args, full_barriers(ring, at) + part * 8, at.parity);
      wait_ring(args, weighed + at.stage * 8, at.parity);
      if constexpr (kGathers) fence_async_proxy();
      add_values(ring.stages + at.stage * kStageBytes, operands.rows[at.stage], warp / 4, attention);
      if (read + kStepTokens >= end) take_state(operands.rows[at.stage], attention);
      __syncwarp();
      if (lane == 0) arrive(ring.empty + at.stage * 8);
      at.next();
    }
    if (!whole) begin_fix_up(args, walk, fix);
    sync_workers();  // all are done with the fix-up before
    finish_segment(args, walk, whole, fix, attention);
  } while (next_segment(args, walk));
  end_fix_up(args);
}
