// merge/receive_columns.cuh -- the end of a group's launch: a rank merges what all ranks have sent of the rows that
// it writes. Every CTA takes an equal share of the columns once its own range is done, so that the stream of KV never
// waits for another rank. Ranks are added up in their order, so results repeat bit for bit.
//
// CTAs wait here for those of other ranks, which send before they wait. So all CTAs of a launch must be resident.

// Waits for the signal of every other rank, each by one lane. To be called by a whole warp.
LEAN_DEVICE void await_signals(const LeanDecodeArgs& args) {
  const Exchange& e = exchange();
  const u32 expected = agreement(args);
#pragma unroll 1
  for (u32 rank = threadIdx.x % 32; rank < kRanks; rank += 32) {
    if (rank == (u32)args.group_rank) continue;
    u64 signal;
    u32 waited = 0;
    bool waits;
    do {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                   : "=l"(signal)
                   : "l"(signal_of(e, (u32)args.group_rank, rank))
                   : "memory");
      waits = (u32)signal != signal_tag(e);
    } while (waits && goes_on_waiting(args, waited, kLeanRankMissing | rank << kLeanRankShift));
    if (!waits && (u32)(signal >> 32) != expected) report_fault(args, kLeanRankDiffers | rank << kLeanRankShift);
  }
}

// Merges column `column` of the rank's slots and writes it, if `wanted`.
LEAN_DEVICE void receive_column(const LeanDecodeArgs& args, u32 column, bool wanted, const Output& output) {
  const Exchange& e = exchange();
  RowState state = {kNegInf, 0.0f};
  float4 o = make_float4(0, 0, 0, 0);
  u32 begin = 0;
#pragma unroll 1
  do {
    RowState stat[kRankBatch];
    float4 out[kRankBatch];
    char* slot[kRankBatch];
#pragma unroll
    for (u32 i = 0; i < kRankBatch; i++) {
      slot[i] = slot_of(e, (u32)args.group_rank, min(begin + i, kRanks - 1));
      stat[i] = {kNegInf, 0.0f}, out[i] = make_float4(0, 0, 0, 0);
    }
    bool all;
    u32 waited = 0;
    do {
      all = true;
#pragma unroll
      for (u32 i = 0; i < kRankBatch; i++)
        load_sent(e, slot[i], column, wanted && begin + i < kRanks && !arrived(stat[i], out[i]), stat[i], out[i]);
      u32 missing = 0;
#pragma unroll
      for (u32 i = 0; i < kRankBatch; i++) {
        const bool here = arrived(stat[i], out[i]) || !wanted || begin + i >= kRanks;
        if (!here) missing = begin + i;
        all &= here;
      }
      if (!all && !goes_on_waiting(args, waited, kLeanRankMissing | missing << kLeanRankShift)) {
#pragma unroll
        for (u32 i = 0; i < kRankBatch; i++) give_up(wanted && begin + i < kRanks, stat[i], out[i]);
      }
    } while (!all);
    const float before = state.max;
#pragma unroll
    for (u32 i = 0; i < kRankBatch; i++) {
      state.max = fmaxf(state.max, stat[i].max);
      clear_sent(e, slot[i], column, wanted && begin + i < kRanks);
    }
    const float reference = reference_of(state.max), keep = exp2_approx((before - reference) * args.scale_log2);
    state.sum *= keep;
    o.x *= keep, o.y *= keep, o.z *= keep, o.w *= keep;
#pragma unroll
    for (u32 i = 0; i < kRankBatch; i++) {
      const float weight = exp2_approx((stat[i].max - reference) * args.scale_log2);
      state.sum = fmaf(stat[i].sum, weight, state.sum);
      add_scaled(o, out[i], weight);
    }
    begin += kRankBatch;
  } while (begin < kRanks);
  if (wanted) write_output(args, output, state, o);
}

// To be called by all threads that hold results, after the last column of this CTA was delivered.
LEAN_DEVICE void receive_columns(const LeanDecodeArgs& args) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = (u32)args.group_rank;
  const u32 kv_heads = kv_heads_of_rank(args), first_kv_head = first_kv_head_of(args, rank),
            total = (u32)args.batch * kv_heads * (kQueryRows * kRowColumns);
  // The CTA that most rarely has columns.
  if (blockIdx.x == gridDim.x - 1 && warp == kWarps - 1) await_signals(args);
#pragma unroll 1
  for (u32 first = (warp * gridDim.x + blockIdx.x) * 32; first < total; first += gridDim.x * (kWarps * 32)) {
    const u32 column = min(first + lane, total - 1), row_index = column / kRowColumns,
              of_kv_head = row_index / kQueryRows, row = row_index - of_kv_head * kQueryRows,
              request = lean_quotient(of_kv_head, kv_heads);
    Segment s = {};
    s.request = (int)request;
    s.kv_head = (int)(first_kv_head + of_kv_head - request * kv_heads);
    s.row_block = (int)(row / kRows);
    s.query = query_tokens(args.q_offsets, s.request);
    const Output output = output_of(args, s, column_at((int)(row % kRows), (int)(column % kRowColumns)));
    const bool wanted =
        first + lane < total && output.valid && (kReplicateOutput || owner_of_head(args, output.head) == rank);
    receive_column(args, column, wanted, output);
  }
}

// The part of a CTA in a group's launch whose range is empty. To be called by all threads that hold results.
LEAN_DEVICE void take_part_without_range(const LeanDecodeArgs& args) {
  if constexpr (kPdl) wait_for_previous_kernel();  // which may be a launch of this group
  join_group(args);
  sync_workers();
  receive_columns(args);
}
