// merge/output.cuh -- where a finished column belongs in O, and how it is written there.

// Where a column of a segment's result belongs.
struct Output {
  char* o;            // first_dim of the column; the second pair of dims lies kSecondPair further
  float* lse;         // of the row; null unless this column is the one that writes it
  bool valid;         // whether the row exists
  int head, kv_head;  // query head, and its KV head
};

LEAN_DEVICE Output output_of(const LeanDecodeArgs& args, const Segment& s, int column) {
  const int position = column_in_row(column) * 4;
  const Row row = row_of(s.query, s.row_block, column_row(column));
  const int head = s.kv_head * kGroup + row.head;
  const i64 of_o =
      row_offset(s.request, s.query, s.kv_head, row, args.o_stride_batch, args.o_stride_token, args.o_stride_head);
  float* lse = nullptr;
  if (kLse && position == 0) lse = args.lse + (i64)(s.query.first + row.token) * args.kv_heads * kGroup + head;
  return {(char*)args.o + 2 * (of_o + first_dim(position)), lse, row.valid, head, s.kv_head};
}

// What a row of O is to be multiplied by: the inverse of the row sum. Writes the row's LSE where that is asked for. For
// a row that saw no token these are 0, and -inf or the row's sink logit, which may be -inf as well.
LEAN_DEVICE float finish_row(const LeanDecodeArgs& args, const Output& output, RowState state) {
  float keep = 1.0f, log2_max = state.max * args.scale_log2;
  if constexpr (kSinkLogits) {
    constexpr float kLog2E = 1.44269504088896341f;
    const float sink = args.sink_logits[output.head] * kLog2E, reference = reference_of(fmaxf(log2_max, sink));
    keep = exp2_approx(log2_max - reference);
    state.sum = fmaf(state.sum, keep, exp2_approx(sink - reference));
    log2_max = reference;
  }
  if (kLse && output.lse) {
    constexpr float kLn2 = 0.693147180559945309f;
    *output.lse = state.sum == 0.0f ? kNegInf : (log2_max + __log2f(state.sum)) * kLn2;
  }
  float factor = state.sum == 0.0f ? 0.0f : __fdividef(keep, state.sum);
  if constexpr (kHasScales) factor *= output_scale(args, output.kv_head);
  return factor;
}

// Writes a column of O.
LEAN_DEVICE void write_output(const LeanDecodeArgs& args, const Output& output, RowState state, const float4& o) {
  if (!output.valid) return;
  const float factor = finish_row(args, output, state);
  *(u32*)output.o = Element::pack(o.x * factor, o.y * factor);
  *(u32*)(output.o + 2 * kSecondPair) = Element::pack(o.z * factor, o.w * factor);
}
