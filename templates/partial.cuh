// partial.cuh -- partial results: un-normalised O, row maximum (raw score) and row sum, and how two of them become one.
// Softmax re-scaling is associative (LeanAttention, section 3), so pieces of any size merge exactly, in any tree.
//
// O is kept in the order in which the lanes hold it (first_dim, kSecondPair of the attend modules); it is undone only
// when O itself is written.

constexpr int kPositions = kValueDim / 4;     // float4 positions of one row
constexpr int kColumns = kRows * kPositions;  // float4 positions of one partial
constexpr int kThreads = kWarps * 32;
constexpr int kColumnsPerThread = (kColumns + kThreads - 1) / kThreads;
// A partial in the workspace: O [kColumns] float4, then the row's (max, sum) [kColumns], repeated so that each column
// is read, and put back to zero, by one thread alone.
constexpr int kPartialFloats = 6 * kColumns;

struct RowState {
  float max, sum;
};

LEAN_DEVICE void add_scaled(float4& sum, const float4& x, float weight) {
  sum.x = fmaf(x.x, weight, sum.x), sum.y = fmaf(x.y, weight, sum.y), sum.z = fmaf(x.z, weight, sum.z),
  sum.w = fmaf(x.w, weight, sum.w);
}

// Where float4 position `column` of a segment's result goes.
struct Output {
  char* o;     // first_dim of the column; the second pair of dims lies kSecondPair further
  float* lse;  // of the row; null unless this column is the one that writes it
  bool valid;  // a row that exists
  int head;    // query head, and its KV head
  int kv_head;
};

LEAN_DEVICE Output output_of(const LeanDecodeArgs& args, const Segment& s, int column) {
  const int position = column % kPositions * 4;
  const Row row = row_of(s.query, s.row_block, column / kPositions);
  const int head = s.kv_head * kGroup + row.head;
  const i64 of_o =
      row_offset(s.request, s.query, s.kv_head, row, args.o_stride_batch, args.o_stride_token, args.o_stride_head);
  return {(char*)args.o + 2 * (of_o + first_dim(position)),
          kLse && position == 0 ? args.lse + (i64)(s.query.first + row.token) * args.kv_heads * kGroup + head : nullptr,
          row.valid, head, s.kv_head};
}

// Writes a column of O, normalised, and once per row the LSE. A row that saw no token is 0 and -inf, or its sink logit.
LEAN_DEVICE void write_output(const LeanDecodeArgs& args, const Output& output, RowState state, const float4& o) {
  if (!output.valid) return;
  constexpr float kLn2 = 0.693147180559945309f, kLog2E = 1.44269504088896341f;
  float keep = 1.0f, log2_max = state.max * args.scale_log2;
  if constexpr (kSinkLogits) {
    const float sink = args.sink_logits[output.head] * kLog2E, larger = fmaxf(log2_max, sink);
    keep = exp2_approx(log2_max - larger);
    state.sum = fmaf(state.sum, keep, exp2_approx(sink - larger));
    log2_max = larger;
  }
  const bool empty = state.sum == 0.0f;
  const float factor = empty ? 0.0f : __fdividef(keep, state.sum) * output_scale(args, output.kv_head);
  *(u32*)output.o = Element::pack(o.x * factor, o.y * factor);
  *(u32*)(output.o + 2 * kSecondPair) = Element::pack(o.z * factor, o.w * factor);
  if constexpr (kLse) {
    if (output.lse != nullptr) *output.lse = empty ? kNegInf : (log2_max + __log2f(state.sum)) * kLn2;
  }
}

// Calls body(column) for the columns this thread owns.
template <class Body>
LEAN_DEVICE void for_each_column(Body body) {
#pragma unroll 1
  for (int i = 0; i < kColumnsPerThread; i++) {
    const int column = i * kThreads + (int)threadIdx.x;
    if (kColumns % kThreads == 0 || column < kColumns) body(column);
  }
}
