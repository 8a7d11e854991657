// kv/append_elements.cuh -- how new rows of K and V are stored where elements are of one type. The scales of a one-byte
// cache are there before: one of the whole cache, or one a head.

// Writes a new token's rows, as they are given in q's type. outer: its page or request, which is not waited for before
// the rows are asked for. To be called by all lanes of a warp.
LEAN_DEVICE void append_row(const LeanDecodeArgs& args, const Segment& s, int token, const NewRows& given, int outer) {
  constexpr int kKRowChunks = kHeadDim / 8, kRowChunks = kKRowChunks + (kLatent ? 0 : kValueDim / 8);
  float k_scale = 1.0f, v_scale = 1.0f;
  if constexpr (kHasScales) k_scale = k_scale_of(args, s, token, true), v_scale = output_scale(args, s.kv_head);
#pragma unroll 1
  for (int chunk = threadIdx.x % 32; chunk < kRowChunks; chunk += 32) {
    const int of_v = chunk - kKRowChunks;
    const uint4 x = of_v < 0 ? rotated_16(args, given.k, chunk * 8, index_of_new(s, token))
                             : load_cached<uint4>(given.v + of_v * 16);
    if (is_nowhere(args, outer)) continue;
    if (of_v < 0) {
      store_kv_chunk(k_cache_row(args, s, outer, token), chunk, x, k_scale);
    } else {
      store_kv_chunk(v_cache_row(args, s, outer, token), of_v, x, v_scale);
    }
  }
}
