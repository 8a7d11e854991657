// decode_roles.cuh -- the kernel of the wgmma family whose warpgroups share O's columns: warps 0 .. 7 attend, and warp
// 8 requests KV.

static_assert(kHasRoles, "the ring counts the readers of a stage");
static_assert(sizeof(Operands) + kStages * kStageBytes + kLeanAtomBytes == kSharedBytes,
              "host and device must agree on dynamic shared memory");

// Registers of a thread once the producer's warpgroup has handed most of its own to the others (PTX ISA,
// "setmaxnreg").
constexpr int kConsumerRegisters = kGathers ? 200 : 224, kProducerRegisters = kGathers ? 104 : 56;
static_assert(kThreads * kConsumerRegisters + 128 * kProducerRegisters <= 65536, "an SM has 64 Ki registers");

// `weighed` of the stages: their weights are in shared memory.
LEAN_DEVICE u32 weighed_barriers() {
  __shared__ __align__(8) u64 barriers[kStages];
  return shared_address(barriers);
}

// Whether `x` holds in any thread of the warpgroup.
LEAN_DEVICE bool any_of_warpgroup(bool x) {
  u32 any;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; barrier.cta.red.or.pred p, %2, 128, p; selp.u32 %0, 1, 0, p; }"
               : "=r"(any)
               : "r"((u32)x), "r"(threadIdx.x / 128 + 5)
               : "memory");
  return any != 0;
}

// Whether the scores of an own step come before the values of the other warpgroup's: what there is to multiply with
// first. A stage has no room for the step after the next before both have multiplied its values.
LEAN_DEVICE bool scores_come_first(const LeanDecodeArgs& args, u32 full, u32 parity, u32 weighed, u32 other_parity) {
  u32 waited = 0;
  do {
    if (any_of_warpgroup(is_complete_now(full, parity))) return true;
    if (any_of_warpgroup(is_complete_now(weighed, other_parity))) return false;
  } while (any_of_warpgroup(goes_on_waiting(args, waited)));
  return true;
}

// Waits for the weights of a step of the other warpgroup, and for the part of its V that this one multiplies.
LEAN_DEVICE void wait_weighed(const LeanDecodeArgs& args, const KvRing& ring, const RingPosition& at, u32 weighed) {
  const int first = (int)(threadIdx.x / 128) * (kVPanels / 2);
#pragma unroll
  for (int part = 0; part < kStageParts; part++) {
    if ((part + 1) * kPartPanels > first && part * kPartPanels < first + kVPanels / 2)
      wait_ring(args, full_barriers(ring, at) + part * 8, at.parity);
  }
  wait_ring(args, weighed + at.stage * 8, at.parity);
  if constexpr (kGathers) fence_async_proxy();
}

