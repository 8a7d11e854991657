// kv/append_scaled.cuh -- how new rows are stored where each has a scale of its own beside it. The scale follows from
// the row's least and largest element, and bytes are those that engines store: kv/quantise_4bit.cuh and
// kv/quantise_8bit.cuh have the rules. Host and device compile this file.

struct RowRange {
  float least, largest;
};
// Elements that are NaN do not count.
LEAN_DEVICE RowRange range_with(RowRange range, const uint4& x) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 pair = Element::unpack(word(x, i));
    range = {fminf(range.least, fminf(pair.x, pair.y)), fmaxf(range.largest, fmaxf(pair.x, pair.y))};
  }
  return range;
}

// Stores a row whose eight columns from 8 * chunk on load(chunk) gives, and its scale at `scale`; nothing if it is
// `nowhere`. All lanes of the warp call this.
template <int kColumns, class Load>
LEAN_DEVICE void append_scaled(char* row, u32* scale, bool nowhere, Load load) {
  constexpr int kChunks = kColumns / 8, kRounds = (kChunks + 31) / 32;
  constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);
  const int lane = threadIdx.x % 32;
  uint4 x[kRounds];
  RowRange range = {kInfinity, -kInfinity};
#pragma unroll
  for (int i = 0; i < kRounds; i++) {
    if (i * 32 + lane < kChunks) x[i] = load(i * 32 + lane), range = range_with(range, x[i]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    range.least = fminf(range.least, __shfl_xor_sync(kFullMask, range.least, distance));
    range.largest = fmaxf(range.largest, __shfl_xor_sync(kFullMask, range.largest, distance));
  }
  if (nowhere) return;
  const RowUnit unit = unit_of(range.least, range.largest);
#pragma unroll
  for (int i = 0; i < kRounds; i++) {
    if (i * 32 + lane < kChunks) store_quantised(row, i * 32 + lane, x[i], unit);
  }
  if (lane == 0) *scale = unit.word;
}

// Writes a new token's rows, as they are given in q's type. outer: its page or request, which is not waited for before
// the rows are asked for. To be called by all lanes of a warp.
LEAN_DEVICE void append_row(const LeanDecodeArgs& args, const Segment& s, int token, const NewRows& given, int outer) {
  const i64 at = kPageSize > 0 ? token % max(kPageSize, 1) : token;
  const i64 scale =
      outer * args.kv_scale_stride_batch + s.kv_head * args.kv_scale_stride_head + at * args.kv_scale_stride_token;
  const bool nowhere = is_nowhere(args, outer);
  append_scaled<kHeadDim>(k_cache_row(args, s, outer, token), (u32*)args.k_scale + scale, nowhere,
                          [&](int chunk) { return rotated_16(args, given.k, chunk * 8, index_of_new(s, token)); });
  if constexpr (!kLatent)
    append_scaled<kValueDim>(v_cache_row(args, s, outer, token), (u32*)args.v_scale + scale, nowhere,
                             [&](int chunk) { return load_cached<uint4>(given.v + chunk * 16); });
}
