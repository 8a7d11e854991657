// no_append.cuh -- the cache holds the query tokens' K and V already.

LEAN_DEVICE void append_tokens(const LeanDecodeArgs&, const Segment&, int, int) {}
