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
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if constexpr (kPdl) asm volatile("griddepcontrol.launch_dependents;");

  KvPipe kv;
  kv.init(ring, warp, lane, args);
  Walk walk = start_walk(args, chunk_sums);
  if (walk.position == walk.end) return;   // more CTAs than tiles

  WarpTokens tokens = warp_tokens(args, walk.segment, warp);
  if (kPdl && walk.segment.tile_end == walk.segment.tiles) wait_for_previous_kernel();   // the newest tokens may come from it
  kv.start(tokens);
  wait_for_previous_kernel();              // q does come from it
  for (;;) {
    Query q;
    load_query(args, walk.segment, lane, q);
    Attention attention;
    clear(attention);
    for (int step = 0; step < tokens.steps; step++) attend(kv, q, attention, min(kWarpTokens, tokens.left - step * kWarps * kWarpTokens), args.scale_log2, lane);
    reduce_sums(attention);

    // The next segment's KV is requested before this one's fix-up, which is all latency.
    Walk next = walk;
    const bool more = next_segment(args, next);
    if (more) {
      tokens = warp_tokens(args, next.segment, warp);
      if constexpr (kPrefetchSegments) kv.start(tokens);
    }
    __syncthreads();                       // the previous segment's readers of the buffer are done
    store_warp_state(buffer, warp, lane, attention, args.scale_log2);
    __syncthreads();
    if (walk.segment.tile_begin == 0 && walk.segment.tile_end == walk.segment.tiles) {
      for_each_column([&](int column) {
        float4 o;
        const RowState state = merge_warps(buffer, column, o);
        write_output(args, walk.segment, column, state, o);
      });
    } else {
      fix_up(args, walk, buffer);
    }
    if (!more) return;
    walk = next;
    if constexpr (!kPrefetchSegments) kv.start(tokens);
  }
}
