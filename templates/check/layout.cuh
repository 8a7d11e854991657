// check/layout.cuh -- where the rows of a decode case lie, and which of them a kernel may read, as the contract says it
// for dense and paged caches and for any number of query tokens.

// The tokens of a request that the case has, and those of its whole context. The two differ where ranks share contexts.
__device__ __forceinline__ int check_held(const LeanDecodeArgs& args, const CheckFeatures& check, int request) {
  const int length = args.context_lengths[request];
  if (check.packed_kv) return args.context_lengths[request + 1] - length;
  return length < 0 ? 0 : length > args.context_capacity ? args.context_capacity : length;
}
__device__ __forceinline__ int check_context(const LeanDecodeArgs& args, const CheckFeatures& check, int request) {
  return check.ranks > 1 ? args.full_lengths[request] : check_held(args, check, request);
}

// The position in its whole context of a token that the case has; and which of its tokens is at a position, below 0 if
// none is.
__device__ __forceinline__ long long check_token_position(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                          int request, long long token) {
  const long long unit = check.interleave;
  if (check.ranks == 1) return token;
  return unit > 0 ? (token / unit * check.ranks + check.rank) * unit + token % unit
                  : args.context_starts[request] + token;
}
__device__ __forceinline__ long long check_token_at(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                                    long long position) {
  const long long unit = check.interleave, round = unit * check.ranks;
  if (check.ranks == 1) return position;
  if (unit > 0) return position % round / unit == check.rank ? position / round * unit + position % unit : -1;
  const long long token = position - args.context_starts[request];
  return token < check_held(args, check, request) ? token : -1;
}

__device__ __forceinline__ int check_query_tokens(const LeanDecodeArgs& args, const CheckFeatures& check, int request) {
  if (!check.ragged_q) return check.q_len;
  const int count = args.q_offsets[request + 1] - args.q_offsets[request];
  return count < 0 ? 0 : count > check.q_len ? check.q_len : count;
}

// The query tokens of all requests. Those of ragged ones follow each other, so that none is counted that is not there.
__device__ __forceinline__ long long check_all_query_tokens(const LeanDecodeArgs& args, const CheckFeatures& check) {
  return check.ragged_q ? args.query_tokens : (long long)args.batch * check.q_len;
}

// One of them: query token t of a request.
struct CheckQueryToken {
  int request, t;
};
__device__ __forceinline__ CheckQueryToken check_query_token_at(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                                long long token) {
  CheckQueryToken found = {(int)(token / check.q_len), (int)(token % check.q_len)};
  if (!check.ragged_q) return found;
  int behind = args.batch;  // the request is in [found.request, behind)
  for (found.request = 0; behind - found.request > 1;) {
    const int middle = (found.request + behind) / 2;
    if (args.q_offsets[middle] <= token)
      found.request = middle;
    else
      behind = middle;
  }
  found.t = (int)(token - args.q_offsets[found.request]);
  return found;
}

// Which of all query tokens a request's query token is.
__device__ __forceinline__ long long check_query_token(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                       int request, int t) {
  return (check.ragged_q ? (long long)args.q_offsets[request] : (long long)request * check.q_len) + t;
}

__device__ __forceinline__ const unsigned short* check_q_row(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                             int request, int t, int head) {
  const long long row = check.ragged_q ? ((long long)args.q_offsets[request] + t) * args.q_stride_token
                                       : request * args.q_stride_batch + t * args.q_stride_token;
  return (const unsigned short*)args.q + row + head * args.q_stride_head;
}

// What K's elements are drawn as, and how many columns there are of K and V to fill.
__device__ __forceinline__ int check_key_tensor(const CheckFeatures& check) {
  return check.latent ? kCheckLatent : kCheckK;
}
__device__ __forceinline__ int check_stored_columns(const CheckFeatures& check) {
  return check.head_dim + (check.latent ? 0 : check.v_head_dim);
}

// A query token's position in its whole context. It is below 0 where the context is shorter than the query tokens.
__device__ __forceinline__ long long check_position(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                                    int t) {
  return (long long)check_context(args, check, request) - check_query_tokens(args, check, request) + t;
}

