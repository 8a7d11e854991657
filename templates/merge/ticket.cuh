// merge/ticket.cuh -- fix-up "ticket": each contributor to an output tile draws a ticket, and the one that draws the
// last merges. Nobody waits for a CTA that has not started. Above kFlat contributors there are two phases: the last of
// each group of neighbours merges its group, then the last of the groups merges these. A ticket orders nothing, because
// partials announce themselves. So it is drawn before the warps are merged, which hides its round trip.
//
// Each slot of the workspace has a counter. That of an output tile is its first contributor's: no other output tile
// that has several contributors begins in the range of this CTA, because this one does not end there.
// ---
// Sums are taken in context order whoever takes them, so results repeat bit for bit for a given (lengths, grid).

constexpr u32 kFlat = 16;     // most contributors merged in one phase
constexpr u32 kMinWidth = 8;  // fewest contributors of a group

struct FixUp {
  Contributors c;
  u32 groups, width;   // groups of `width` neighbours; the last one takes what is left
  u32 group, members;  // this CTA's
  u32 ticket;          // thread 0's
};

// Behind the last ticket the counter wraps back to zero by itself (CUDA C++, "atomicInc").
LEAN_DEVICE u32 draw_ticket(u32* counter, u32 count) { return atomicInc(counter, count - 1); }

// Whether this CTA has drawn the last of `count` tickets. A ticket beyond them comes from a counter that was not zero
// before the launch; then nobody may get the last one.
LEAN_DEVICE bool is_last(const LeanDecodeArgs& args, u32 ticket, u32 count) {
  if (ticket >= count && threadIdx.x == 0) report_fault(args, kLeanWrongTicket);
  return ticket == count - 1;
}

// Tells the whole CTA thread 0's ticket. Each phase has a word of its own, because a thread may still be reading the
// first ticket when thread 0 comes with the second.
template <int kPhase>
LEAN_DEVICE u32 share_ticket(u32 ticket) {
  __shared__ u32 shared_ticket;
  if (threadIdx.x == 0) shared_ticket = ticket;
  sync_workers();
  return shared_ticket;
}

// Groups borrow the counter and partial 1 of the second, third, ... contributor's slot. These CTAs need neither,
// because they begin and end inside the output tile.
LEAN_DEVICE u32 group_slot(const FixUp& f, u32 group) { return f.c.first_slot + group + 1; }

// The counter that this CTA draws its first ticket from.
LEAN_DEVICE u32* first_counter(const LeanDecodeArgs& args, const FixUp& f) {
  return ticket_counter(args, f.groups > 1 ? group_slot(f, f.group) : f.c.first_slot);
}

LEAN_DEVICE void init_fix_up() {}

LEAN_DEVICE void plan_fix_up(const LeanDecodeArgs& args, const Walk& walk, FixUp& f) {
  f.c = contributors_of(args, walk);
  f.groups = 1, f.width = f.members = f.c.count, f.group = 0;
  if (f.c.count > kFlat) {
    f.width = max(kMinWidth, (u32)ceilf(sqrt_approx((float)f.c.count)));
    f.groups = f.c.count / f.width;
    f.group = min(f.c.mine / f.width, f.groups - 1);
    f.members = f.group + 1 < f.groups ? f.width : f.c.count - f.group * f.width;
  }
  keep_own_partial(args, f.c);
  if (threadIdx.x == 0) keep_in_l2(first_counter(args, f));
}

LEAN_DEVICE void begin_fix_up(const LeanDecodeArgs& args, const Walk&, FixUp& f) {
  if (threadIdx.x == 0) f.ticket = draw_ticket(first_counter(args, f), f.members);
}

// The partials of one phase: the first lies at `first`, number i > 0 at `base` + i * kPieceStride.
constexpr int kPieceStride = 2 * kPartialFloats;
static_assert(kStateColumns == 1 || kColumns % 32 == 0, "lanes that load a state together vote together");
struct Pieces {
  float* first;
  float* base;
  u32 count;
};

