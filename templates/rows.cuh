// rows.cuh -- the query rows of an output tile, and what of a context they see. Row R of a request and KV head is query
// head R % kGroup of its query token R / kGroup; an output tile has kRows of them.

enum { kCausal, kTree, kFull };  // kQueryMask
static_assert(kPageSize % kPageRun == 0 && kStepTokens % kPageRun == 0, "runs cross neither pages nor steps");

// A request's query tokens: the last `count` of its context. `first`: their place among those of all requests.
struct QueryTokens {
  int first, count;
};

LEAN_DEVICE QueryTokens query_tokens(const int* q_offsets, int request) {
  if constexpr (!kRaggedQ) return {request * kQLen, kQLen};
  const int first = q_offsets[request];
  return {first, min(max(q_offsets[request + 1] - first, 0), kQLen)};
}

// What of a context must be read, in LeanTiles: all of it; or, with a window, `sink_tiles` that hold its first
// kSinkTokens tokens (if they do not touch the window), then those of the window of the earliest query token.
struct Visible {
  u32 tiles;
  u32 sink_tiles;  // 0: nothing is skipped
  int shift;       // token minus place, behind the sink tiles
};

LEAN_DEVICE Visible visible_of(int context_length, const int* q_offsets, int request) {
  if constexpr (kWindow > 0) {
    constexpr int kSinkTiles = (kSinkTokens + kTile - 1) / kTile;
    // Steps of a paged cache start where pages, or whole parts of them, do.
    const int queries = query_tokens(q_offsets, request).count,
              first = max(context_length - kWindow - queries + 1, 0) / kPageRun * kPageRun;
    if (first > kSinkTokens)
      return {kSinkTiles + lean_tiles_of(context_length - first, kTile), (u32)kSinkTiles, first - kSinkTiles * kTile};
  }
  return {lean_tiles_of(context_length, kTile), 0, 0};
}

struct Row {
  int token;   // query token of the request
  int head;    // query head of the KV head's group
  bool valid;  // the last output tile of a KV head may have rows to spare, a ragged batch too
};

// Row `row` of output tile `row_block`.
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
  if constexpr (kQLen > 1) return request * stride_batch + row.token * stride_token + of_head;
  return request * stride_batch + of_head;
}
