// line/rows.cuh -- the query rows of an output tile. Row R of a request and KV head is query head R % kGroup of query
// token R / kGroup. An output tile has kRows of them.

enum { kCausal, kTree, kFull };  // kQueryMask

// The line is cut into ranges. A range is one CTA's, or, where row blocks go in step, that of one CTA for each of them:
// these then read the same KV at about the same time, and on the line such row blocks are one output tile.
constexpr u32 kCtasOfRange = kRowBlocksInStep;
constexpr int kRowsOfRange = kRowBlocksInStep * kRows;
// Output tiles of a KV head on the line, or 1 where that depends on the request (line/work.cuh).
constexpr u32 kOutputsOfKvHead = kRaggedQ ? 1 : kRowBlocks / kRowBlocksInStep;
// Which of the row blocks in step a row block is.
LEAN_DEVICE int number_in_step(int row_block) { return kRaggedQ ? row_block % kRowBlocksInStep : row_block; }
#if defined(LEAN_HEADS_IN_STEP)
// Where rows of neighbouring KV heads share sectors of memory, KV heads go in step in the same way, and are one on the
// line.
LEAN_DEVICE u32 ranges(u32 in_step) { return gridDim.x / in_step; }
LEAN_DEVICE u32 own_range(u32 in_step) { return blockIdx.x / in_step; }
LEAN_DEVICE u32 heads_in_step(int kv_heads) { return lean_heads_in_step((u32)kv_heads); }
// This CTA's of the KV heads that the line counts as `head`.
LEAN_DEVICE int head_in_step(int kv_heads, int head) {
  const u32 in_step = heads_in_step(kv_heads);
  return head * (int)in_step + (int)(blockIdx.x % in_step);
}
#else
LEAN_DEVICE u32 ranges() { return gridDim.x / kCtasOfRange; }
LEAN_DEVICE u32 own_range() { return blockIdx.x / kCtasOfRange; }  // ranges() or more: this CTA has none
#endif

// With a selection every query token is a request of the line: request `r` is query token r % kSelectionQueries of
// request r / kSelectionQueries of the batch.
//
// A request's query tokens are the last `count` of its context; `first` counts those of the requests before it.
struct QueryTokens {
  int first, count;
};

LEAN_DEVICE QueryTokens query_tokens(const int* q_offsets, int request) {
  if constexpr (!kRaggedQ) return {request * kQLen, kQLen};
  const int first = q_offsets[request], count = max(q_offsets[request + 1] - first, 0);
  // Where two walks share a CTA, one has the requests with few query tokens, and the other one all others.
  if (kFewTokens > 0 && (count <= kFewTokens) != kTakesFew) return {first, 0};
  return {first, min(count, kQLen)};
}

#if defined(LEAN_PACKED_KV)
// Requests follow each other in K and V, of which `capacity` rows are there. starts: [batch + 1], the first row of each
// request; it stands in the place of the context lengths. The strides of the batch are those of tokens.
LEAN_DEVICE int first_kv_row(const int* starts, int request, int capacity) {
  return min(max(starts[request], 0), capacity);
}
LEAN_DEVICE int packed_length(const int* starts, int request, int capacity) {
  const int first = first_kv_row(starts, request, capacity);
  return min(max(starts[request + 1], first), capacity) - first;
}
#endif

// With a second cache, the list of a query token goes on with the blocks of that cache. How many tokens of it the query
// token sees, and how many blocks they take; length as the host has it.
LEAN_DEVICE int second_tokens(int length, int capacity) { return min(max(length, 0), capacity); }
LEAN_DEVICE int second_blocks(int length, int capacity) {
  constexpr int kBlock = kSelectionBlock > 0 ? kSelectionBlock : 1;
  return (second_tokens(length, capacity) + kBlock - 1) / kBlock;
}

struct Row {
  int token;   // query token of the request
  int head;    // query head of the KV head's group
  bool valid;  // false for rows to spare: of a KV head's last output tile, or of a request with fewer query tokens
};

// Row `row` of the output tile of row block `row_block`.
LEAN_DEVICE Row row_of(const QueryTokens& query, int row_block, int row) {
  const int index = row_block * kRows + row;
  const bool valid = row < kRows && (kQueryRows % kRows == 0 || index < kQueryRows);
  if constexpr (kQLen == 1 && !kRaggedQ) return {0, index, valid};
  const int token = index / kGroup;
  return {token, index - token * kGroup, valid && (!kRaggedQ || token < query.count)};
}

// Elements from the base of q (or o) to a row.
LEAN_DEVICE i64 row_offset(int request, const QueryTokens& query, int kv_head, const Row& row, i64 stride_batch,
                           i64 stride_token, i64 stride_head) {
  const i64 of_head = (i64)(kv_head * kGroup + row.head) * stride_head;
  if constexpr (kRaggedQ) return (query.first + row.token) * stride_token + of_head;
  if constexpr (kSelectionBlock > 0)
    return request / kSelectionQueries * stride_batch + request % kSelectionQueries * stride_token + of_head;
  if constexpr (kQLen > 1) return request * stride_batch + row.token * stride_token + of_head;
  return request * stride_batch + of_head;
}