// Merges neighbouring columns of a thread (kThreads apart) in context order and puts the zeros back. The loads of
// kMergeBatch pieces are issued before any is used, so that a batch takes one round trip to L2. This waits for words
// that are still on their way, but only from CTAs that have drawn their ticket and wait for nothing.
LEAN_DEVICE void merge_pieces(const LeanDecodeArgs& args, const Pieces& pieces, int column,
                              RowState (&state)[kMergeColumns], float4 (&o)[kMergeColumns]) {
#pragma unroll
  for (int n = 0; n < kMergeColumns; n++) state[n] = {kNegInf, 0.0f}, o[n] = make_float4(0, 0, 0, 0);
  u32 begin = 0;
#pragma unroll 1
  do {
    RowState stat[kMergeColumns][kMergeBatch];
    float4 out[kMergeColumns][kMergeBatch];
    float* const rest = pieces.base + (u64)begin * kPieceStride;
    float* const head = begin == 0 ? pieces.first : rest;
#pragma unroll
    for (int n = 0; n < kMergeColumns; n++)
#pragma unroll
      for (u32 i = 0; i < kMergeBatch; i++) stat[n][i] = {kNegInf, 0.0f}, out[n][i] = make_float4(0, 0, 0, 0);
    bool all;
    u32 waited = 0, readable = pieces.count;  // none once this thread has given up
    do {
      all = true;
#pragma unroll
      for (int n = 0; n < kMergeColumns; n++)
#pragma unroll
        for (u32 i = 0; i < kMergeBatch; i++)
          load_partial(i == 0 ? head : rest + i * kPieceStride, column + n * kThreads, begin + i < readable, stat[n][i],
                       out[n][i]);
#pragma unroll
      for (int n = 0; n < kMergeColumns; n++)
#pragma unroll
        for (u32 i = 0; i < kMergeBatch; i++) all &= arrived(stat[n][i], out[n][i]) || begin + i >= pieces.count;
      if constexpr (kStateColumns > 1) all = __all_sync(kFullMask, all);  // lanes load a state together
      if (!all && !goes_on_waiting(args, waited)) {
        readable = 0;
#pragma unroll
        for (int n = 0; n < kMergeColumns; n++)
#pragma unroll
          for (u32 i = 0; i < kMergeBatch; i++) give_up(begin + i < pieces.count, stat[n][i], out[n][i]);
      }
    } while (!all);
#pragma unroll
    for (int n = 0; n < kMergeColumns; n++) {
      const float before = state[n].max;
#pragma unroll
      for (u32 i = 0; i < kMergeBatch; i++) {
        state[n].max = fmaxf(state[n].max, stat[n][i].max);
        clear_partial(i == 0 ? head : rest + i * kPieceStride, column + n * kThreads, begin + i < pieces.count);
      }
      const float reference = reference_of(state[n].max), keep = exp2_approx((before - reference) * args.scale_log2);
      state[n].sum *= keep;
      o[n].x *= keep, o[n].y *= keep, o[n].z *= keep, o[n].w *= keep;
#pragma unroll
      for (u32 i = 0; i < kMergeBatch; i++) {
        const float weight = exp2_approx((stat[n][i].max - reference) * args.scale_log2);
        state[n].sum = fmaf(stat[n][i].sum, weight, state[n].sum);
        add_scaled(o[n], out[n][i], weight);
      }
    }
    begin += kMergeBatch;
  } while (begin < pieces.count);
}

// Merges all columns of the pieces, and calls body(column, state, o) with each.
template <class Body>
LEAN_DEVICE void merge_all(const LeanDecodeArgs& args, const Pieces& pieces, Body body) {
#pragma unroll 1
  for (int i = 0; i < kColumnsPerThread; i += kMergeColumns) {
    const int column = i * kThreads + (int)threadIdx.x;
    if (kColumns % kThreads != 0 && column >= kColumns) break;
    RowState state[kMergeColumns];
    float4 o[kMergeColumns];
    merge_pieces(args, pieces, column, state, o);
#pragma unroll
    for (int n = 0; n < kMergeColumns; n++) body(column + n * kThreads, state[n], o[n]);
  }
}

LEAN_DEVICE void finish_fix_up(const LeanDecodeArgs& args, const Walk& walk, FixUp& f, const Results& results) {
  store_own_partial(args, f.c, results);
  if constexpr (!kMerges) return;
  if (!is_last(args, share_ticket<0>(f.ticket), f.members)) return;
  const u32 first = f.c.first_slot + f.group * f.width;
  Pieces pieces = {partial_at(args, first, f.group == 0 ? 1 : 0), partial_at(args, first, 0), f.members};
  if (f.groups > 1) {
    // The first phase makes one partial of the group.
    if (threadIdx.x == 0) f.ticket = draw_ticket(ticket_counter(args, f.c.first_slot), f.groups);
    merge_all(args, pieces, [&](int column, const RowState& state, const float4& o) {
      store_partial(partial_at(args, group_slot(f, f.group), 1), column, state, o);
    });
    if (!is_last(args, share_ticket<1>(f.ticket), f.groups)) return;
    pieces.first = pieces.base = partial_at(args, group_slot(f, 0), 1);
    pieces.count = f.groups;
  }
  merge_all(args, pieces, [&](int column, const RowState& state, const float4& o) {
    write_output(args, destination_of(args, walk.segment, column), state, o);
  });
}

LEAN_DEVICE void end_fix_up(const LeanDecodeArgs&) {}
