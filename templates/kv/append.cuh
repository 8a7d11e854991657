// kv/append.cuh -- the query tokens' own K and V are written into the cache, by the warp that reads them next, so that
// a decode step is one launch. Where several CTAs read the end of a KV head, because it has several row blocks, each
// writes the same bytes. How a row is stored says kv/append_elements.cuh or kv/append_rows.cuh.

// Tokens that go to one warp before the next warp has its turn.
constexpr int kTurnTokens = kStepTokens / (kGathers ? kGatherWarps : 1);

LEAN_DEVICE char* cache_row(const LeanDecodeArgs& args, const void* base, i64 stride_outer, i64 stride_head,
                            i64 stride_token, const Segment& s, int token) {
  int outer = s.request;
  if constexpr (kPageSize > 0) {
    constexpr int kPage = kPageSize > 0 ? kPageSize : 1;
    outer = page_of(args, s, token);
    token %= kPage;
  }
  return (char*)base + kStrideBytes * (outer * stride_outer + s.kv_head * stride_head + token * stride_token);
}

// Writes those of a segment's new tokens that warp `warp` of `warps` reads. To be called by all lanes of that warp,
// which may then request them, by the copy engine too.
LEAN_DEVICE void append_tokens(const LeanDecodeArgs& args, const Segment& s, int warp, int warps) {
  if (!holds_newest(s)) return;
#if defined(LEAN_POSITIONS)
  // Of the ranks that share the context, the one that holds a token's position writes it, and no other.
  if (tokens_before(s.first_query) >= s.context_length) return;  // this rank has none of them
  const int begin = first_read(s), end = end_read(s);
#pragma unroll 1
  for (int query = 0; query < s.query.count; query++) {
    const int token = token_at(s.first_query + query), read = token - s.visible.shift;
    if (token < 0 || token >= s.context_length) continue;
#else
  const int first_new = s.context_length - s.query.count, begin = first_read(s), end = end_read(s);
#pragma unroll 1
  for (int query = max(-first_new, 0); query < s.query.count; query++) {
    const int token = first_new + query, read = token - s.visible.shift;
#endif
    if (read < begin || read >= end || (read - begin) / kTurnTokens % warps != warp) continue;
    if (kPageSize > 0 && is_hole(page_of(args, s, token), args.pool_pages)) continue;
    const i64 outer = kRaggedQ ? 0 : s.request, at = kRaggedQ ? s.query.first + query : query;
    const char* k_new = (const char*)args.k_new + 2 * (outer * args.k_new_stride_batch + at * args.k_new_stride_token +
                                                       s.kv_head * args.k_new_stride_head);
    const char* v_new = (const char*)args.v_new + 2 * (outer * args.v_new_stride_batch + at * args.v_new_stride_token +
                                                       s.kv_head * args.v_new_stride_head);
#if defined(LEAN_INDEX_OF_PART)
    const int index = kv_index_of(s, token);
#else
    const int index = token;
#endif
    append_row(args, s, token, index, k_new, v_new,
               cache_row(args, args.k, args.k_stride_batch, args.k_stride_head, args.k_stride_token, s, token),
               cache_row(args, args.v, args.v_stride_batch, args.v_stride_head, args.v_stride_token, s, token));
  }
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
  __syncwarp();
}
