// check/pages.cuh -- looks at a launch's arrays on the device, before the launch: context lengths, offsets of query
// tokens, their spans, page numbers, numbers of selected blocks and lengths of a second cache. LEANATTN_DEBUG=1 runs
// it. Host and device compile this file.
#if defined(__CUDACC__)
#define CHECK_PAGES_HD __host__ __device__ __forceinline__
#else
#define CHECK_PAGES_HD inline
#endif

// What the arrays must keep to, beside what LeanDecodeArgs says.
struct LeanArrayLimits {
  int page_size;  // 0: dense
  int q_len;
  int window;  // 0: none
  int sink_tokens;
  int ragged_q, spans;             // not 0: q_offsets are there; so are spans
  int selects, selection_in_pool;  // not 0: query tokens bring lists; of blocks of the pool
  int second_cache;                // not 0: second_lengths are there
  int ranks, context_interleave;   // of a group whose windows count positions of whole contexts; 1: no group
  int packed_kv;                   // not 0: context_lengths says where requests begin in k and v, [batch + 1]
};

// Behind the q_len selected_counts of a request stand its second_lengths, and behind two q_offsets its spans.
enum LeanArray { kLeanContextLengths = 0, kLeanQueryOffsets = 1, kLeanPageTable = 2, kLeanSelectedCounts = 3 };

constexpr unsigned long long kLeanNoOffender = ~0ull;

// A wrong entry as a number that orders by request, then array, then index, in 31, 2 and 31 bits. The least is the
// first.
CHECK_PAGES_HD unsigned long long lean_offender(int request, LeanArray array, int index) {
  return (unsigned long long)request << 33 | (unsigned long long)array << 31 | (unsigned long long)index;
}

// How many of a request's tokens lie at positions of the whole context before `position`, of which this rank may have a
// part, if there are enough.
CHECK_PAGES_HD long long lean_tokens_before(const LeanDecodeArgs& args, const LeanArrayLimits& limits, int request,
                                            long long position) {
  if (limits.ranks <= 1) return position;
  const long long unit = limits.context_interleave, round = unit * limits.ranks,
                  place = position - (unit > 0 ? args.context_rank * unit : args.context_starts[request]);
  if (place <= 0) return 0;
  return unit == 0 ? place : place / round * unit + (place % round < unit ? place % round : unit);
}

// The first wrong entry of a request that thread `first` of `step` threads finds.
CHECK_PAGES_HD unsigned long long lean_find_offender(const LeanDecodeArgs& args, const LeanArrayLimits& limits,
                                                     int request, int first, int step) {
  if (limits.selects != 0) {
    for (int query = first; query < limits.q_len; query += step) {
      const int count = args.selected_counts[(long long)request * limits.q_len + query];
      if (count < 0 || count > args.selection_capacity) return lean_offender(request, kLeanSelectedCounts, query);
      if (limits.second_cache == 0) continue;
      const int length = args.second_lengths[(long long)request * limits.q_len + query];
      if (length < 0 || length > args.second_capacity)
        return lean_offender(request, kLeanSelectedCounts, limits.q_len + query);
    }
    if (limits.selection_in_pool != 0) return kLeanNoOffender;
  }
  int length = args.context_lengths[request];
  if (length < 0 || length > args.context_capacity) return lean_offender(request, kLeanContextLengths, 0);
  if (limits.packed_kv != 0) {
    const int begin = length, end = args.context_lengths[request + 1];
    if (end < begin || end > args.context_capacity) return lean_offender(request, kLeanContextLengths, 0);
    length = end - begin;
  }
  long long query_tokens = limits.q_len;
  if (limits.ragged_q) {
    const int start = args.q_offsets[request];
    query_tokens = (long long)args.q_offsets[request + 1] - start;
    if (start < 0) return lean_offender(request, kLeanQueryOffsets, 0);
    if (query_tokens < 0 || query_tokens > limits.q_len || start + query_tokens > args.query_tokens)
      return lean_offender(request, kLeanQueryOffsets, 1);
  }
  for (int query = first; limits.spans != 0 && query < query_tokens; query += step) {
    const LeanSpan* const at = args.spans + args.q_offsets[request] + query;
    const long long position = length - query_tokens + query;
    const bool none = at->first == 0 && at->end == 0;
    bool wrong = !none && (at->first < 0 || at->first > position || at->end <= position);
    // Where one span holds this query token and the one before, it is that of both, of which this one may see less.
    if (query > 0 && (at[-1].end > position || (!none && at->first < position)))
      wrong |= at[-1].first > at->first || at[-1].end != at->end;
    if (wrong) return lean_offender(request, kLeanQueryOffsets, 2 + query);
  }
  // What nobody selects may have no page.
  if (limits.page_size == 0 || limits.selects != 0) return kLeanNoOffender;
  // Pages that hold no sink token and nothing of the first query token's window are not used.
  long long seen_from = 0, sinks = 0;
  if (limits.window != 0) {
    const long long whole = limits.ranks > 1 ? args.full_lengths[request] : length;
    seen_from = lean_tokens_before(args, limits, request, whole - query_tokens - limits.window + 1);
    sinks = lean_tokens_before(args, limits, request, limits.sink_tokens);
    if (limits.spans != 0 && query_tokens > 0) {
      const LeanSpan span = args.spans[args.q_offsets[request]];
      if (span.end > 0 && span.first < seen_from) seen_from = span.first;
    }
  }
  const int pages = length == 0 ? 0 : (length - 1) / limits.page_size + 1;
  for (int page = first; page < pages; page += step) {
    const long long start = (long long)page * limits.page_size;
    if (start >= sinks && start + limits.page_size <= seen_from) continue;
    const int id = args.page_table[request * args.page_table_stride + page];
    if (id < 0 || id >= args.pool_pages) return lean_offender(request, kLeanPageTable, page);
  }
  return kLeanNoOffender;
}

#if defined(__CUDACC__)
// A CTA takes a request. The caller sets `offender` to all ones before.
extern "C" __global__ void __launch_bounds__(256)
    lean_check_arrays(LeanDecodeArgs args, LeanArrayLimits limits, unsigned long long* offender) {
  const unsigned long long found = lean_find_offender(args, limits, (int)blockIdx.x, (int)threadIdx.x, (int)blockDim.x);
  if (found != kLeanNoOffender) atomicMin(offender, found);
}
#endif
