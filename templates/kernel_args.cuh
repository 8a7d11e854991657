// kernel_args.cuh -- LeanDecodeArgs: the one by-value parameter of every lean decode kernel, shared by host and device.
// Strides count elements, not bytes. All pointers are device pointers; bases and strides are multiples of 16 bytes.
struct LeanDecodeArgs {
  const void* q;               // [batch, q_tokens, q_heads, head_dim]
  const void* k;               // [batch, kv_heads, context, head_dim] through k_stride_*; paged: batch stands for pages
  const void* v;               // likewise, v_head_dim wide
  void* o;                     // [batch, q_tokens, q_heads, v_head_dim]
  float* lse;                  // [batch, q_tokens, q_heads], natural log; read only by kernels emitted with LSE
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

  // Read only by kernels emitted with the feature.
  const int* page_table;      // [batch, max_pages]: where each page of a request lies in the pool
  const int* q_offsets;       // [batch + 1]: first query token of each request, for ragged numbers of them
  const unsigned* tree_mask;  // [query tokens]: bit j: sees the request's query token j
  const float* alibi_slopes;  // [q_heads]
  const float* sink_logits;   // [q_heads], natural units
  const float* k_scale;       // one-byte KV: [1], [kv_heads] or per token; null: 1
  const float* v_scale;
  const void* k_new;        // [batch, q_tokens, kv_heads, head_dim]: appended to the cache
  const void* v_new;        // likewise, v_head_dim wide
  const float* rope_table;  // [positions, rope_dim]: cosines, then sines
  long long k_new_stride_batch, k_new_stride_token, k_new_stride_head;
  long long v_new_stride_batch, v_new_stride_token, v_new_stride_head;
  long long q_stride_token, o_stride_token;  // between query tokens of a request
  long long page_table_stride;
  long long kv_scale_stride_batch, kv_scale_stride_head, kv_scale_stride_token;
  long long pool_pages;  // pages of k and v
  float score_scale;     // softmax scale of kernels that transform scores; their scale_log2 is log2(e)
  unsigned slots;        // batch-invariant kernels: places that the workspace has room for, instead of the grid
};
static_assert(sizeof(void*) == 8 && sizeof(long long) == 8, "64-bit only");
static_assert(sizeof(LeanDecodeArgs) == 360, "host and device must agree on the argument block");
