// kv/dense_tokens.cuh -- where a warp's tokens lie in a dense cache: all in the rows of the request.

struct TokenPlaces {
  LEAN_DEVICE void start(const LeanDecodeArgs&, const Segment&) {}
#if defined(LEAN_PACKED_KV)
  LEAN_DEVICE int take(const Segment& s, int) const { return s.kv_first; }
#else
  LEAN_DEVICE int take(const Segment& s, int) const { return s.request; }
#endif
};

// token: the token's index in the context.
LEAN_DEVICE PoolRow pool_row(int place, int token) { return {place, token}; }
LEAN_DEVICE const char* k_cache(const LeanDecodeArgs& args, int) { return (const char*)args.k; }
LEAN_DEVICE const char* v_cache(const LeanDecodeArgs& args, int) { return (const char*)args.v; }
