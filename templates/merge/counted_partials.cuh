// merge/counted_partials.cuh -- contributors to an output tile count themselves. Large partials do so instead of
// announcing themselves (merge/workspace.cuh). Then the state of a row is stored once, and nobody polls for each
// column. Of a partial of 64 rows of 512 columns 131 kB travel instead of 164.
//
// An output tile has a word of its own, that of its first contributor's slot. The low half counts partials that are
// stored, the high half contributors that have taken their share of all of them. The zeros are put back as other
// kernels need them: those of a column by the contributor that takes it, those of the states and of the word by the
// last contributor that leaves. Of a pair (merge/wait_counted.cuh), the first contributor puts all of them back.

constexpr u32 kOneLeft = 1u << 16;  // a contributor that has taken its share, in such a word

LEAN_DEVICE u32* tile_count(const LeanDecodeArgs& args, const Contributors& c) { return args.tickets + c.first_slot; }

// Adds to an output tile's word and returns what it was before. A barrier of the CTA must stand in front of the call.
// What its threads read and wrote before that barrier happens before the addition (PTX ISA, memory consistency model).
LEAN_DEVICE u32 add_to_count(const LeanDecodeArgs& args, const Contributors& c, u32 more) {
  u32 before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(tile_count(args, c)), "r"(more)
               : "memory");
  return before;
}

// What thread 0 tells the other workers.
struct CountNews {
  bool missing;  // some of the partials that the CTA waited for never came
  bool last;     // it is the last contributor that leaves
};
LEAN_DEVICE CountNews& count_news() {
  __shared__ CountNews news;
  return news;
}

// Stores this CTA's state as its partial. The state of a row is stored with its first column.
LEAN_DEVICE void store_row_partial(const LeanDecodeArgs& args, const Contributors& c, const Results& results) {
  const int row = first_held_row(), first = first_held_column(row);
  float *columns = partial_column(own_partial(args, c), first), *states = partial_state(own_partial(args, c), first);
  asm volatile("" : "+l"(columns), "+l"(states));  // lest they be worked out anew for each column
  for_each_held(results, row, [&](int offset, const RowState& state, const float4& o) {
    const bool begins_row = offset % (8 * kRowColumns) == 0 && column_in_row(first) == 0;
    store_column(columns + offset * 4, o, states + offset / kStateColumns * 2, begins_row, state);
  });
}

// To be called by all workers once they have stored their partial. Of a pair, only the second contributor stores one.
LEAN_DEVICE void count_partial(const LeanDecodeArgs& args, const Contributors& c) {
  sync_workers();
  const u32 stored = c.count == 2 ? 1 : c.count;  // in all, before anyone leaves
  // A word that was not zero before the launch would have others begin too early.
  if (threadIdx.x == 0 && add_to_count(args, c, 1) >= stored) report_fault(args, kLeanWrongTicket);
}

// Waits until `count` partials of the output tile are stored, within the bound. To be called by all workers.
LEAN_DEVICE void await_partials(const LeanDecodeArgs& args, const Contributors& c, u32 count) {
  if (threadIdx.x == 0) {
    u32 stored, waited = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(stored) : "l"(tile_count(args, c)) : "memory");
    } while (stored % kOneLeft < count && goes_on_waiting(args, waited));
    count_news().missing = stored % kOneLeft < count;
  }
  sync_workers();
}

LEAN_DEVICE float* row_state(float* partial, int row) { return partial_state(partial, column_at(row, 0)); }

LEAN_DEVICE float4 load_column(const float* column) {
  float4 o;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(o.x), "=f"(o.y), "=f"(o.z), "=f"(o.w)
               : "l"(column)
               : "memory");
  return o;
}
LEAN_DEVICE RowState load_state(const float* from) {
  RowState state;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
               : "=f"(state.max), "=f"(state.sum)
               : "l"(from)
               : "memory");
  return state;
}
// Loads both if `wanted`, and leaves `state` and `o` as they are otherwise.
LEAN_DEVICE void load_if(bool wanted, const float* column, const float* from, RowState& state, float4& o) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %8, 0; @p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%6];\n"
      "@p ld.relaxed.gpu.global.v2.f32 {%4, %5}, [%7]; }"
      : "+f"(o.x), "+f"(o.y), "+f"(o.z), "+f"(o.w), "+f"(state.max), "+f"(state.sum)
      : "l"(column), "l"(from), "r"((u32)wanted)
      : "memory");
}
LEAN_DEVICE void clear_state(float* state) { *(float2*)state = make_float2(0, 0); }

// Loads columns of partials, column_of(i) of partial_of(i) for i < kCount if wanted(i), and puts the zeros back. What
// is not wanted counts as nothing. NaN takes the place of all of them where some are missing.
template <int kCount, class PartialOf, class ColumnOf, class Wanted>
LEAN_DEVICE void take_partials(const LeanDecodeArgs&, PartialOf partial_of, ColumnOf column_of, Wanted wanted,
                               RowState (&stat)[kCount], float4 (&out)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    stat[i] = {kNegInf, 0.0f}, out[i] = make_float4(0, 0, 0, 0);
    const int column = (int)column_of(i);
    load_if(wanted(i), partial_column(partial_of(i), column), row_state(partial_of(i), column_row(column)), stat[i],
            out[i]);
  }
#pragma unroll
  for (int i = 0; i < kCount; i++)
    if (wanted(i)) clear_column(partial_column(partial_of(i), (int)column_of(i)));
  if (count_news().missing) {
#pragma unroll
    for (int i = 0; i < kCount; i++) give_up(wanted(i), stat[i], out[i]);
  }
}

// To be called by all workers once they have taken their share. The last contributor puts back the zeros that no share
// has: those of the states and of the word.
LEAN_DEVICE void leave_partials(const LeanDecodeArgs& args, const Contributors& c) {
  sync_workers();
  if (threadIdx.x == 0) count_news().last = add_to_count(args, c, kOneLeft) / kOneLeft + 1 == c.count;
  sync_workers();
  if (!count_news().last) return;
  if (threadIdx.x == 0) *tile_count(args, c) = 0;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < c.count * kRows; i += kThreads) {
    const u32 contributor = i / kRows;
    clear_state(row_state(partial_at(args, c.first_slot + contributor, contributor == 0 ? 1 : 0), (int)(i % kRows)));
  }
}
