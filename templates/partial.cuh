// partial.cuh -- partial results: un-normalised O, row maximum (raw score) and row sum, and how two of them become one.
// Softmax re-scaling is associative (LeanAttention, section 3), so pieces of any size merge exactly, in any tree.
//
// O is kept in "fragment order": position 16 t + 2 g + i of a row is dim (t / kVWords * 8 + g) * 2 kVWords + 2 (t % kVWords) + i. It is
// the order in which the lanes hold it, and it is undone only when O itself is written.

constexpr int kPositions = kHeadDim / 4;              // float4 positions of one row
constexpr int kColumns = kRows * kPositions;          // float4 positions of one partial
constexpr int kThreads = kWarps * 32;
constexpr int kColumnsPerThread = (kColumns + kThreads - 1) / kThreads;
// A partial in the workspace: O [kColumns] float4, then the row's (max, sum) [kColumns], repeated so that each column is read, and put
// back to zero, by one thread alone.
constexpr int kPartialFloats = 6 * kColumns;

struct RowState { float max, sum; };

LEAN_DEVICE void add_scaled(float4& sum, const float4& x, float weight) {
  sum.x = fmaf(x.x, weight, sum.x), sum.y = fmaf(x.y, weight, sum.y), sum.z = fmaf(x.z, weight, sum.z), sum.w = fmaf(x.w, weight, sum.w);
}

// Writes float4 position `column` of O, normalised, and once per row the LSE, if `live`. A row without tokens is 0 and -inf.
LEAN_DEVICE void write_output(const LeanDecodeArgs& args, const Segment& s, int column, RowState state, const float4& o, bool live) {
  const int row = column / kPositions, position = column % kPositions * 4;
  const int head_in_group = s.row_block * kRows + row;
  if (kGroup % kRows != 0) live = live && head_in_group < kGroup;
  const int head = s.kv_head * kGroup + head_in_group;
  const bool empty = state.sum == 0.0f;
  const float inverse = empty ? 0.0f : __fdividef(1.0f, state.sum);
  const int t = position / 16, g = position % 16 / 2;
  const int dim = (t / kVWords * 8 + g) * 2 * kVWords + t % kVWords * 2;
  char* out = (char*)args.o + 2 * (s.request * args.o_stride_batch + head * args.o_stride_head + dim);
  store_global_if(live, out, pack_pair(o.x * inverse, o.y * inverse));
  store_global_if(live, out + 4 * kVWords, pack_pair(o.z * inverse, o.w * inverse));
  if constexpr (kLse) {
    constexpr float kLn2 = 0.693147180559945309f;
    const float lse = empty ? kNegInf : fmaf(state.max, args.scale_log2, __log2f(state.sum)) * kLn2;
    store_global_if(live && position == 0, args.lse + (i64)s.request * args.kv_heads * kGroup + head, __float_as_uint(lse));
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