// A row of k_new or v_new.
__device__ __forceinline__ const unsigned short* check_new_row(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                               int tensor, int request, int t, int head) {
  const bool keys = tensor != kCheckV;
  const long long of_batch = keys ? args.k_new_stride_batch : args.v_new_stride_batch,
                  of_token = keys ? args.k_new_stride_token : args.v_new_stride_token,
                  of_head = keys ? args.k_new_stride_head : args.v_new_stride_head;
  const long long row =
      check.ragged_q ? ((long long)args.q_offsets[request] + t) * of_token : request * of_batch + t * of_token;
  return (const unsigned short*)(keys ? args.k_new : args.v_new) + row + head * of_head;
}

// The first token that some query token sees through the window.
__device__ __forceinline__ long long check_window_begin(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                        int request) {
  if (check.window == 0) return 0;
  const int query_tokens = check_query_tokens(args, check, request);
  const long long begin = (long long)check_context(args, check, request) - query_tokens - check.window + 1;
  if (!check.spans || query_tokens == 0) return begin;
  const LeanSpan span = args.spans[check_query_token(args, check, request, 0)];
  return span.end > 0 && span.first < begin ? span.first : begin;
}

// Whether any token of the case from `first` to before `end` may be read. Tokens that may not hold NaN.
__device__ __forceinline__ bool check_live(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                           long long first, long long end) {
  const long long held = check_held(args, check, request), last = (end < held ? end : held) - 1;
  return first <= last &&
         (check_token_position(args, check, request, first) < check.sink_tokens ||
          check_token_position(args, check, request, last) >= check_window_begin(args, check, request));
}

// The number of tokens that all requests share with request 0. They fill whole pages.
__device__ __forceinline__ int check_shared_tokens(const LeanDecodeArgs& args, const CheckFeatures& check) {
  if (check.page_size == 0) return 0;
  const int first = check_context(args, check, 0);
  const int tokens = first < check.shared_prefix ? first : check.shared_prefix;
  return tokens - tokens % check.page_size;
}

// The blocks of a context from which lists are made. Those of the pool cannot hide what lies behind the context, so
// that only whole blocks are named there.
__device__ __forceinline__ int check_blocks(const LeanDecodeArgs& args, const CheckFeatures& check, int request) {
  const int context = check_context(args, check, request);
  return (context + (check.selection_in_pool ? 0 : check.selection_block - 1)) / check.selection_block;
}

// How many entries of a query token's lists count.
__device__ __forceinline__ int check_entries(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                             int t) {
  return check_selected_count(check_blocks(args, check, request), check.selection_spread, t);
}

// An entry of a query token's list, as a block of the request.
__device__ __forceinline__ int check_entry(const LeanDecodeArgs& args, const CheckFeatures& check, int request, int t,
                                           int kv_head, int index) {
  return check_selected_block(check.seed, request, check.selection_heads == 1 ? 0 : kv_head, t, index,
                              check_entries(args, check, request, t), check_blocks(args, check, request),
                              check.selection_spread, check.selection_holes);
}

// How many tokens of the second cache a query token sees.
__device__ __forceinline__ int check_second_tokens(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                                   int t) {
  if (!check.second_cache) return 0;
  const int length = args.second_lengths[request * check.q_len + t];
  return length < 0 ? 0 : length > args.second_capacity ? args.second_capacity : length;
}

// How many tokens a query token reads, holes included, and which is number `index` of them: -1 in a hole, and for token
// j of the second cache -2 - j.
__device__ __forceinline__ int check_reads(const LeanDecodeArgs& args, const CheckFeatures& check, int request, int t) {
  if (check.selection_block == 0) return check_context(args, check, request);
  return check_entries(args, check, request, t) * check.selection_block + check_second_tokens(args, check, request, t);
}
__device__ __forceinline__ int check_read_token(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                                int t, int kv_head, int index) {
  if (check.selection_block == 0) return index;
  const int selected = check_entries(args, check, request, t) * check.selection_block;
  if (index >= selected) return -2 - (index - selected);
  const int block = check_entry(args, check, request, t, kv_head, index / check.selection_block);
  const long long token = (long long)block * check.selection_block + index % check.selection_block;
  return block < 0 || token >= check_context(args, check, request) ? -1 : (int)token;
}

