// kv/elements_16bit.cuh -- KV elements of q's type: words of memory are what the matrix unit takes.

constexpr bool kScalesTokens = false;

// Pair i of neighbouring elements of what a lane holds of a row.
LEAN_DEVICE u32 kv_pair(const u32* words, int i) { return words[i]; }
LEAN_DEVICE u32 query_pair(u32 x) { return x; }
LEAN_DEVICE uint4 query_16(const uint4& x) { return x; }  // eight elements
// Writes eight elements as the `chunk`th eight of a row of the cache.
LEAN_DEVICE void store_kv_chunk(char* row, int chunk, const uint4& x, float) { ((uint4*)row)[chunk] = x; }
