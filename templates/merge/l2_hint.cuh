// merge/l2_hint.cuh -- how large partials stay in L2: columns that are written to them are to leave L2 last. Without
// the hint KV arrives later, most likely because it pushes partials out, so that each launch writes results and the
// zeros that are put back to DRAM beside it. A grid of large partials takes 4 to 17 megabytes of L2. Prefetching all
// their lines, as merge/l2_prefetch.cuh does, delays the KV of short launches.

// Stores a column at `to` and, if it `writes_state`, the state at `state_to`.
LEAN_DEVICE void store_column(float* to, const float4& o, float* state_to, bool writes_state, const RowState& state) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 lo, hi; .reg .b128 x; setp.ne.u32 p, %8, 0;\n"
      "mov.b64 lo, {%2, %3}; mov.b64 hi, {%4, %5}; mov.b128 x, {lo, hi};\n"
      "st.relaxed.gpu.global.L2::cache_hint.b128 [%0], x, %9;\n"
      "mov.b64 lo, {%6, %7}; @p st.relaxed.gpu.global.L2::cache_hint.b64 [%1], lo, %9; }" ::"l"(to),
      "l"(state_to), "f"(present(o.x)), "f"(o.y), "f"(o.z), "f"(o.w), "f"(present(state.max)), "f"(state.sum),
      "r"((u32)writes_state), "l"(evict_last())
      : "memory");
}
LEAN_DEVICE void store_partial(float* p, int column, const RowState& state, const float4& o) {
  store_column(partial_column(p, column), o, partial_state(p, column), has_state(column), state);
}

// Stores zeros in place of a column.
LEAN_DEVICE void clear_column(float* column) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %1, %1, %1}, %2;" ::"l"(column), "r"(0), "l"(evict_last())
               : "memory");
}

// To be called once all lanes of the warp have loaded their columns, because some may share a state.
LEAN_DEVICE void clear_partial(float* partial, int column, bool wanted) {
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %3, 0; setp.ne.and.u32 q, %4, 0, p;\n"
      "@p st.global.L2::cache_hint.v4.u32 [%0], {%2, %2, %2, %2}, %5;\n"
      "@q st.global.L2::cache_hint.v2.u32 [%1], {%2, %2}, %5; }" ::"l"(partial_column(partial, column)),
      "l"(partial_state(partial, column)), "r"(0), "r"((u32)wanted), "r"((u32)has_state(column)), "l"(evict_last())
      : "memory");
}

LEAN_DEVICE void keep_own_partial(const LeanDecodeArgs&, const Contributors&) {}  // nothing is to be prefetched
