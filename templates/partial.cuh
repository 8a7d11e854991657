// partial.cuh -- partial results: un-normalised O, row maximum (raw score) and row sum, and how two of them become one.
// Softmax re-scaling is associative (LeanAttention, section 3), so pieces of any size merge exactly, in any tree.
//
// O is kept in the order in which the lanes hold it (first_dim, kSecondPair of the attend modules); it is undone only
// when O itself is written.

constexpr int kPositions = kHeadDim / 4;      // float4 positions of one row
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
  bool valid;  // a row of the group
};

LEAN_DEVICE Output output_of(const LeanDecodeArgs& args, const Segment& s, int column) {
  const int row = column / kPositions, position = column % kPositions * 4, head_in_group = s.row_block * kRows + row,
            head = s.kv_head * kGroup + head_in_group;
  return {(char*)args.o + 2 * (s.request * args.o_stride_batch + head * args.o_stride_head + first_dim(position)),
          kLse && position == 0 ? args.lse + (i64)s.request * args.kv_heads * kGroup + head : nullptr,
          kGroup % kRows == 0 || head_in_group < kGroup};
}

// Writes a column of O, normalised, and once per row the LSE. A row without tokens is 0 and -inf.
LEAN_DEVICE void write_output(const Output& output, RowState state, const float4& o, float scale_log2) {
  if (!output.valid) return;
  const bool empty = state.sum == 0.0f;
  const float inverse = empty ? 0.0f : __fdividef(1.0f, state.sum);
  *(u32*)output.o = pack_pair(o.x * inverse, o.y * inverse);
  *(u32*)(output.o + 2 * kSecondPair) = pack_pair(o.z * inverse, o.w * inverse);
  if constexpr (kLse) {
    constexpr float kLn2 = 0.693147180559945309f;
    if (output.lse != nullptr) *output.lse = empty ? kNegInf : fmaf(state.max, scale_log2, __log2f(state.sum)) * kLn2;
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
