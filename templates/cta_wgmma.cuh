// cta_wgmma.cuh -- what the warps of a CTA do. A producer streams KV through a ring. Warps 0 .. kWarps - 1 are the
// warpgroups: they attend to its steps, merge their states, and write the result of a segment or hand it to the fix-up.
// ---
// The producer is one warp, or the warps that copy rows one by one, behind the warpgroups.

constexpr int kMergeBytes = kHoldsResults ? 0 : lean_round_up(sizeof(MergeBuffer), kLeanAtomBytes);
constexpr int kOperands = kColumnsAreSplit ? 1 : kWarpgroups;
constexpr int kRingOffset = kMergeBytes + kOperands * (int)sizeof(Operands);
static_assert(kRingOffset + kStages * kStageBytes + kRowBufferBytes + kLeanAtomBytes == kSharedBytes,
              "host and device must agree on dynamic shared memory");

LEAN_DEVICE KvRing ring_of_cta() { return kv_ring(shared_address(walk_shared()) + kRingOffset); }

// Initialises the ring and finds the first segment. False where this CTA's range is empty. To be called by all warps.
LEAN_DEVICE bool enter_cta(const LeanDecodeArgs& args, const LeanTensorMap& k_map, const LeanTensorMap& v_map,
                           Walk& walk) {
  if constexpr (kPdl && kSelectionBlock > 0) wait_for_previous_kernel();  // which may write the selection
  if constexpr (kStamped) stamp(args, kStarted);
  const int length = first_length(args);
  __shared__ u32 part_sums[kParts];
  if constexpr (kPdl) asm volatile("griddepcontrol.launch_dependents;");
  if (threadIdx.x / 32 == kWarps) {
    if (threadIdx.x % 32 == 0) {
      if constexpr (!kGathers) prefetch_map(k_map), prefetch_map(v_map);
      init_ring(ring_of_cta());
#if defined(LEAN_PASSES)
      init_pieces();
#endif
    }
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"n"(kFirstBarrier + 2), "n"(kThreads + 32) : "memory");
  }
  if (threadIdx.x < kThreads) init_fix_up();
#if defined(LEAN_PASSES)
  Walk rest;
  bool any_rest;
  const bool any = start_walk(args, length, part_sums, walk, rest, any_rest);
  if (threadIdx.x / 32 == kWarps + kPartProducers) note_piece(1, any_rest, rest);  // which finds the others
#else
  const bool any = start_walk(args, length, part_sums, walk);
#endif
  if constexpr (kStamped) {
    if (any) stamp(args, kPlaced);
  }
  return any;
}

// What the producer's warps do. any: what enter_cta has said.
LEAN_DEVICE void produce_in_cta(const LeanDecodeArgs& args, const LeanTensorMap& k_map, const LeanTensorMap& v_map,
                                bool any, Walk& walk) {
#if defined(LEAN_PASSES)
  if (threadIdx.x / 32 > kWarps + kPartProducers) return;
  sync_producers();
  if (threadIdx.x / 32 == kWarps + kPartProducers) return find_pieces(args, walk);
#else
  if constexpr (!kGathers && kProducerWarps > kPartProducers) {  // of which some are there for their registers alone
    if (threadIdx.x / 32 >= kWarps + kPartProducers) return;
  }
  if constexpr (kGathers || kPartProducers > 1) sync_producers();
#endif
  if constexpr (kStamped) {
    if (any) stamp(args, kRequested, kThreads);
  }
  if (any && (kGathers || threadIdx.x / 32 < kWarps + kPartProducers)) produce(args, k_map, v_map, ring_of_cta(), walk);
}

// What the warpgroups do.
LEAN_DEVICE void attend_in_cta(const LeanDecodeArgs& args, bool any, Walk& walk) {
  MergeBuffer& buffer = *(MergeBuffer*)walk_shared();
  const KvRing ring = ring_of_cta();
  // The shuffle tells the compiler that `warp` is uniform.
  const int warp = __shfl_sync(kFullMask, threadIdx.x / 32, 0), warpgroup = warp / 4;
  Operands& operands = ((Operands*)(walk_shared() + kMergeBytes))[kColumnsAreSplit ? 0 : warpgroup];
  Query q;
  StepOrder order;
  if constexpr (kPdl) wait_for_previous_kernel();  // which may write q
#if defined(LEAN_APPENDS_TO_STAGE)
  if (any) order.fresh = load_new_chunk(args, walk.segment, threadIdx.x % 128);
#endif
  if (any) load_query(args, walk.segment, q);
  if (threadIdx.x == 0) found_segment(0) = {walk, any};
  asm volatile("bar.sync %0, %1;" ::"n"(kFirstBarrier + 2), "n"(kThreads + 32) : "memory");  // the ring is initialised
#if defined(LEAN_GROUP)
  if (!take_segment(0, walk)) return take_part_without_range(args);
  join_group(args);
#else
  if (!take_segment(0, walk)) return;  // there are more CTAs than tile positions
#endif
  FixUp fix = {};
#pragma unroll 1
  for (bool more = true; more;) {
    const Walk here = walk;
    const bool whole = is_whole(here.segment);
    store_query(args, here.segment, operands, q);
    if (!whole) plan_fix_up(args, here, fix);  // while the first KV is on its way
    Attention attention;
    clear(attention);
    if constexpr (kColumnsAreSplit) {
      sync_workers();  // q is in place
    } else {
      sync_warpgroup(warpgroup);
    }
    attend_segment(args, here.segment, ring, order, operands, attention, warpgroup);
    if constexpr (kStamped) stamp(args, kStreamed);
    if (!whole) begin_fix_up(args, here, fix);
    reduce_sums(attention, operands, warpgroup);
    more = next_segment(args, walk);
    share_state(buffer, attention);
    // The next query, and with it new rows, is loaded before the fix-up, which is all latency, and where the state
    // leaves the registers, after that.
#if defined(LEAN_APPENDS_TO_STAGE)
    if (more) order.fresh = load_new_chunk(args, walk.segment, threadIdx.x % 128);
#endif
    if (more) load_query(args, walk.segment, q);
    if constexpr (kStamped) stamp(args, kGathered);
    finish_segment(args, here, whole, fix, results_of(buffer, attention, whole));
    if constexpr (kStamped) stamp(args, kFinished);
  }
  end_fix_up(args);
  if constexpr (kRanks > 1) receive_columns(args);
  if constexpr (kStamped) stamp(args, kDone);
}
