// fixup_ticket.cuh -- fix-up "ticket": the contributor that arrives last merges, nobody waits. Above kTreeWidth contributors a tree:
// the last of each group of neighbours merges the group, then the last of the groups merges those. Every sum is taken in context order,
// whoever takes it, so results repeat bit for bit for a given (lengths, grid).

constexpr u32 kTreeWidth = 16;

// True in the CTA that arrives last of `count`. The counter wraps back to zero by itself (PTX ISA, "atom", .inc). The barrier before
// makes the CTA's stores part of thread 0's release; the one after extends its acquire to the CTA.
LEAN_DEVICE bool arrive_last(u32* counter, u32 count) {
  __shared__ u32 ticket;
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(count - 1) : "memory");
    ticket = before;
  }
  __syncthreads();
  return ticket == count - 1;
}

LEAN_DEVICE void fix_up(const LeanDecodeArgs& args, const Walk& walk, const MergeBuffer& buffer) {
  const Contributors c = contributors_of(walk);
  float* mine = partial_of(args, c, c.mine);
  for_each_column([&](int column) {
    float4 o;
    const RowState state = merge_warps(buffer, column, o);
    store_partial(mine, false, column, state, o);
  });

  u32 width = 1;   // contributors per piece of the last merge
  if (c.count > kTreeWidth) {
    width = c.count <= kTreeWidth * kTreeWidth ? kTreeWidth : (c.count + kTreeWidth - 1) / kTreeWidth;
    const u32 leader = c.mine / width * width, members = min(width, c.count - leader);
    if (!arrive_last(args.tickets + partial_index(c, leader), members)) return;
    for_each_column([&](int column) {
      RowState state = {kNegInf, 0.0f};
      float4 o = make_float4(0, 0, 0, 0);
      merge_partials(args, c, leader, 1, members, false, column, state, o);
      store_partial(partial_of(args, c, leader), true, column, state, o);
    });
  }
  const u32 pieces = (c.count + width - 1) / width;
  if (!arrive_last(tile_counter(args, walk.segment), pieces)) return;
  for_each_column([&](int column) {
    RowState state = {kNegInf, 0.0f};
    float4 o = make_float4(0, 0, 0, 0);
    merge_partials(args, c, 0, width, pieces, width > 1, column, state, o);
    write_output(args, walk.segment, column, state, o);
  });
}