// Whether the page table has no page for a token of the case that may be read.
__device__ __forceinline__ bool check_in_hole(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                              long long token) {
  if (check.page_size == 0) return false;
  const int page = args.page_table[request * args.page_table_stride + token / check.page_size];
  return page < 0 || page >= args.pool_pages;
}

// Where token `token` of a KV head lies in the second cache, in elements from its start; below 0 in a hole.
__device__ __forceinline__ long long check_second_offset(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                         int request, int head, int token, long long stride_batch,
                                                         long long stride_head, long long stride_token) {
  const int page = args.second_page_table[request * args.second_page_table_stride + token / check.page_size];
  if (page < 0 || page >= args.second_pool_pages) return -1;
  return page * stride_batch + head * stride_head + token % check.page_size * stride_token;
}

// Where a token of a KV head lies: elements from the start of the tensor.
__device__ __forceinline__ long long check_offset(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                                  int head, long long token, long long stride_batch,
                                                  long long stride_head, long long stride_token) {
  if (check.packed_kv) request = args.context_lengths[request];  // whose stride is that of tokens
  if (check.page_size == 0) return request * stride_batch + head * stride_head + token * stride_token;
  const long long page = args.page_table[request * args.page_table_stride + token / check.page_size];
  return page * stride_batch + head * stride_head + token % check.page_size * stride_token;
}
__device__ __forceinline__ long long check_k_offset(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                                    int head, long long token) {
  return check_offset(args, check, request, head, token, args.k_stride_batch, args.k_stride_head, args.k_stride_token);
}
__device__ __forceinline__ long long check_v_offset(const LeanDecodeArgs& args, const CheckFeatures& check, int request,
                                                    int head, long long token) {
  return check_offset(args, check, request, head, token, args.v_stride_batch, args.v_stride_head, args.v_stride_token);
}
// Whether elements are four bits; and where the scale of a block of 16 columns lies that has this column.
__device__ __forceinline__ bool check_has_nibbles(const CheckFeatures& check) {
  return check.kv_format == kCheckInt4 || check.kv_format == kCheckFp4;
}
__device__ __forceinline__ unsigned char* check_block_scale_at(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                               bool keys, int request, int head, long long token,
                                                               int column) {
  return (unsigned char*)(keys ? args.k_block_scales : args.v_block_scales) +
         check_offset(args, check, request, head, token, args.kv_scale_stride_batch, args.kv_scale_stride_head,
                      args.kv_scale_stride_token) +
         column / 16;
}
__device__ __forceinline__ long long check_scale_offset(const LeanDecodeArgs& args, const CheckFeatures& check,
                                                        int request, int head, long long token) {
  if (check.kv_scale == kCheckScaleTensor) return 0;
  if (check.kv_scale == kCheckScaleHead) return head;
  return check_offset(args, check, request, head, token, args.kv_scale_stride_batch, args.kv_scale_stride_head,
                      args.kv_scale_stride_token);
}

// Byte `at` of a row with a format of its own, which lies at `row` and is that of a token of a cache; behind the row's
// bytes, those of its scales in the plane behind the rows of the page. And where its scales begin.
__device__ __forceinline__ unsigned char* check_row_at(const CheckFeatures& check, const void* row, long long token,
                                                       int at) {
  long long offset = at;
  if (at >= check.row_bytes) {
    const long long of_page = token % check.page_size;
    offset += (check.page_size - of_page - 1) * check.row_bytes + of_page * check.row_plane;
  }
  return (unsigned char*)row + offset;
}
__device__ __forceinline__ const unsigned char* check_row_scales(const CheckFeatures& check, const void* row,
                                                                 long long token) {
  return check_row_at(check, row, token, check.row_plane > 0 ? check.row_bytes : check.row_scales);
}
