// kv/selection.cuh -- what a query token has selected, and where it lies. An entry of its list is a block of
// kSelectionBlock tokens: of the request's context, or of the pool. Runs of kPageRun tokens cross neither blocks nor
// pages. Host and device compile the arithmetic.
//
// What an entry names outside the pool, or behind what the query token may see, is a hole, as an entry below 0 is:
// nobody sees its tokens, as if they were masked, and nothing is read there. The first block that reaches behind the
// last visible token is cut off there.
#if defined(__CUDACC__)
#define LEAN_SELECTION_HD __host__ __device__ __forceinline__
#else
#define LEAN_SELECTION_HD inline
#endif

// A run of a step before the page table is asked: `token` counts the tokens of the context or of the pool, and is below
// 0 in a hole. count: those of the run that count.
struct LeanSelectedRun {
  int token, count;
};

// offset: of the run in its block. tokens: those of the context that the query token may see, or those of the pool.
LEAN_SELECTION_HD LeanSelectedRun lean_selected_run(int entry, int offset, int block, int run, int tokens) {
  if (tokens <= 0 || entry < 0 || entry > (tokens - 1) / block) return {-1, 0};
  const int token = entry * block + offset, left = tokens - token;
  if (left <= 0) return {-1, 0};
  return {token, left < run ? left : run};
}

// Tokens of its context that query token `query` of `queries` may see, which are the last ones of the context.
LEAN_SELECTION_HD int lean_selectable_tokens(int context_length, int queries, int query, bool causal) {
  return causal ? context_length - (queries - 1 - query) : context_length;
}

LEAN_DEVICE bool is_hole(int page, int pool_pages) { return (u32)page >= (u32)pool_pages; }

// The list of a segment's query token and KV head.
LEAN_DEVICE const int* selection_of(const LeanDecodeArgs& args, const Segment& s) {
  return args.selection + s.request / kSelectionQueries * args.selection_stride_batch +
         s.request % kSelectionQueries * args.selection_stride_token + s.kv_head * args.selection_stride_head;
}

// The tokens from which a segment's query token selects. The host sees to it that a pool has fewer than 2^31.
LEAN_DEVICE int selectable_tokens(const LeanDecodeArgs& args, const Segment& s) {
  if constexpr (kSelectionInPool) return args.pool_pages * kPageSize;
  const int context_length = min(max(args.request_lengths[s.request / kSelectionQueries], 0), args.request_capacity);
  return lean_selectable_tokens(context_length, kSelectionQueries, s.request % kSelectionQueries, kSelectionCausal);
}

LEAN_DEVICE const int* pages_of(const LeanDecodeArgs& args, const Segment& s) {
  return args.page_table + s.request / kSelectionQueries * args.page_table_stride;
}

// The run that begins at read index `read`, whose entry is `entry`.
LEAN_DEVICE LeanSelectedRun selected_run(int entry, int read, int tokens) {
  return lean_selected_run(entry, read % kSelectionBlock, kSelectionBlock, kPageRun, tokens);
}

// A place in the second cache is a token of its pool with this bit. The host sees to it that pools have fewer tokens.
constexpr int kOfSecond = 1 << 30;
// A place without it.
LEAN_DEVICE u32 token_of_pool(int place) { return kSecondCache ? (u32)place & ~(u32)kOfSecond : (u32)place; }
// Bytes from the cache to the one in which a place is, where `apart` lead to the second one.
LEAN_DEVICE i64 to_cache(int place, i64 apart) {
  if constexpr (kSecondCache) return (place & kOfSecond) != 0 ? apart : 0;
  return 0;
}
LEAN_DEVICE i64 to_second_k(const LeanDecodeArgs& args) {
  if constexpr (kSecondCache) return (const char*)args.second_k - (const char*)args.k;
  return 0;
}
LEAN_DEVICE i64 to_second_v(const LeanDecodeArgs& args) {
  if constexpr (kSecondCache) return (const char*)args.second_v - (const char*)args.v;
  return 0;
}

