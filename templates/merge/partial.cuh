// merge/partial.cuh -- partial results: O before its division by the row sum, the row maximum (of raw scores) and the
// row sum. Softmax re-scaling is associative (LeanAttention, section 3), so pieces of any size merge exactly, in any
// order. A thread handles four values of a row of O at a time, a column. O stays in the order in which the lanes hold
// it (first_dim and kSecondPair of the attend modules) until it is written.

constexpr int kRowColumns = kValueDim / 4;     // columns of a row
constexpr int kColumns = kRows * kRowColumns;  // of a partial
constexpr int kThreads = kWarps * 32;
constexpr int kColumnsPerThread = (kColumns + kThreads - 1) / kThreads;
// In the workspace a partial is O [kColumns] float4, then (max, sum) [kColumns]: repeated for each column, so that one
// thread alone reads a column's pair and puts its zeros back.
constexpr int kPartialFloats = lean_partial_floats(kRows, kValueDim);

struct RowState {
  float max, sum;
};

LEAN_DEVICE void add_scaled(float4& sum, const float4& x, float weight) {
  sum.x = fmaf(x.x, weight, sum.x), sum.y = fmaf(x.y, weight, sum.y), sum.z = fmaf(x.z, weight, sum.z),
  sum.w = fmaf(x.w, weight, sum.w);
}

// Calls body(column) for each column that this thread owns.
template <class Body>
LEAN_DEVICE void for_each_column(Body body) {
#pragma unroll 1
  for (int i = 0; i < kColumnsPerThread; i++) {
    const int column = i * kThreads + (int)threadIdx.x;
    if (kColumns % kThreads == 0 || column < kColumns) body(column);
  }
}
