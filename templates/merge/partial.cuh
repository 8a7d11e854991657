// merge/partial.cuh -- partial results: O before its division by the row sum, the row maximum (of raw scores) and the
// row sum. Pieces of any size merge exactly, in any order (LeanAttention, section 3). A thread handles four values of a
// row of O at a time, a column, whose values stay in the order of the lanes (first_dim, kSecondPair) until written.

constexpr int kRowColumns = kValueDim / 4;     // columns of a row
constexpr int kColumns = kRows * kRowColumns;  // of a partial
constexpr int kThreads = kWarps * 32;
constexpr int kColumnsPerThread = (kColumns + kThreads - 1) / kThreads;
// In the workspace a partial is O [kColumns] float4, then (max, sum) [kColumns / kStateColumns]. Neighbouring columns
// that share a state are of one row, and neighbouring lanes load them.
constexpr int kPartialFloats = lean_partial_floats(4 * kColumns, kStateColumns);

struct RowState {
  float max, sum;
};

// Columns are numbered row by row. Where results stay in registers and rows are a multiple of eight, the numbers go by
// blocks of eight rows and four neighbouring columns of each, as the lanes of a warp hold them: then a warp stores 512
// neighbouring bytes.
LEAN_DEVICE int column_row(int column) {
  if constexpr (kColumnsInBlocks) return column / (8 * kRowColumns) * 8 + column % 32 / 4;
  return column / kRowColumns;
}
LEAN_DEVICE int column_in_row(int column) {
  if constexpr (kColumnsInBlocks) return column / 32 % (kRowColumns / 4) * 4 + column % 4;
  return column % kRowColumns;
}
LEAN_DEVICE int column_at(int row, int in_row) {
  if constexpr (!kColumnsInBlocks) return row * kRowColumns + in_row;
  return (row / 8 * (kRowColumns / 4) + in_row / 4) * 32 + row % 8 * 4 + in_row % 4;
}
constexpr int kFourFurther = kColumnsInBlocks ? 32 : 4;  // from a column to the one that is four further in its row

LEAN_DEVICE void add_scaled(float4& sum, const float4& x, float weight) {
  sum.x = fmaf(x.x, weight, sum.x), sum.y = fmaf(x.y, weight, sum.y), sum.z = fmaf(x.z, weight, sum.z),
  sum.w = fmaf(x.w, weight, sum.w);
}

// Calls body(column) for each column that this thread owns.
template <class Body>
LEAN_DEVICE void for_each_column(Body body) {
#pragma unroll(kProducerWarps > 0 && kColumnsPerThread % 4 == 0 ? 4 : 1)  // others have no registers to spare
  for (int i = 0; i < kColumnsPerThread; i++) {
    const int column = i * kThreads + (int)threadIdx.x;
    if (kColumns % kThreads == 0 || column < kColumns) body(column);
  }
}
