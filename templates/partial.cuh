// partial.cuh -- partial results: un-normalised O, row maximum (base 2) and row sum, and how two of them become one.
// Softmax re-scaling is associative (LeanAttention, section 3), so pieces of any size merge exactly, in any tree.
//
// O is kept in "fragment order": position 16 t + 2 g + i of a row is dim (t / kVWords * 8 + g) * 2 kVWords + 2 (t % kVWords) + i. It is
// the order in which the lanes hold it, and it is undone only when O itself is written.

constexpr int kPositions = kHeadDim / 4;              // float4 positions of one row
constexpr int kColumns = kRows * kPositions;          // float4 positions of one partial
constexpr int kThreads = kWarps * 32;
constexpr int kColumnsPerThread = (kColumns + kThreads - 1) / kThreads;
constexpr int kHeadRows = (kRows + 3) / 4 * 4;        // row statistics, padded so that O stays 16-byte aligned
// A partial in the workspace: max, sum as its CTA stored them; max, sum of a merged group; O [kRows, kHeadDim].
constexpr int kPartialFloats = 4 * kHeadRows + kRows * kHeadDim;

struct RowState { float max, sum; };

// 2^(max - reference), 0 for a piece without any token.
LEAN_DEVICE float piece_weight(float max, float reference) { return max == kNegInf ? 0.0f : exp2_approx(max - reference); }

LEAN_DEVICE void add_scaled(float4& sum, const float4& x, float weight) {
  sum.x = fmaf(x.x, weight, sum.x), sum.y = fmaf(x.y, weight, sum.y), sum.z = fmaf(x.z, weight, sum.z), sum.w = fmaf(x.w, weight, sum.w);
}

// Writes float4 position `column` of O, normalised, and once per row the LSE. A row without tokens is 0 and -inf.
LEAN_DEVICE void write_output(const LeanDecodeArgs& args, const Segment& s, int column, RowState state, const float4& o) {
  const int row = column / kPositions, position = column % kPositions * 4;
  const int head_in_group = s.row_block * kRows + row;
  if (kGroup % kRows != 0 && head_in_group >= kGroup) return;
  const int head = s.kv_head * kGroup + head_in_group;
  const float inverse = state.sum == 0.0f ? 0.0f : 1.0f / state.sum;
  const int t = position / 16, g = position % 16 / 2;
  const int dim = (t / kVWords * 8 + g) * 2 * kVWords + t % kVWords * 2;
  char* out = (char*)args.o + 2 * (s.request * args.o_stride_batch + head * args.o_stride_head + dim);
  *(u32*)out = pack_pair(o.x * inverse, o.y * inverse);
  *(u32*)(out + 4 * kVWords) = pack_pair(o.z * inverse, o.w * inverse);
  if constexpr (kLse) {
    constexpr float kLn2 = 0.693147180559945309f;
    if (position == 0) args.lse[(i64)s.request * args.kv_heads * kGroup + head] = state.sum == 0.0f ? kNegInf : (state.max + log2f(state.sum)) * kLn2;
  }
}
