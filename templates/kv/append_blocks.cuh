// kv/append_blocks.cuh -- how new rows are stored where 16 columns share a scale: the steps of FlashInfer's writer
// (include/flashinfer/page.cuh), in which all divisions and products round to nearest. Host and device compile this
// file.

// The e4m3 number nearest to one of at least 0, ties to even, and 448 at most.
LEAN_DEVICE u32 nearest_e4m3(float x) {
  if (x > 448.0f) return 0x7eu;
  // Below 2^-6 numbers are multiples of 2^-9; the sum rounds to one of them, in its last bits.
  if (x < 0.015625f) return __float_as_uint(x * 512.0f + 8388608.0f) & 0xfu;
  const u32 bits = __float_as_uint(x);
  return ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
}
LEAN_DEVICE float e4m3_value(u32 byte) {
  return byte < 8u ? (float)byte * 0.001953125f : __uint_as_float((byte << 20) + (120u << 23));
}

// The nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, ties to the even one of these, and the sign. NaN becomes 0.
LEAN_DEVICE u32 nearest_fp4(float x) {
  const float m = fabsf(x);
  const u32 magnitude = (u32)(m > 0.25f) + (u32)(m >= 0.75f) + (u32)(m > 1.25f) + (u32)(m >= 1.75f) + (u32)(m > 2.5f) +
                        (u32)(m >= 3.5f) + (u32)(m > 5.0f);
  return magnitude | (__float_as_uint(x) >> 28 & 8u);
}

// What elements of a block are multiplied by, and the block's scale. largest: of its magnitudes. unit: the scale of the
// KV head. Blocks of less than half of the smallest scale vanish.
struct BlockUnit {
  float factor;
  u32 scale;  // e4m3
};
LEAN_DEVICE BlockUnit block_unit_of(float largest, float unit) {
  const u32 scale = largest > 0.0f && unit > 0.0f ? nearest_e4m3(largest / (6.0f * unit)) : 0u;
  return {scale > 0u ? 1.0f / (e4m3_value(scale) * unit) : 0.0f, scale};
}

// Stores a row whose eight columns from 8 * chunk on load(chunk) gives, and the scales of its blocks; nothing if it is
// `nowhere`. All lanes of the warp call this.
template <int kColumns, class Load>
LEAN_DEVICE void append_blocks(char* row, unsigned char* scales, float unit, bool nowhere, Load load) {
  constexpr int kChunks = kColumns / 8, kRounds = (kChunks + 31) / 32;
  const int lane = threadIdx.x % 32;
  uint4 x[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; i++) x[i] = i * 32 + lane < kChunks ? load(i * 32 + lane) : make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kRounds; i++) {
    const int chunk = i * 32 + lane;
    float largest = 0.0f;  // NaN does not count
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 pair = Element::unpack(word(x[i], j));
      largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
    largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
    if (nowhere || chunk >= kChunks) continue;
    const BlockUnit block = block_unit_of(largest, unit);
    u32 elements = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 pair = Element::unpack(word(x[i], j));
      elements |= nearest_fp4(pair.x * block.factor) << 8 * j | nearest_fp4(pair.y * block.factor) << (8 * j + 4);
    }
    ((u32*)row)[chunk] = elements;
    if (lane % 2 == 0) scales[chunk / 2] = (unsigned char)block.scale;
  }
}

// Writes a new token's rows, as they are given in q's type. outer: its page or request, which is not waited for before
// the rows are asked for. To be called by all lanes of a warp.
LEAN_DEVICE void append_row(const LeanDecodeArgs& args, const Segment& s, int token, const NewRows& given, int outer) {
  const i64 at = kPageSize > 0 ? token % max(kPageSize, 1) : token;
  const i64 scales =
      outer * args.kv_scale_stride_batch + s.kv_head * args.kv_scale_stride_head + at * args.kv_scale_stride_token;
  const bool nowhere = is_nowhere(args, outer);
  append_blocks<kHeadDim>(k_cache_row(args, s, outer, token), (unsigned char*)args.k_block_scales + scales,
                          kv_scale(args.k_scale, s.kv_head), nowhere,
                          [&](int chunk) { return rotated_16(args, given.k, chunk * 8, index_of_new(s, token)); });
  append_blocks<kValueDim>(v_cache_row(args, s, outer, token), (unsigned char*)args.v_block_scales + scales,
                           kv_scale(args.v_scale, s.kv_head), nowhere,
                           [&](int chunk) { return load_cached<uint4>(given.v + chunk * 16); });
}