// Attends to a segment. at: its first step, and then the one behind it.
LEAN_DEVICE void attend_segment(const LeanDecodeArgs& args, const Segment& s, const KvRing& ring, u32 weighed,
                                Operands& operands, int own, RingPosition& at, Values& a) {
  const int lane = threadIdx.x % 32, begin = first_read(s), end = end_read(s),
            steps = (end - begin + kStepTokens - 1) / kStepTokens;
  Softmax softmax;
  float other_sum[2] = {0.0f, 0.0f}, other_max[2] = {kNegInf, kNegInf};  // of the other's last step
  // The rows' state after a step of the other, which the next own one follows.
  const auto take_others = [&](const RingPosition& of) {
    const StepRows& rows = operands.rows[of.stage];
#pragma unroll
    for (int half = 0; half < 2; half++)
      other_max[half] = rows.max[lane_row() + 8 * half], other_sum[half] = rows.sum[lane_row() + 8 * half];
  };
  // The shuffle tells the compiler that it is uniform.
  const auto stage_of = [&](const RingPosition& of) {
    return __shfl_sync(kFullMask, ring.stages + of.stage * kStageBytes, 0);
  };
  const auto release = [&](const RingPosition& of) {
    __syncwarp();
    if (lane == 0) release_stage(ring, of);
  };
  RingPosition other = at;
  bool owes = own == 1 && steps > 0;  // a step of the other, `other`, is not added yet
  if (owes) at.next();
#pragma unroll 1
  for (int i = own; i < steps; i += 2) {
    const u32 full = full_barriers(ring, at), stage = stage_of(at);
    if (owes && !scores_come_first(args, full, at.parity, weighed + other.stage * 8, other.parity)) {
      wait_weighed(args, ring, other, weighed);
      begin_values(stage_of(other), own, operands.rows[other.stage], a);
      wgmma_commit();
      take_others(other);
      wgmma_wait<0>();
      pin(a.out);
      release(other);
      owes = false;
    }
    float score[kStepTokens / 8][4], factor[2];
    u32 weight[kStepTokens / 8][2];
    begin_scores(args, stage, full, at.parity, operands, score);
    if (__any_sync(kFullMask, owes)) {  // the vote tells the compiler that the branch is uniform
      wait_weighed(args, ring, other, weighed);
      begin_values(stage_of(other), own, operands.rows[other.stage], a);
      take_others(other);
    }
    wgmma_commit();  // of nothing if there are no values to add
    wgmma_wait<1>();
    pin(score);
    weigh_step(args, s, step_at(s, begin + i * kStepTokens), i + 2 >= steps, stage, operands.rows[at.stage], other_max,
               softmax, score, factor, weight);
    if (lane == 0) arrive(weighed + at.stage * 8);
    wgmma_wait<0>();
    pin(a.out);
    if (owes) release(other);
    add_own_values(stage, own, factor, weight, a);
    release(at);
    at.next();
    other = at;
    owes = i + 1 < steps;
    if (owes) at.next();
  }
  if (owes) {
    wait_weighed(args, ring, other, weighed);
    begin_values(stage_of(other), own, operands.rows[other.stage], a);
    wgmma_commit();
    take_others(other);
    wgmma_wait<0>();
    pin(a.out);
    release(other);
  }
  // The sums of both, under the maximum of the last step.
  add_lanes(softmax.sum);
  const bool is_last = steps > 0 && (steps - 1) % 2 == own;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float last_max = is_last ? softmax.max[half] : other_max[half],
                last_sum = is_last ? softmax.sum[half] : other_sum[half],
                max = is_last ? other_max[half] : softmax.max[half],
                sum = is_last ? other_sum[half] : softmax.sum[half];
    a.max[half] = last_max;
    a.sum[half] = fmaf(sum, exp2_approx((max - reference_of(last_max)) * args.scale_log2), last_sum);
  }
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
  if (warp == kWarps) {
    if (lane == 0) {
      if constexpr (!kGathers) prefetch_map(k_map);
#pragma unroll
      for (int s = 0; s < kStages; s++) init_barrier(weighed + (u32)(s * 8), 4);
      init_ring(ring);
    }
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"(kThreads + 32) : "memory");
  }
  if (warp < kWarps) init_fix_up();

  // Each role has a walk of its own, so that no register is taken by it in both. A walk that does not start means that
  // there are more CTAs than tile positions.
  if (warp >= kWarps) {
    Walk walk;
    if (!start_walk(args, length, part_sums, walk)) return;
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    if constexpr (kGathers) {
      sync_gatherers();
      produce(args, k_map, v_map, ring, walk);
      return;
    }
    if (warp == kWarps) produce(args, k_map, v_map, ring, walk);
    return;
  }

  Walk walk;
  if (!start_walk(args, length, part_sums, walk)) return;
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
  if constexpr (kPdl) wait_for_previous_kernel();  // which may write q
  load_query(args, walk.segment, operands);
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads + 32) : "memory");  // the barriers are initialised
  sync_workers();                                                   // q is in place
  RingPosition at;
  FixUp fix = {};
#pragma unroll 1
  for (bool more = true; more;) {
    const Walk here = walk;
    const bool whole = is_whole(here.segment);
    if (!whole) plan_fix_up(args, here, fix);  // while the first KV is on its way
    Values values;
    clear(values);
    attend_segment(args, here.segment, ring, weighed, operands, warp / 4, at, values);
    if (!whole) begin_fix_up(args, here, fix);
    more = next_segment(args, walk);
    sync_workers();  // all have read q, and are done with the fix-up before
    if (more) load_query(args, walk.segment, operands);
    finish_segment(args, here, whole, fix, values);
    sync_workers();
  }
  end_fix_up(args);
}
