// decode.cuh -- the kernel of the mma and vector families. A CTA walks its range of the line. For each segment it
// streams KV through its warps, merges the warps' states, and writes the result or hands it to the fix-up.

constexpr int kMergeBytes = lean_round_up(sizeof(MergeBuffer), 128);
static_assert(kMergeBytes + kWarps * (kRingBytes + kQueryBytes) == kSharedBytes,
              "host and device must agree on dynamic shared memory");

extern "C" __global__ void __launch_bounds__(kThreads, kCtasPerSm)
#if defined(LEAN_BOXES)
    KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args, const __grid_constant__ LeanTensorMaps maps) {
#else
    KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args) {
#endif
  if constexpr (kPdl && kSelectionBlock > 0) wait_for_previous_kernel();  // which may write the selection
  if constexpr (kStamped) stamp(args, kStarted);
  const int length = first_length(args);
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ u32 part_sums[kParts];
  MergeBuffer& buffer = *(MergeBuffer*)shared;
  const u32 ring = shared_address(shared) + kMergeBytes;
  // The shuffle tells the compiler that `warp` is uniform.
  const int warp = __shfl_sync(kFullMask, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if constexpr (kPdl) asm volatile("griddepcontrol.launch_dependents;");
  init_fix_up();

  KvPipe kv;
#if defined(LEAN_BOXES)
  kv.init(ring, warp, lane, args, maps);
#else
  kv.init(ring, warp, lane, args);
#endif
  Walk walk;
#if defined(LEAN_GROUP)
  if (!start_walk(args, length, part_sums, walk)) return take_part_without_range(args);
#else
  if (!start_walk(args, length, part_sums, walk)) return;  // there are more CTAs than tile positions
#endif
  if constexpr (kStamped) stamp(args, kPlaced);

  if constexpr (kPdl) {
    if (holds_newest(walk.segment)) wait_for_previous_kernel();  // which may write the newest tokens
  }
  const auto issue_loads = [&] {
    if constexpr (kAppend) append_tokens(args, walk.segment, warp, kWarps);
    kv.start(args, walk.segment, warp);
  };
  // The first loads stand outside the loop, because the compiler puts what it hoists out of the loop in front of it.
  if (kPrefetchSegments) issue_loads();
  if constexpr (kStamped && kPrefetchSegments) stamp(args, kRequested);

  FixUp fix = {};
#pragma unroll 1
  for (bool first = true;; first = false) {
    if (!kPrefetchSegments) issue_loads();
    if constexpr (kStamped && !kPrefetchSegments) stamp(args, kRequested);
    if constexpr (kPdl) {
      if (first) wait_for_previous_kernel();  // which may write q
    }
    if constexpr (kRanks > 1) {
      if (first) join_group(args);
    }
    const Walk here = walk;
    const bool whole = is_whole(here.segment);
    Query q;
    place_query(q, shared + kMergeBytes + kWarps * kRingBytes + warp * kQueryBytes, lane);
    load_query(args, here.segment, lane, q);
    if (!whole) plan_fix_up(args, here, fix);  // while the first KV is on its way
    Attention attention;
    clear(attention);
    const int end = end_read(here.segment);
#pragma unroll 1
    for (int left = end - first_read(here.segment) - warp * kStepTokens; left > 0; left -= kRoundTokens)
      attend(args, here.segment, step_at(here.segment, end - left), kv, q, attention, lane);
    if constexpr (kStamped) stamp(args, kStreamed);
    if (!whole) begin_fix_up(args, here, fix);
    reduce_sums(attention);
    const bool more = next_segment(args, walk);
    if (!first) sync_workers();  // the last readers of the buffer are done
    store_state(buffer, warp, lane, attention);
    // The next segment's loads go out before the fix-up, which is all latency, and after the state has left the
    // registers.
    if (kPrefetchSegments && more) issue_loads();
    sync_workers();
    if constexpr (kStamped) stamp(args, kGathered);
    finish_segment(args, here, whole, fix, buffer);
    if constexpr (kStamped) stamp(args, kFinished);
    if (!more) break;
  }
  end_fix_up(args);
  if constexpr (kRanks > 1) receive_columns(args);
  if constexpr (kStamped) stamp(args, kDone);
}
