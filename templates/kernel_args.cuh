// kernel_args.cuh -- LeanDecodeArgs: the one by-value parameter of every lean decode kernel, shared by host and device.
// Strides count elements, not bytes. All pointers are device pointers; bases and strides are multiples of 16 bytes.
struct LeanDecodeArgs {
  const void* q;               // [batch, q_heads, head_dim]
  const void* k;               // [batch, kv_heads, context, head_dim] through k_stride_*
  const void* v;               // [batch, kv_heads, context, head_dim] through v_stride_*
  void* o;                     // [batch, q_heads, head_dim]
  float* lse;                  // [batch, q_heads], natural log; read only by kernels emitted with LSE
  const int* context_lengths;  // [batch], tokens in the cache; clamped to [0, context_capacity]
  float* partials;             // [grid, 2, partial_floats], all zero between launches
  unsigned* tickets;           // [grid + batch * kv_heads * row_blocks], all zero between launches
  long long q_stride_batch, q_stride_head;
  long long k_stride_batch, k_stride_head, k_stride_token;
  long long v_stride_batch, v_stride_head, v_stride_token;
  long long o_stride_batch, o_stride_head;
  int batch;
  int kv_heads;
  int context_capacity;      // tokens the KV allocation holds per request
  float scale_log2;          // softmax scale * log2(e): the softmax runs in base 2
  unsigned grid_reciprocal;  // lean_reciprocal(grid)
  unsigned segment_cost;     // what an output tile costs beside its LeanTiles, in LeanTiles
};
static_assert(sizeof(void*) == 8 && sizeof(long long) == 8, "64-bit only");
static_assert(sizeof(LeanDecodeArgs) == 168, "host and device must agree on the argument block");
