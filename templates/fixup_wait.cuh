// fixup_wait.cuh -- fix-up "wait", as in the paper (LeanAttention, algorithm 2): contributors store and signal; the host CTA, which owns the
// output tile's first LeanTile, waits for all of them and reduces. Correct only on a co-resident grid (cooperative launch).

LEAN_DEVICE void fix_up(const LeanDecodeArgs& args, const Walk& walk, const MergeBuffer& buffer) {
  const Contributors c = contributors_of(walk);
  u32* counter = tile_counter(args, walk.segment);
  if (c.mine != 0) {
    float* mine = partial_of(args, c, c.mine);
    for_each_column([&](int column) {
      float4 o;
      const RowState state = merge_warps(buffer, column, o);
      store_partial(mine, false, column, state, o);
    });
    __syncthreads();   // the CTA's stores come before thread 0's release
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    return;
  }
  if (threadIdx.x == 0) {
    u32 arrived;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
    } while (arrived != c.count - 1);
    *counter = 0;      // for the next launch
  }
  __syncthreads();
  for_each_column([&](int column) {
    float4 o;
    RowState state = merge_warps(buffer, column, o);
    merge_partials(args, c, 1, 1, c.count - 1, false, column, state, o);
    write_output(args, walk.segment, column, state, o);
  });
}
