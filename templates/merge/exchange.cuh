// merge/exchange.cuh -- the memory through which the ranks of a group exchange columns (docs/groups.md). A rank has
// room there for what each rank sends to it, itself included, twice: a launch uses one of two slots a rank, by the
// parity of its epoch. Columns announce themselves as partials do (merge/workspace.cuh), and the rank that reads them
// puts the zeros back.
//
// A rank may write a slot again once the launch that read it has ended. Each launch sends one signal to every other
// rank, and does not end before it has got theirs. So when a rank is in launch n + 2, every other one has begun launch
// n + 1 and ended launch n. The signal is what the memory model needs (PTX ISA, "Memory consistency model"): the zeros
// of launch n come before the signal's release by the order of the stream, the release before its acquire on this rank,
// and that before the writes of launch n + 2 by the order of this rank's stream. Columns themselves are relaxed.

// What this CTA knows of the group, in shared memory.
struct Exchange {
  u64 base[kRanks];  // of each rank's exchange memory
  u32 epoch, columns;
};
LEAN_DEVICE LeanGroup* group_of(const LeanDecodeArgs& args) { return (LeanGroup*)args.group; }
LEAN_DEVICE Exchange& exchange() {
  __shared__ Exchange shared_exchange;
  return shared_exchange;
}

// The slot in the memory of rank `to` for what rank `from` sends in this launch.
LEAN_DEVICE char* slot_of(const Exchange& e, u32 to, u32 from) {
  return (char*)e.base[to] + kLeanSignalBytes +
         (u64)((e.epoch & 1) * kRanks + from) * ((u64)e.columns * kLeanColumnBytes);
}
LEAN_DEVICE u64* signal_of(const Exchange& e, u32 to, u32 from) {
  return (u64*)e.base[to] + ((e.epoch & 1) * kLeanMostRanks + from);
}

// The query heads whose results a rank writes, and the KV heads to which they belong: rank `rank` has those from
// rank * heads / kRanks on.
LEAN_DEVICE u32 heads_of_rank(const LeanDecodeArgs& args) {
  return (u32)(args.kv_heads * kGroup) / (kReplicateOutput ? 1 : kRanks);
}
LEAN_DEVICE u32 kv_heads_of_rank(const LeanDecodeArgs& args) {
  return kReplicateOutput ? (u32)args.kv_heads : max((u32)args.kv_heads / kRanks, 1u);
}
LEAN_DEVICE u32 first_kv_head_of(const LeanDecodeArgs& args, u32 rank) {
  return kReplicateOutput ? 0 : rank * (u32)args.kv_heads / kRanks;
}
// Which rank writes the results of a query head; 0 where all do.
LEAN_DEVICE u32 owner_of_head(const LeanDecodeArgs& args, int head) {
  return kReplicateOutput ? 0 : lean_quotient((u32)head, heads_of_rank(args));
}

LEAN_DEVICE float4* slot_column(char* slot, u32 column) { return (float4*)slot + column; }
LEAN_DEVICE float2* slot_state(const Exchange& e, char* slot, u32 column) {
  return (float2*)(slot + (u64)e.columns * 16) + column;
}

LEAN_DEVICE void send_column(const Exchange& e, char* slot, u32 column, const RowState& state, const float4& o) {
  asm volatile(
      "{ .reg .b64 lo, hi; .reg .b128 x; mov.b64 lo, {%1, %2}; mov.b64 hi, {%3, %4}; mov.b128 x, {lo, hi};\n"
      "st.relaxed.sys.global.b128 [%0], x; }" ::"l"(slot_column(slot, column)),
      "f"(present(o.x)), "f"(o.y), "f"(o.z), "f"(o.w)
      : "memory");
  asm volatile(
      "{ .reg .b64 x; mov.b64 x, {%1, %2}; st.relaxed.sys.global.b64 [%0], x; }" ::"l"(slot_state(e, slot, column)),
      "f"(present(state.max)), "f"(state.sum)
      : "memory");
}

