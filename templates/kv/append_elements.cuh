// kv/append_elements.cuh -- how new rows of K and V are stored where elements are of one type. The scales of a one-byte
// cache are there before: one of the whole cache, or one a head.

// Writes a new token's row of K to k, and that of V to v. index: its position, by which keys rotate. k_new, v_new: the
// rows as they are given, in q's type. To be called by all lanes of a warp.
LEAN_DEVICE void append_row(const LeanDecodeArgs& args, const Segment& s, int token, int index, const char* k_new,
                            const char* v_new, char* k, char* v) {
  constexpr int kKRowChunks = kHeadDim / 8, kRowChunks = kKRowChunks + (kLatent ? 0 : kValueDim / 8);
  float k_scale = 1.0f, v_scale = 1.0f;
  if constexpr (kHasScales) k_scale = k_scale_of(args, s, token, true), v_scale = output_scale(args, s.kv_head);
#pragma unroll 1
  for (int chunk = threadIdx.x % 32; chunk < kRowChunks; chunk += 32) {
    if (chunk < kKRowChunks) {
      store_kv_chunk(k, chunk, rotated_16(args, k_new, chunk * 8, index), k_scale);
    } else {
      store_kv_chunk(v, chunk - kKRowChunks, load_cached<uint4>(v_new + (chunk - kKRowChunks) * 16), v_scale);
    }
  }
}
