// kernel_args.cuh -- LeanDecodeArgs: the argument block, by value; and LeanStatus, through which kernels tell the
// host what went wrong.
// ---
// Host and device compile this file, for every decode kernel. The fields of LeanDecodeArgs stand in the order in which
// a kernel first reads them. A kernel reads its arguments through the constant cache, and until the first KV request is
// out every miss there delays the whole launch. On sm_90 the block begins at c[0x0][0x210], 16 bytes into a line of 64
// bytes. So the first 48 bytes, up to k and v, lie in one line, which is all that a kernel needs to find its first
// segment; what turns that into addresses is the next line.

// What a kernel may find wrong (LeanStatus::fault): a partial of another CTA, or a stage of the ring, did not come
// within the bound, or a ticket counter held more than there are contributors.
constexpr unsigned kLeanWaitedInVain = 1;
constexpr unsigned kLeanWrongTicket = 2;
// And of a group (docs/groups.md): a rank did not send what it must within the bound, or launched something else. The
// bits from kLeanRankShift on are the rank.
constexpr unsigned kLeanRankMissing = 3, kLeanRankDiffers = 4, kLeanRankShift = 8;

// The status block of a context, in page-locked host memory that the GPU reads and writes in place. The first two
// fields are read one after the other.
struct alignas(8) LeanStatus {
  unsigned fault;                // kLean...; 0: none. Kernels set it, and the host clears it
  unsigned wait_bound_us;        // how long a thread waits for a partial, in microseconds; the host sets it
  unsigned long long workspace;  // address of the tickets of the launch that set `fault`, or of a group's LeanGroup
};

// What a rank of a group knows of it, in the rank's device memory. The host writes it once. A launch adds
// 2^kLeanArrivalBits to `arrivals` in total, so that the bits above count launches: the epoch.
constexpr int kLeanMostRanks = 72, kLeanArrivalBits = 16;
struct LeanGroup {
  unsigned long long arrivals;
  unsigned columns;  // columns of O for which each slot of the exchange has room; a multiple of 16
  unsigned reserved;
  char* exchange[kLeanMostRanks];  // of each rank, where this GPU reaches it
};

// The exchange memory of a rank, all zero before its first launch and but for the signals between launches: a signal of
// 8 bytes from each rank for each parity of the epoch, [2, kLeanMostRanks], then as many slots, [2, ranks]. A slot has
// O [columns] float4, then (max, sum) [columns] (templates/merge/exchange.cuh).
constexpr int kLeanColumnBytes = 24, kLeanSignalBytes = 1280;
static_assert(kLeanSignalBytes >= 2 * 8 * kLeanMostRanks && kLeanSignalBytes % 256 == 0, "slots begin with a line");

#if !defined(__CUDACC__) || defined(LEAN_SPANS) || defined(LEAN_BLOCK_SCALES)
// Tokens of a context that see each other both ways, as indices of the first one and of the one behind the last.
// Without tokens: both are 0.
struct alignas(8) LeanSpan {
  int first, end;
};
#endif

// Strides count elements, not bytes. All pointers are device pointers; bases and strides are multiples of 16 bytes. The
// fields stand in the order in which a kernel first reads them.
struct LeanDecodeArgs {
  // What a CTA needs to find its range of the schedule, and the bases of the cache.
  const int* context_lengths;  // [batch], tokens in the cache; clamped to [0, context_capacity]
  int batch;
  int kv_heads;
  int context_capacity;      // tokens the KV allocation holds per request
  unsigned segment_cost;     // what an output tile costs beside its LeanTiles, in LeanTiles
  unsigned grid_reciprocal;  // lean_reciprocal(grid)
  int pool_pages;            // pages of k and v; a number in the page table that is not one of them is a hole
  const void* k;  // [batch, kv_heads, context, head_dim] by k_stride_*; paged: [pages, kv_heads, page_size, ...]
  const void* v;  // the same, v_head_dim wide

  // Where K and V of the range lie.
  long long k_stride_batch, k_stride_head, k_stride_token;  // paged: k_stride_batch is the step from page to page
  long long v_stride_batch, v_stride_head, v_stride_token;
  const int* page_table;  // [batch, max_pages]: the page in the pool that holds each page of a request, or a hole,
                          // whose tokens nobody sees; paged only
  long long page_table_stride;

  // What is read while the first KV is on its way.
  const int* q_offsets;  // [batch + 1]: first query token of each request; ragged numbers of query tokens only
  const void* q;         // [batch, q_tokens, q_heads, head_dim]
  long long q_stride_batch, q_stride_token, q_stride_head;
  float
      scale_log2;  // softmax scale * log2(e), because the softmax runs in base 2; log2(e) where scores are transformed
  float score_scale;  // softmax scale of kernels that transform scores
  float* partials;    // [slots, 2, partial_floats], all zero between launches; slots: the grid, if not batch-invariant
  unsigned* tickets;  // [slots], all zero between launches