// Loads a column if `wanted`, and leaves `o` and `state` as they are otherwise.
LEAN_DEVICE void load_sent(const Exchange& e, char* slot, u32 column, bool wanted, RowState& state, float4& o) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 lo, hi; .reg .b128 x; setp.ne.u32 p, %5, 0; mov.b64 lo, {%0, %1}; mov.b64 hi, {%2, "
      "%3}; mov.b128 x, {lo, hi};\n"
      "@p ld.relaxed.sys.global.b128 x, [%4]; mov.b128 {lo, hi}, x; mov.b64 {%0, %1}, lo; mov.b64 {%2, %3}, hi; }"
      : "+f"(o.x), "+f"(o.y), "+f"(o.z), "+f"(o.w)
      : "l"(slot_column(slot, column)), "r"((u32)wanted)
      : "memory");
  asm volatile(
      "{ .reg .pred p; .reg .b64 x; setp.ne.u32 p, %3, 0; mov.b64 x, {%0, %1}; @p ld.relaxed.sys.global.b64 x, [%2]; "
      "mov.b64 {%0, %1}, x; }"
      : "+f"(state.max), "+f"(state.sum)
      : "l"(slot_state(e, slot, column)), "r"((u32)wanted)
      : "memory");
}

LEAN_DEVICE void clear_sent(const Exchange& e, char* slot, u32 column, bool wanted) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v4.u32 [%0], {%2, %2, %2, %2}; @p st.global.v2.u32 [%1], "
      "{%2, %2}; }" ::"l"(slot_column(slot, column)),
      "l"(slot_state(e, slot, column)), "r"(0), "r"((u32)wanted)
      : "memory");
}

// ---- signals ----

// What all ranks must agree on, in 32 bits, which travel with the signal. To be called by a whole warp.
LEAN_DEVICE u32 agreement(const LeanDecodeArgs& args) {
  constexpr u32 kPrime = 0x9e3779b1u;  // 2^32 / the golden ratio: spreads each value over all bits
  u32 lengths = 0;
  if (args.group_checks != 0) {
#pragma unroll 1
    for (int i = (int)threadIdx.x % 32; i < args.batch; i += 32)
      lengths += ((u32)args.full_lengths[i] ^ (u32)i * kPrime) * kPrime;
    lengths = __reduce_add_sync(kFullMask, lengths);
  }
  u32 all = kExchangeFormat;
  all = (all ^ (u32)args.batch) * kPrime;
  all = (all ^ all >> 15 ^ (u32)args.kv_heads) * kPrime;
  all = (all ^ all >> 15 ^ __float_as_uint(kChangesScores ? args.score_scale : args.scale_log2)) * kPrime;
  return (all ^ all >> 15 ^ lengths) * kPrime;
}

// The low half of a signal; never 0 in the first launches of a group, whose signals are all 0.
LEAN_DEVICE u32 signal_tag(const Exchange& e) { return e.epoch + 1; }

// Takes part in this launch of the group: finds its epoch, and counts the CTA. To be called once by each CTA, by all
// threads that hold results, while its first KV is on its way; a barrier stands between this and the first use of
// exchange(). `arrivals` is read before this CTA counts itself, so that it speaks of this launch's epoch: the additions
// of a launch sum up to one epoch only when all CTAs have made theirs.
LEAN_DEVICE void join_group(const LeanDecodeArgs& args) {
  if (threadIdx.x >= 32) return;
  Exchange& e = exchange();
  const u32 lane = threadIdx.x;
#pragma unroll 1
  for (u32 rank = lane; rank < kRanks; rank += 32) e.base[rank] = (u64)group_of(args)->exchange[rank];
  if (lane == 0) {
    u64 arrivals;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(arrivals) : "l"(&group_of(args)->arrivals) : "memory");
    e.epoch = (u32)(arrivals >> kLeanArrivalBits);
    e.columns = group_of(args)->columns;
    const u64 mine = blockIdx.x == 0 ? (1ull << kLeanArrivalBits) - (gridDim.x - 1) : 1ull;
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(&group_of(args)->arrivals), "l"(mine) : "memory");
  }
  __syncwarp();
  if (blockIdx.x != 0) return;
  const u64 signal = (u64)agreement(args) << 32 | signal_tag(e);
#pragma unroll 1
  for (u32 rank = lane; rank < kRanks; rank += 32) {
    if (rank == (u32)args.group_rank) continue;
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(signal_of(e, rank, (u32)args.group_rank)), "l"(signal)
                 : "memory");
  }
}
