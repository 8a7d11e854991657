// decode_rows.cuh -- the kernel of the mma_prefill family. A CTA walks its range of the line. Its warps have different
// query rows of a segment and take all of its steps together, from one ring. So results are complete in registers, from
// where they are written or handed to the fix-up.

// Registers are few, so what is known of segments waits in shared memory, and is taken from there where it is needed.
enum { kInHand, kNext };

extern "C" __global__ void __launch_bounds__(kThreads, kCtasPerSm)
    KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args) {
  if constexpr (kStamped) stamp(args, kStarted);
  const int length = first_length(args);
  __shared__ u32 part_sums[kParts];
  if constexpr (kPdl) asm volatile("griddepcontrol.launch_dependents;");
  init_fix_up();

  KvPipe kv;
  kv.init();
  Walk walk;
  const bool any = start_walk(args, length, part_sums, walk);
  if (threadIdx.x == 0) found_segment(kNext) = {walk, any};
  sync_workers();
  if (!take_segment(kNext, walk)) return;  // there are more CTAs than tile positions
  if constexpr (kStamped) stamp(args, kPlaced);

  if constexpr (kPdl) {
    if (holds_newest(walk.segment)) wait_for_previous_kernel();  // which may write the newest tokens
  }
  kv.start(args, walk.segment);
  if constexpr (kStamped) stamp(args, kRequested);

  if constexpr (kPdl) wait_for_previous_kernel();  // which may write q
  MergeBuffer buffer;
#pragma unroll 1
  while (take_segment(kNext, walk)) {
    const Segment& s = walk.segment;
    const int end = end_read(s);
    Query q;
    load_query(args, s, q);
    sync_workers();          // all are done with the segment before
    if (threadIdx.x < 32) {  // while the first KV is on its way
      Walk next = walk;
      const bool found = next_segment(args, next);
      if (threadIdx.x == 0) found_segment(kInHand) = {walk, true}, found_segment(kNext) = {next, found};
    }
    if (first_read(s) >= end) sync_workers();  // otherwise all meet in the first step
    Attention attention;
    clear(attention);
#pragma unroll 1
    for (int read = first_read(s); read < end; read += kStepTokens) attend(args, s, read, end, kv, q, attention);
    if constexpr (kStamped) stamp(args, kStreamed);
    if (take_segment(kNext, walk)) kv.start(args, walk.segment);  // before the fix-up, which is all latency
    take_segment(kInHand, walk);
    const bool whole = is_whole(walk.segment);
    FixUp fix = {};
    if (!whole) {
      plan_fix_up(args, walk, fix);
      begin_fix_up(args, walk, fix);
    }
    reduce_sums(attention);
    if constexpr (kStamped) stamp(args, kGathered);
    finish_segment(args, walk, whole, fix, results_of(buffer, attention, whole));
    if constexpr (kStamped) stamp(args, kFinished);
  }
  end_fix_up(args);
  if constexpr (kStamped) stamp(args, kDone);
}
