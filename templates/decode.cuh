// decode.cuh -- the kernel: walk the line; for each segment stream KV through the warps, merge the warps, fix up across CTAs.

constexpr int kMergeBytes = ((int)sizeof(MergeBuffer) + 127) / 128 * 128;
static_assert(kMergeBytes + kWarps * kRingBytes == kSharedBytes, "host and device must agree on dynamic shared memory");
static_assert(kPartialFloats == kHostPartialFloats, "host and device must agree on the workspace");

// With programmatic dependent launch everything before this point may run while the previous kernel of the stream still does.
LEAN_DEVICE void wait_for_previous_kernel() {
  if constexpr (kPdl) asm volatile("griddepcontrol.wait;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(kThreads, kCtasPerSm) KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ u32 chunk_sums[kLengthChunks];
  MergeBuffer& buffer = *(MergeBuffer*)shared;
  const u32 ring = shared_address(shared) + kMergeBytes;
  const int warp = __shfl_sync(kFullMask, threadIdx.x / 32, 0), lane = threadIdx.x % 32;   // the shuffle tells the compiler that warp is uniform
  if constexpr (kPdl) asm volatile("griddepcontrol.launch_dependents;");
  init_fix_up();

  KvPipe kv;
  kv.init(ring, warp, lane, args);
  Walk walk;
  if (!start_walk(args, chunk_sums, walk)) return;   // more CTAs than tiles

  // The code after the stream is long and cold, and its instruction misses would add most of a microsecond to a short launch. So the
  // first trip through the loop is a rehearsal: it runs that code on nothing, with all stores off, while the first KV is on its way.
  Walk done = walk;                        // the segment whose state `attention` holds
  FixUp fix = {};
  Attention attention;
  clear(attention);
  bool whole = is_whole(walk.segment);     // that segment is its whole output tile
#pragma unroll 1
  for (bool rehearsal = true, more = true;; rehearsal = false) {
    // A segment's KV is requested before the fix-up of the one before it, which is all latency.
    WarpTokens tokens;
    if (more) tokens = warp_tokens(args, walk.segment, warp);
    if (kPdl && rehearsal && walk.segment.tile_end == walk.segment.tiles) wait_for_previous_kernel();   // the newest tokens may come from it
    if (kPrefetchSegments && more) kv.start(tokens);
    if (kPrefetchSegments || !rehearsal) {
      __syncthreads();                       // the last readers of the buffer are done
      store_warp_state(buffer, warp, lane, attention);
      __syncthreads();
      if (whole) {
        for_each_column([&](int column) {
          float4 o;
          const RowState state = merge_warps(buffer, column, args.scale_log2, o);
          write_output(args, done.segment, column, state, o, !rehearsal);
        });
      } else {
        finish_fix_up(args, done, fix, buffer, !rehearsal);
      }
    }
    if (kPrefetchSegments ? rehearsal || !more : !more) end_fix_up(args, !rehearsal);
    if (!more) return;
    if (!kPrefetchSegments) kv.start(tokens);
    if (kPdl && rehearsal) wait_for_previous_kernel();   // q does come from it

    Query q;
    load_query(args, walk.segment, lane, q);
    whole = is_whole(walk.segment);
    if (!whole) fix = plan_fix_up(args, walk);       // while the first KV is on its way
    clear(attention);
#pragma unroll 1
    for (int left = tokens.left; left > 0; left -= kWarps * kWarpTokens) attend(kv, q, attention, min(kWarpTokens, left), args.scale_log2, lane);
    if (!whole) begin_fix_up(args, walk, fix);
    reduce_sums(attention);
    done = walk;
    more = next_segment(args, walk);
  }
}
