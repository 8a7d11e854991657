// merge/l2_prefetch.cuh -- how small partials stay in L2, out of which other kernels push the workspace: each CTA
// asks for its partial's lines while its first KV is on its way. Who looks for them would otherwise wait for DRAM,
// behind KV.
// ---
// Kernels that store many partials, as batch-invariant ones do, do not ask. The lines stay ahead of others in L2 after
// the launch, too: 1.6 MB for 132 CTAs with 16 query rows of 128 columns. A CTA that has stored its partial cannot let
// go of it, because the one that merges it may come much later.

// Stores a column at `to` and, if it `writes_state`, the state at `state_to`.
LEAN_DEVICE void store_column(float* to, const float4& o, float* state_to, bool writes_state, const RowState& state) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 lo, hi; .reg .b128 x; setp.ne.u32 p, %8, 0;\n"
      "mov.b64 lo, {%2, %3}; mov.b64 hi, {%4, %5}; mov.b128 x, {lo, hi}; st.relaxed.gpu.global.b128 [%0], x;\n"
      "mov.b64 lo, {%6, %7}; @p st.relaxed.gpu.global.b64 [%1], lo; }" ::"l"(to),
      "l"(state_to), "f"(present(o.x)), "f"(o.y), "f"(o.z), "f"(o.w), "f"(present(state.max)), "f"(state.sum),
      "r"((u32)writes_state)
      : "memory");
}
LEAN_DEVICE void store_partial(float* p, int column, const RowState& state, const float4& o) {
  store_column(partial_column(p, column), o, partial_state(p, column), has_state(column), state);
}

// To be called once all lanes of the warp have loaded their columns, because some may share a state.
LEAN_DEVICE void clear_partial(float* partial, int column, bool wanted) {
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %3, 0; setp.ne.and.u32 q, %4, 0, p;\n"
      "@p st.global.v4.u32 [%0], {%2, %2, %2, %2}; @q st.global.v2.u32 [%1], {%2, %2}; }" ::"l"(
          partial_column(partial, column)),
      "l"(partial_state(partial, column)), "r"(0), "r"((u32)wanted), "r"((u32)has_state(column))
      : "memory");
}

LEAN_DEVICE void keep_own_partial(const LeanDecodeArgs& args, const Contributors& c) {
  if constexpr (!kBatchInvariant) {
    constexpr int kPartialBytes = kPartialFloats * 4, kLine = 128;
    const char* mine = (const char*)own_partial(args, c);
    const int before = kPartialBytes % kLine == 0 ? 0 : (int)((u64)mine % kLine);  // of the first line
#pragma unroll 1
    for (int at = (int)threadIdx.x * kLine - before; at < kPartialBytes; at += kThreads * kLine) keep_in_l2(mine + at);
  }
}
