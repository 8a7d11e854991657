// check/features.cuh -- CheckFeatures: what the kernels of a check need to know beside LeanDecodeArgs, shared by host
// and device. It is plain data. An emitted kernel has all of it compiled in.
struct CheckFeatures {
  unsigned long long seed;  // of the data
  double scale;             // softmax scale
  double soft_cap;          // 0: none
  int kind, format;         // CheckKind; CheckFormat of q and o, and of k and v where kv_format is kCheckSame
  int q_heads, head_dim, v_head_dim;
  int q_len, ragged_q, mask;  // CheckMask
  int window, sink_tokens, sink_logits, alibi, spans, packed_kv;
  int page_size, max_pages;                // 0: dense
  int shared_prefix;                       // paged: tokens whose pages all requests read from request 0
  int kv_format, kv_scale;                 // CheckKvFormat, CheckKvScale
  int append, rope, rope_dim;              // CheckRope
  int first_rope_dim;                      // the first of the dims that turn
  int latent;                              // V is the first columns of K
  int hole_every;                          // paged: one of so many entries of the page table is a hole; 0: none
  int selection_block, selection_in_pool;  // 0: none
  int selection_heads;                     // lists of a query token: one a KV head, or 1
  int selection_spread, selection_holes;   // check_selected_block
  // Rows of a latent cache with a format of their own (generator/kv_encoding.hpp). Offsets are bytes of a row.
  // row_plane: bytes of a token's scales that lie behind the rows of a page, not in them.
  int row_bytes, row_plane;                                          // 0: elements of one type
  int row_latent, row_latent_format, row_latent_columns, row_group;  // CheckKvFormat; columns that share a scale
  int row_scales, row_rope;
  int second_cache;  // query tokens also see the first tokens of a second cache
  int data_request;  // what is added to a request's number where its K and V are drawn
  // The case has the tokens of one rank, of so many to which those of each context are dealt; interleave: in units of
  // so many tokens, 0: in contiguous parts. full_lengths and context_starts say the rest.
  int rank, ranks, interleave;
};
static_assert(sizeof(CheckFeatures) == 200, "host and device must agree on it");
