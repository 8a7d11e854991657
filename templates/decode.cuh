// decode.cuh -- the kernel: walk the line; for each segment stream KV through the warps, merge the warps, fix up across
// CTAs.

constexpr int kMergeBytes = ((int)sizeof(MergeBuffer) + 127) / 128 * 128;
static_assert(kMergeBytes + kWarps * (kRingBytes + kQueryBytes) == kSharedBytes,
              "host and device must agree on dynamic shared memory");
static_assert(kPartialFloats == kHostPartialFloats, "host and device must agree on the workspace");

extern "C" __global__ void __launch_bounds__(kThreads, kCtasPerSm)
    KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args) {
  const int length = first_length(args);
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ u32 part_sums[kParts];
  MergeBuffer& buffer = *(MergeBuffer*)shared;
  const u32 ring = shared_address(shared) + kMergeBytes;
  const int warp = __shfl_sync(kFullMask, threadIdx.x / 32, 0),
            lane = threadIdx.x % 32;  // the shuffle tells the compiler that warp is uniform
  if constexpr (kPdl) asm volatile("griddepcontrol.launch_dependents;");
  init_fix_up();

  KvPipe kv;
  kv.init(ring, warp, lane, args);
  Walk walk;
  if (!start_walk(args, length, part_sums, walk)) return;  // more CTAs than tiles

  if (kPdl && holds_newest(walk.segment)) wait_for_previous_kernel();  // the newest tokens may come from it
  // Before everything that can wait: outside the loop, or the compiler would put what it hoists first.
  const auto request = [&] {
    append_tokens(args, walk.segment, warp, kWarps);
    kv.start(args, walk.segment, warp);
  };
  if (kPrefetchSegments) request();

  FixUp fix = {};
#pragma unroll 1
  for (bool first = true;; first = false) {
    if (!kPrefetchSegments) request();
    if (kPdl && first) wait_for_previous_kernel();  // q does come from it
    const Walk here = walk;
    const bool whole = is_whole(here.segment);
    Query q;
    place_query(q, shared + kMergeBytes + kWarps * kRingBytes + warp * kQueryBytes, lane);
    load_query(args, here.segment, lane, q);
    if (!whole) plan_fix_up(args, here, fix);  // while the first KV is on its way
    Attention attention;
    clear(attention);
    const int end = end_place(here.segment);
#pragma unroll 1
    for (int left = end - first_place(here.segment) - warp * kStepTokens; left > 0; left -= kRoundTokens)
      attend(args, here.segment, step_at(here.segment, end - left), kv, q, attention, lane);
    if (!whole) begin_fix_up(args, here, fix);
    reduce_sums(attention);
    const bool more = next_segment(args, walk);
    if (!first) sync_workers();  // the last readers of the buffer are done
    store_state(buffer, warp, lane, attention);
    // Before the fix-up, which is all latency, and after the state has left the registers.
    if (kPrefetchSegments && more) request();
    sync_workers();
    finish_segment(args, here, whole, fix, buffer);
    if (!more) break;
  }
  end_fix_up(args);
}
