// kv/append.cuh -- the query tokens' own K and V are written into the cache, so that a decode step is one launch. Where
// several CTAs read the end of a KV head, because it has several row blocks, each writes the same bytes.
// kv/append_to_stage.cuh or kv/append_to_cache.cuh says when that is done.

// The token at which a query token's own K and V belong, where the cache has room for it. Below 0: nowhere here.
LEAN_DEVICE int new_token(const Segment& s, int query) {
#if defined(LEAN_POSITIONS)
  // Of the ranks that share the context, the one that holds a token's position writes it, and no other.
  const int token = token_at(s.first_query + query);
  return token < s.context_length ? token : -1;
#else
  return s.context_length - s.query.count + query;
#endif
}

// The first query token whose K and V may belong at `token` or behind it.
LEAN_DEVICE int first_new(const Segment& s, int token) {
#if defined(LEAN_POSITIONS)
  return 0;
#else
  return max(token - (s.context_length - s.query.count), 0);
#endif
}

// A row of K and one of V.
struct NewRows {
  const char *k, *v;
};
// Those of a query token, as they are given.
LEAN_DEVICE NewRows given_rows(const LeanDecodeArgs& args, const Segment& s, int query) {
  const i64 outer = kRaggedQ ? 0 : s.request, at = kRaggedQ ? s.query.first + query : query;
  return {(const char*)args.k_new +
              2 * (outer * args.k_new_stride_batch + at * args.k_new_stride_token + s.kv_head * args.k_new_stride_head),
          (const char*)args.v_new + 2 * (outer * args.v_new_stride_batch + at * args.v_new_stride_token +
                                         s.kv_head * args.v_new_stride_head)};
}

// The position of a token, by which keys rotate.
LEAN_DEVICE int index_of_new(const Segment& s, int token) {
#if defined(LEAN_INDEX_OF_PART)
  return kv_index_of(s, token);
#else
  return token;
#endif
}

// The page of a token or, in a dense cache, its request.
LEAN_DEVICE int outer_of(const LeanDecodeArgs& args, const Segment& s, int token) {
  return kPageSize > 0 ? page_of(args, s, token) : s.request;
}
// Whether that is a hole of the page table, where nothing is written.
LEAN_DEVICE bool is_nowhere(const LeanDecodeArgs& args, int outer) {
  return kPageSize > 0 && is_hole(outer, args.pool_pages);
}

// Where a token's row of K lies in the cache, and where that of V does.
LEAN_DEVICE char* k_cache_row(const LeanDecodeArgs& args, const Segment& s, int outer, int token) {
  const i64 at = kPageSize > 0 ? token % max(kPageSize, 1) : token;
  return (char*)args.k +
         kStrideBytes * (outer * args.k_stride_batch + s.kv_head * args.k_stride_head + at * args.k_stride_token);
}
LEAN_DEVICE char* v_cache_row(const LeanDecodeArgs& args, const Segment& s, int outer, int token) {
  const i64 at = kPageSize > 0 ? token % max(kPageSize, 1) : token;
  return (char*)args.v +
         kStrideBytes * (outer * args.v_stride_batch + s.kv_head * args.v_stride_head + at * args.v_stride_token);
}