// What a query token sees of the second cache, whose blocks follow those of its list: from which read index on, its
// tokens, and the request's pages of it.
struct SecondCache {
  int first, tokens, pool_pages;
  const int* table;

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s) {
    if constexpr (kSecondCache) {
      first = s.selected * kSelectionBlock;
      tokens = second_tokens(args.second_lengths[s.request], args.second_capacity);
      pool_pages = args.second_pool_pages;
      table = args.second_page_table + s.request / kSelectionQueries * args.second_page_table_stride;
    }
  }
  LEAN_DEVICE int entry(int read) const { return (read - first) / kSelectionBlock; }
  // No page of the pool in a hole.
  LEAN_DEVICE int page_of(int token) const { return token < 0 ? -1 : table[token / kPageSize]; }
};

// The page of a token as the tables have it. No page of the pool in a hole.
LEAN_DEVICE int page_of_selected(const int* table, int token) {
  if (token < 0) return -1;
  return kSelectionInPool ? token / kPageSize : table[token / kPageSize];
}

// Where token number `read` of what is selected lies, in tokens of the pool; below 0 in a hole.
LEAN_DEVICE int place_of_selected(const LeanDecodeArgs& args, const Segment& s, int read) {
  const int entry = selection_of(args, s)[read / kSelectionBlock],
            token =
                lean_selected_run(entry, read % kSelectionBlock, kSelectionBlock, 1, selectable_tokens(args, s)).token,
            page = page_of_selected(pages_of(args, s), token);
  return is_hole(page, args.pool_pages) ? -1 : page * kPageSize + token % kPageSize;
}

// What a warp knows of its steps' runs: lane l holds that of run l of the next 32 runs. An entry is requested two such
// reads ahead of its use, and its page one read ahead.
struct SelectedRuns {
  const int* list;
  const int* table;
  int tokens, pool_pages, end;  // what is selected from; read index of the segment's end
  int entry;                    // of the 32 runs after those in `page`
  int page, inner;              // of the next 32 runs: page as the tables have it, and token of the page
  int count;                    // tokens of them that count
  bool holes;                   // whether the segment has had a hole or a cut run
  SecondCache second;

  // at: the read index of this lane's run, of the first 32 runs and of those after them.
  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int at, int next_at) {
    list = selection_of(args, s);
    table = pages_of(args, s);
    tokens = selectable_tokens(args, s), pool_pages = args.pool_pages, end = end_read(s);
    holes = false;
    second.start(args, s);
    entry = entry_at(at);
    look_up(at, next_at);
  }

  LEAN_DEVICE int entry_at(int at) const {
    if constexpr (kSecondCache) {
      if (at >= second.first) return second.entry(at);
    }
    return at < end ? list[at / kSelectionBlock] : 0;
  }

  // Requests the pages of the 32 runs whose entries are there, and the entries of those after them. `at` as in start.
  LEAN_DEVICE void look_up(int at, int next_at) {
    page = inner = 0, count = kPageRun;
    if (at < (kSecondCache ? min(second.first, end) : end)) {
      const LeanSelectedRun run = selected_run(entry, at, tokens);
      page = page_of_selected(table, run.token);
      inner = run.token % kPageSize;
      count = run.count;
    }
    if constexpr (kSecondCache) {
      if (at >= second.first && at < end) {
        const LeanSelectedRun run = selected_run(entry, at, second.tokens);
        page = second.page_of(run.token);
        inner = run.token % kPageSize | kOfSecond;
        count = run.count;
      }
    }
    holes |= __any_sync(kFullMask, count < kPageRun);
    entry = entry_at(next_at);
  }

  // The runs that look_up has found, as places; `of_hole` for a hole.
  LEAN_DEVICE int take(int of_hole) {
    bool hole = is_hole(page, pool_pages);
    if constexpr (kSecondCache) {
      if ((inner & kOfSecond) != 0) hole = is_hole(page, second.pool_pages);
    }
    holes |= __any_sync(kFullMask, hole);
    return hole ? of_hole : page * kPageSize + inner;
  }

  // How many tokens of a run count that the last visible token is in.
  LEAN_DEVICE int left() const { return (int)((u32)tokens % kPageRun); }
};
