// kv_16bit.cuh -- KV elements are those of q: words of memory are what the matrix unit takes.

// Pair i of neighbouring elements of what a lane holds of a row.
LEAN_DEVICE u32 kv_pair(const u32* words, int i) { return words[i]; }
LEAN_DEVICE u32 query_pair(u32 x) { return x; }
LEAN_DEVICE float k_scale_of(const LeanDecodeArgs&, const Segment&, int, bool) { return 1.0f; }
LEAN_DEVICE float v_scale_of(const LeanDecodeArgs&, const Segment&, const Step&, int) { return 1.0f; }
LEAN_DEVICE float output_scale(const LeanDecodeArgs&, int) { return 1.0f; }
// Eight elements, the `chunk`th eight of a row of the cache.
LEAN_DEVICE void store_kv_chunk(char* row, int chunk, const uint4& x, float) { ((uint4*)row)[chunk] = x; }