  // The output.
  void* o;  // [batch, q_tokens, q_heads, v_head_dim]
  long long o_stride_batch, o_stride_token, o_stride_head;
  float* lse;  // [batch, q_tokens, q_heads], natural log; read only by kernels emitted with LSE

#if defined(LEAN_PLAIN)
  long long of_features[25];  // what kernels with features read
#else
  // Each read only by kernels emitted with its feature.
  const unsigned* tree_mask;  // [query tokens]: bit j is set if the token sees the request's query token j
  const float* alibi_slopes;  // [q_heads]
  const float* sink_logits;   // [q_heads], natural units
  const float* k_scale;       // one-byte KV: [1], [kv_heads], or one a token by kv_scale_stride_*; null means 1
  const float* v_scale;       // the same
  long long kv_scale_stride_batch, kv_scale_stride_head, kv_scale_stride_token;
  const float* rope_table;  // [positions, rope_dim]: cosines, then sines
  const void* k_new;        // [batch, q_tokens, kv_heads, head_dim]: appended to the cache
  const void* v_new;        // [batch, q_tokens, kv_heads, v_head_dim]
  long long k_new_stride_batch, k_new_stride_token, k_new_stride_head;
  long long v_new_stride_batch, v_new_stride_token, v_new_stride_head;
  int query_tokens;  // of all requests, for which q and o have room; ragged numbers of query tokens only

  // What each query token has selected; selection kernels only. The line of such a kernel has a request for each query
  // token, whose length counts entries of its list. So the kernel gets other values than the host has in batch,
  // context_lengths and context_capacity (lean_line_of_selection).
  int selection_capacity;      // entries of a list
  const int* selection;        // [batch, q_tokens, kv_heads or 1, selection_capacity]: blocks, or holes
  const int* selected_counts;  // [batch, q_tokens], entries that count; clamped to [0, selection_capacity]
  long long selection_stride_batch, selection_stride_token, selection_stride_head;
  const int* request_lengths;  // what the host has in context_lengths
  int request_capacity;        // and in context_capacity
#endif

  // Read only by threads that have waited for long or found a fault. Null: they break the context instead.
  LeanStatus* status;
#if !defined(__CUDACC__) || defined(LEAN_GROUP) || defined(LEAN_CONTEXT_RANKS) || defined(LEAN_LONG_ARGUMENTS)

  // Kernels of a group only. Others have a shorter argument block, of which the driver copies no more.
  void* group;                   // LeanGroup of this rank
  const int* full_lengths;       // [batch], tokens of the whole contexts, over all ranks
  const int* context_starts;     // [batch], where in the whole context this rank's tokens begin; contiguous parts only
  int group_rank, group_checks;  // group_checks is not 0 if ranks compare full_lengths
#if !defined(__CUDACC__) || defined(LEAN_CONTEXT_RANKS) || defined(LEAN_LONG_ARGUMENTS)
  int context_rank, reserved;  // this rank among all of a group, of which not all merge in the kernel
#endif
#endif
#if !defined(__CUDACC__) || defined(LEAN_LONG_ARGUMENTS)

  // Kernels with a second cache beside selected KV only: pages as those of k and v, with the same strides.
  const void* second_k;
  const void* second_v;
  const int* second_page_table;  // [batch, max_pages] by second_page_table_stride
  const int* second_lengths;     // [batch, q_tokens], its first tokens that each query token sees; clamped to
                                 // [0, second_capacity]
  long long second_page_table_stride;
  int second_pool_pages, second_capacity;
#endif
#if !defined(__CUDACC__) || defined(LEAN_SPANS) || defined(LEAN_BLOCK_SCALES)

  const LeanSpan* spans;  // [query tokens]: the span that each one is in; kernels with spans only
#endif
#if !defined(__CUDACC__) || defined(LEAN_BLOCK_SCALES)

  // Four-bit floats only: e4m3, one for 16 columns of a row, [batch or pages, kv_heads, tokens, head_dim / 16] by
  // kv_scale_stride_*, which count bytes.
  const void* k_block_scales;
  const void* v_block_scales;
#endif
};

#if !defined(__CUDACC__)
// The arguments as a kernel with a selection takes them. q_tokens: query tokens of a request.
inline LeanDecodeArgs lean_line_of_selection(LeanDecodeArgs args, int q_tokens) {
  args.request_lengths = args.context_lengths, args.request_capacity = args.context_capacity;
  args.context_lengths = args.selected_counts, args.context_capacity = args.selection_capacity;
  args.batch *= q_tokens;
  return args;
}
#endif
static_assert(sizeof(void*) == 8 && sizeof(long long) == 8, "64-bit only");
#if !defined(__CUDACC__) || defined(LEAN_BLOCK_SCALES)
static_assert(sizeof(LeanDecodeArgs) == 536, "host and device must agree on the argument block");
#elif defined(LEAN_SPANS)
static_assert(sizeof(LeanDecodeArgs) == 520, "host and device must agree on the argument block");
#elif defined(LEAN_LONG_ARGUMENTS)
static_assert(sizeof(LeanDecodeArgs) == 512, "host and device must agree on the argument block");
#elif defined(LEAN_CONTEXT_RANKS)
static_assert(sizeof(LeanDecodeArgs) == 464, "host and device must agree on the argument block");
#elif defined(LEAN_GROUP)
static_assert(sizeof(LeanDecodeArgs) == 456, "host and device must agree on the argument block");
#else
static_assert(sizeof(LeanDecodeArgs) == 424, "host and device must agree on the argument block");
#endif
