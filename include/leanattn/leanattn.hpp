// leanattn.hpp -- the C ABI for C++17: Engine, Plan, DecodeArgs. Header only. As in leanattn.h, any thread may call any
// function, except that an Engine must be destroyed last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "leanattn/error.hpp"
#include "leanattn/leanattn.h"

namespace leanattn {
inline namespace v1 {

/// Element type of q and o, and of k and v unless kv_format says otherwise.
enum class DataType : std::int32_t { bf16 = LEANATTN_BF16, fp16 = LEANATTN_FP16 };

/// How the KV cache lies in memory. contiguous: [batch, kv_heads, context, head_dim], so that the tokens of a KV head
/// are adjacent. strided: any token stride, such as [batch, context, kv_heads, head_dim].
enum class CacheLayout : std::int32_t { contiguous = LEANATTN_KV_CONTIGUOUS, strided = LEANATTN_KV_STRIDED };

/// Which of a request's query tokens each of them sees, where there are several: itself and those before it (causal),
/// those that its word of tree_mask names (tree), or all (full).
enum class AttentionMask : std::int32_t {
  causal = LEANATTN_MASK_CAUSAL,
  tree = LEANATTN_MASK_TREE,
  full = LEANATTN_MASK_FULL
};

/// Element type of the cache: that of q, one byte, or four bits. leanattn_kv_format has the layouts.
enum class CacheFormat : std::int32_t {
  same = LEANATTN_KV_SAME,
  fp8_e4m3 = LEANATTN_KV_FP8_E4M3,
  fp8_e5m2 = LEANATTN_KV_FP8_E5M2,
  int8 = LEANATTN_KV_INT8,
  fp8_ds_mla = LEANATTN_KV_FP8_DS_MLA,
  int4 = LEANATTN_KV_INT4,
  nvfp4 = LEANATTN_KV_NVFP4,
  fp8_ds_v4 = LEANATTN_KV_FP8_DS_V4
};

/// What has a scale of its own in a cache of one-byte or four-bit elements; leanattn_kv_scale has the shapes.
enum class CacheScale : std::int32_t {
  tensor = LEANATTN_SCALE_TENSOR,
  head = LEANATTN_SCALE_HEAD,
  token = LEANATTN_SCALE_TOKEN,
  in_row = LEANATTN_SCALE_IN_ROW
};

/// Rotary position embedding of q and of appended keys: which dims are rotated together. half_split: dim i with dim
/// i + rope_dim / 2. interleaved: dim 2 i with dim 2 i + 1.
enum class RopePairing : std::int32_t {
  none = LEANATTN_ROPE_NONE,
  half_split = LEANATTN_ROPE_HALF_SPLIT,
  interleaved = LEANATTN_ROPE_INTERLEAVED
};

/// What never changes in a model.
struct Problem {
  int q_heads = 32;                              ///< query heads
  int kv_heads = 8;                              ///< divides q_heads; at most 128 query heads share a KV head
  int head_dim = 128;                            ///< columns of q and k; a multiple of 16 up to 512 (latent: 640)
  DataType dtype = DataType::bf16;               ///< of q and o
  CacheLayout layout = CacheLayout::contiguous;  ///< of k and v
  bool lse = false;                              ///< launches also write the log-sum-exp of every query row
  bool pdl = false;  ///< launches may overlap the kernel before them (sm_90+); leanattn_plan_launch has the contract

  // Features, beside plain dense decode. docs/features.md has their limits.
  int page_size = 0;      ///< tokens per page of a paged cache; 0: dense
  int q_len = 1;          ///< most query tokens of a request, which end its context; 1 to 16 (mask full: 1024;
                          ///< ragged_q: 131072, and any above 16 is the same problem)
  bool ragged_q = false;  ///< each request has its own number of query tokens, by q_offsets
  AttentionMask query_mask =
      AttentionMask::causal;  ///< makes no difference for one query token, with which tree is refused
  /// k and v are no cache: the rows of all requests follow each other, and kv_offsets says where those of each begin.
  bool packed_kv = false;
  /// With ragged_q and the causal mask: query tokens lie in spans of tokens that see each other both ways (images).
  bool spans = false;
  int window = 0;            ///< tokens that a query token sees, itself the last; mask full: both ways
  int sink_tokens = 0;       ///< first tokens of a context that stay visible beside the window
  bool sink_logits = false;  ///< each query head has a logit that counts in the denominator of its softmax
  bool alibi = false;        ///< alibi_slopes[head] * (kv index - q index) is added to scores
  double soft_cap = 0;       ///< scores become cap * tanh(score / cap); 0: unchanged
  std::string score{};       ///< an expression of score, q_index, kv_index, head that replaces scores; empty: none
  CacheFormat kv_format = CacheFormat::same;  ///< of the cache's elements; same: dtype
  CacheScale kv_scale = CacheScale::tensor;   ///< what has a scale of its own; tensor: int4 has in_row
  int v_head_dim = 0;                         ///< columns of v and o; 0: head_dim
  bool batch_invariant = false;               ///< a request's bits depend on neither other requests nor the grid
  bool append = false;                        ///< the kernel writes k_new and v_new into the cache before it reads it
  RopePairing rope = RopePairing::none;       ///< which dims of q and k_new are rotated together
  int rope_dim = 0;     ///< the first dims of a head (latent: behind the columns of v), which are rotated; 0: all
  bool latent = false;  ///< v is the first v_head_dim columns of k, so that there is no v (multi-head latent attention)
  /// Tokens of the blocks of which each query token brings a list: 1, 16, 32, 64 or 128; 0: it sees its whole context.
  int selection_block = 0;
  bool selection_in_pool = false;  ///< lists count blocks from the start of the pool, not of the request's context
  /// With a selection, query tokens also see the first tokens of a second cache, which is read whole.
  bool second_cache = false;
  int context_parallel = 1;       ///< ranks that hold a part of every context each, 2 to 8; 1: one has all of it
  int context_interleave = 0;     ///< ranks hold units of so many tokens in turn; 0: contiguous parts
  bool replicate_output = false;  ///< every rank writes o of all query heads, instead of its share of them
};

/// What the caller knows or guesses about a decode step. It decides how fast a launch is, never whether it is right.
struct PlanShape {
  int batch = 1;                        ///< requests of a typical step
  int max_batch = 0;                    ///< the most requests of any step; 0: batch
  std::int64_t longest_context = 1024;  ///< tokens of the longest request
  std::int64_t total_context = 0;       ///< tokens of all requests; 0: batch * longest_context
  // The mix of a step with prefill, as in leanattn_shape.
  std::int64_t query_tokens = 0;   ///< of all requests, or that a launch has room for; 0: not known, or one each
  int chunks = 0;                  ///< requests with several query tokens; 0: the fewest that can have so many
  std::int64_t chunk_context = 0;  ///< tokens of the chunks' contexts; 0: longest_context each
  std::int64_t chunk_pairs = 0;    ///< of a chunk's query token and a token up to itself; 0: of equal chunks
};

/// What plan() does when the kernel of its answer is not loaded yet: compile it first, or answer with a stand-in and
/// build it in the background. See leanattn_engine_plan_with.
enum class WhenMissing : std::int32_t {
  compile = LEANATTN_WHEN_MISSING_COMPILE,
  fallback = LEANATTN_WHEN_MISSING_FALLBACK
};

/// The stride of a dimension whose entries are all the same memory; see LEANATTN_STRIDE_EXPANDED.
inline constexpr std::int64_t kStrideExpanded = LEANATTN_STRIDE_EXPANDED;

/// The arguments of one decode step; see leanattn_decode_args. Pointers are device pointers, and the memory stays the
/// caller's. Strides count elements, 0 is the dense stride, and kStrideExpanded a stride of 0 of what is only read.
/// With ragged_q, [batch, q_len, ...] becomes [query tokens, ...].
struct DecodeArgs {
  const void* q = nullptr;  ///< [batch, q_len, q_heads, head_dim]
  const void* k = nullptr;  ///< [batch, kv_heads, context_capacity, head_dim] by its strides;
                            ///< paged: [pool_pages, kv_heads, page_size, head_dim]
  const void* v = nullptr;  ///< likewise, v_head_dim wide; latent: null, as are v_scale and v_new
  void* o = nullptr;        ///< [batch, q_len, q_heads, v_head_dim]
  float* lse = nullptr;     ///< [batch, q_len, q_heads], natural logarithm; null unless the problem has lse
  const std::int32_t* context_lengths = nullptr;  ///< [batch], in tokens, clamped to [0, context_capacity]
  int batch = 1;                                  ///< requests of this step, at most the plan's max_batch; 0: nothing
                                                  ///< is enqueued, and pointers may be null
  int context_capacity = 0;                       ///< tokens for which k and v have room in each request; paged: 0
  float scale = 0;  ///< of the softmax, positive; 0: 1 / sqrt(head_dim), but not if latent
  /// Elements from one entry to the next; 0: dense.
  /// @{
  std::int64_t q_stride_batch = 0, q_stride_head = 0;
  std::int64_t k_stride_batch = 0, k_stride_head = 0, k_stride_token = 0;
  std::int64_t v_stride_batch = 0, v_stride_head = 0, v_stride_token = 0;
  std::int64_t o_stride_batch = 0, o_stride_head = 0;
  /// @}

  // The arguments of the problem's features, each of which is named first. Those of other features stay 0.
  const std::int32_t* page_table = nullptr;  ///< page_size: [batch, max_pages], numbers of pages in k and v; the tokens
                                             ///< of any other number, such as -1, are ignored as if masked
  const std::int32_t* q_offsets = nullptr;   ///< ragged_q: [batch + 1], where the query tokens of a request start
  const std::uint32_t* tree_mask = nullptr;  ///< tree: [query tokens]; bit j: it sees the request's query token j
  const float* alibi_slopes = nullptr;       ///< alibi: [q_heads]
  const float* sink_logits = nullptr;        ///< sink_logits: [q_heads]
  const float* k_scale = nullptr;  ///< one-byte kv_format: element * scale is the key; null: all 1; int4: with zero
                                   ///< points; append: those of new tokens are written where each token has its own
  const float* v_scale = nullptr;  ///< likewise of the value
  /// q_len > 1: elements between the query tokens of a request; 0: dense.
  /// @{
  std::int64_t q_stride_token = 0, o_stride_token = 0;
  /// @}
  std::int64_t page_table_stride = 0;  ///< entries between the rows of two requests; 0: max_pages
  /// kv_scale token, in_row: elements from one entry of k_scale and v_scale to the next; nvfp4: bytes from one row of
  /// k_block_scales and v_block_scales to the next; 0: dense.
  /// @{
  std::int64_t kv_scale_stride_batch = 0, kv_scale_stride_head = 0, kv_scale_stride_token = 0;
  /// @}
  std::int64_t pool_pages = 0;        ///< page_size: pages that k and v hold
  int max_pages = 0;                  ///< page_size: entries of page_table for each request
  int query_tokens = 0;               ///< ragged_q: tokens for which q and o have room; 0: batch * q_len
  const void* k_new = nullptr;        ///< append: [batch, q_len, kv_heads, head_dim]
  const void* v_new = nullptr;        ///< likewise, v_head_dim wide
  const float* rope_table = nullptr;  ///< rope: [positions, rope_dim], each rope_dim / 2 cosines, then as many sines
  /// Elements from one entry of k_new and v_new to the next; 0: dense.
  /// @{
  std::int64_t k_new_stride_batch = 0, k_new_stride_token = 0, k_new_stride_head = 0;
  std::int64_t v_new_stride_batch = 0, v_new_stride_token = 0, v_new_stride_head = 0;
  /// @}

  /// selection_block: [batch, q_len, selection_heads, selection_capacity], the blocks that each query token sees; a
  /// number that is no block, such as -1, is a hole. See leanattn_decode_args.
  const std::int32_t* selection = nullptr;
  const std::int32_t* selected_counts = nullptr;  ///< selection_block: [batch, q_len], entries that count
  /// Elements from one list to the next; 0: dense.
  /// @{
  std::int64_t selection_stride_batch = 0, selection_stride_token = 0, selection_stride_head = 0;
  /// @}
  int selection_capacity = 0;  ///< selection_block: entries of a list, holes included
  int selection_heads = 0;     ///< lists of a query token: kv_heads (0: the same), or 1 that all KV heads share

  /// context_parallel: [batch], tokens of the whole contexts; needed where something depends on positions.
  const std::int32_t* full_context_lengths = nullptr;
  /// The same, of contiguous parts only: [batch], where in the whole context the tokens of this rank begin.
  const std::int32_t* context_starts = nullptr;

  const void* second_k = nullptr;  ///< second_cache: pages as those of k, of the same page_size and strides
  const void* second_v = nullptr;  ///< likewise of v; null if latent
  const std::int32_t* second_page_table = nullptr;  ///< second_cache: [batch, second_max_pages]
  const std::int32_t* second_lengths = nullptr;     ///< second_cache: [batch, q_len], first tokens that each sees
  std::int64_t second_page_table_stride = 0;        ///< entries from one request's row to the next; 0: dense
  std::int64_t second_pool_pages = 0;               ///< second_cache: pages that second_k and second_v hold
  int second_max_pages = 0;                         ///< second_cache: entries of second_page_table for each request

  /// spans: [query tokens, 2], the indices in the context of the first token of each query token's span, and of the one
  /// behind the last; both 0: it is in none. See leanattn_decode_args.
  const std::int32_t* spans = nullptr;

  /// packed_kv: [batch + 1], where the rows of each request begin in k and v, of which context_capacity counts all.
  /// context_lengths is null.
  const std::int32_t* kv_offsets = nullptr;

  const void* k_block_scales = nullptr;  ///< nvfp4: fp8 e4m3, of 16 columns each: [batch, kv_heads, context,
                                         ///< head_dim / 16], or of pages; append: those of new tokens are written
  const void* v_block_scales = nullptr;  ///< likewise of V
};

/// The limits of a tuning; see leanattn_tune_options.
struct TuningOptions {
  double budget_s = 0;            ///< seconds for all shapes together; 0: no limit but shape_budget_s
  double shape_budget_s = 0;      ///< seconds for each shape, on average; 0: 5, or what budget_s allows
  std::int64_t memory_bytes = 0;  ///< most device memory for K and V of test data; 0: 80 % of what is free
  bool retune = false;            ///< also tunes shapes that have an exact answer which is not stale
  std::string program{};          ///< file of the leanattn program; empty: it is looked for
  /// Called several times a second on the thread that waits. False stops the tuning. It must not throw.
  std::function<bool(const leanattn_tune_progress&)> progress{};
};

/// When a shape is tuned whose look-up has no exact answer: never by itself, from its first plan on in the background,
/// or in its first plan, which waits. See leanattn_engine_autotune.
enum class AutotuneMode : std::int32_t {
  off = LEANATTN_AUTOTUNE_OFF,
  background = LEANATTN_AUTOTUNE_BACKGROUND,
  wait = LEANATTN_AUTOTUNE_WAIT
};

/// Which GPU an engine is for, and where its databases are.
struct EngineOptions {
  int device = 0;          ///< CUDA ordinal
  std::string cache_dir;   ///< empty: LEANATTN_CACHE_DIR, else $XDG_CACHE_HOME/leanattn, else ~/.cache/leanattn
  bool disk_cache = true;  ///< false: compiled kernels stay in memory, and the user's tuning.db is not read
  AutotuneMode tune_on_first_use = AutotuneMode::off;  ///< see Engine::autotune
  TuningOptions tuning{};                              ///< the limits of tune_on_first_use, which needs budget_s
};

namespace detail {

/// The last error of this thread, after a call that returned `status`.
inline Error last_error(leanattn_status status) {
  return {static_cast<ErrorCode>(status), leanattn_last_error_message(), leanattn_last_error_hint(),
          leanattn_last_error_log()};
}
inline Result<void> to_result(leanattn_status status) {
  if (status == LEANATTN_OK) return {};
  return tl::unexpected<Error>(last_error(status));
}

/// The C interface would take what is in front of a zero byte. Errors: invalid_argument.
inline Result<void> check_text(const char* name, const std::string& text) {
  if (text.find('\0') == std::string::npos) return {};
  return tl::unexpected<Error>(
      Error{ErrorCode::invalid_argument, std::string(name) + " has a zero byte in it", {}, {}});
}

/// The result points to the score expression of `problem`, so it is valid as long as that.
inline leanattn_problem to_c(const Problem& problem) {
  leanattn_problem out;
  leanattn_problem_init(&out);
  out.q_heads = problem.q_heads;
  out.kv_heads = problem.kv_heads;
  out.head_dim = problem.head_dim;
  out.dtype = static_cast<std::int32_t>(problem.dtype);
  out.kv_layout = static_cast<std::int32_t>(problem.layout);
  out.lse = problem.lse;
  out.pdl = problem.pdl;
  out.page_size = problem.page_size;
  out.q_len = problem.q_len;
  out.ragged_q = problem.ragged_q;
  out.query_mask = static_cast<std::int32_t>(problem.query_mask);
  out.spans = problem.spans;
  out.packed_kv = problem.packed_kv;
  out.window = problem.window;
  out.sink_tokens = problem.sink_tokens;
  out.sink_logits = problem.sink_logits;
  out.alibi = problem.alibi;
  out.soft_cap = problem.soft_cap;
  out.score = problem.score.empty() ? nullptr : problem.score.c_str();
  out.kv_format = static_cast<std::int32_t>(problem.kv_format);
  out.kv_scale = static_cast<std::int32_t>(problem.kv_scale);
  out.v_head_dim = problem.v_head_dim;
  out.batch_invariant = problem.batch_invariant;
  out.append = problem.append;
  out.rope = static_cast<std::int32_t>(problem.rope);
  out.rope_dim = problem.rope_dim;
  out.latent = problem.latent;
  out.selection_block = problem.selection_block;
  out.selection_in_pool = problem.selection_in_pool;
  out.second_cache = problem.second_cache;
  out.context_parallel = problem.context_parallel;
  out.context_interleave = problem.context_interleave;
  out.replicate_output = problem.replicate_output;
  return out;
}

inline leanattn_shape to_c(const PlanShape& shape) {
  leanattn_shape out;
  leanattn_shape_init(&out);
  out.batch = shape.batch;
  out.max_batch = shape.max_batch;
  out.longest_context = shape.longest_context;
  out.total_context = shape.total_context;
  out.query_tokens = shape.query_tokens, out.chunks = shape.chunks;
  out.chunk_context = shape.chunk_context, out.chunk_pairs = shape.chunk_pairs;
  return out;
}

/// The result points to `options`, so it is valid as long as that.
inline leanattn_tune_options to_c(const TuningOptions& options) {
  leanattn_tune_options out;
  leanattn_tune_options_init(&out);
  out.budget_s = options.budget_s;
  out.shape_budget_s = options.shape_budget_s;
  out.memory_bytes = options.memory_bytes;
  out.retune = options.retune;
  out.program = options.program.empty() ? nullptr : options.program.c_str();
  if (options.progress) {
    out.progress = [](const leanattn_tune_progress* progress, void* context) -> std::int32_t {
      return static_cast<const TuningOptions*>(context)->progress(*progress) ? 0 : 1;
    };
    out.progress_context = const_cast<TuningOptions*>(&options);
  }
  return out;
}

inline leanattn_decode_args to_c(const DecodeArgs& args) {
  leanattn_decode_args out;
  leanattn_decode_args_init(&out);
  out.q = args.q;
  out.k = args.k;
  out.v = args.v;
  out.o = args.o;
  out.lse = args.lse;
  out.context_lengths = args.context_lengths;
  out.q_stride_batch = args.q_stride_batch;
  out.q_stride_head = args.q_stride_head;
  out.k_stride_batch = args.k_stride_batch;
  out.k_stride_head = args.k_stride_head;
  out.k_stride_token = args.k_stride_token;
  out.v_stride_batch = args.v_stride_batch;
  out.v_stride_head = args.v_stride_head;
  out.v_stride_token = args.v_stride_token;
  out.o_stride_batch = args.o_stride_batch;
  out.o_stride_head = args.o_stride_head;
  out.batch = args.batch;
  out.context_capacity = args.context_capacity;
  out.scale = args.scale;
  out.page_table = args.page_table;
  out.q_offsets = args.q_offsets;
  out.tree_mask = args.tree_mask;
  out.alibi_slopes = args.alibi_slopes;
  out.sink_logits = args.sink_logits;
  out.k_scale = args.k_scale;
  out.v_scale = args.v_scale;
  out.q_stride_token = args.q_stride_token;
  out.o_stride_token = args.o_stride_token;
  out.page_table_stride = args.page_table_stride;
  out.kv_scale_stride_batch = args.kv_scale_stride_batch;
  out.kv_scale_stride_head = args.kv_scale_stride_head;
  out.kv_scale_stride_token = args.kv_scale_stride_token;
  out.pool_pages = args.pool_pages;
  out.max_pages = args.max_pages;
  out.query_tokens = args.query_tokens;
  out.k_new = args.k_new;
  out.v_new = args.v_new;
  out.rope_table = args.rope_table;
  out.k_new_stride_batch = args.k_new_stride_batch;
  out.k_new_stride_token = args.k_new_stride_token;
  out.k_new_stride_head = args.k_new_stride_head;
  out.v_new_stride_batch = args.v_new_stride_batch;
  out.v_new_stride_token = args.v_new_stride_token;
  out.v_new_stride_head = args.v_new_stride_head;
  out.selection = args.selection;
  out.selected_counts = args.selected_counts;
  out.selection_stride_batch = args.selection_stride_batch;
  out.selection_stride_token = args.selection_stride_token;
  out.selection_stride_head = args.selection_stride_head;
  out.selection_capacity = args.selection_capacity;
  out.selection_heads = args.selection_heads;
  out.full_context_lengths = args.full_context_lengths;
  out.context_starts = args.context_starts;
  out.second_k = args.second_k;
  out.second_v = args.second_v;
  out.second_page_table = args.second_page_table;
  out.second_lengths = args.second_lengths;
  out.second_page_table_stride = args.second_page_table_stride;
  out.second_pool_pages = args.second_pool_pages;
  out.second_max_pages = args.second_max_pages;
  out.spans = args.spans;
  out.kv_offsets = args.kv_offsets;
  out.k_block_scales = args.k_block_scales;
  out.v_block_scales = args.v_block_scales;
  return out;
}

}  // namespace detail

/// The shape of a step whose requests are known on the host: [batch] tokens of each context, and query tokens of each
/// request (empty: one each). See leanattn_shape_of_requests. Errors: invalid_argument.
inline Result<PlanShape> shape_of_requests(const std::vector<std::int32_t>& context_lengths,
                                           const std::vector<std::int32_t>& query_tokens = {}) {
  if (!query_tokens.empty() && query_tokens.size() != context_lengths.size())
    return tl::unexpected<Error>(Error{ErrorCode::invalid_argument,
                                       "query_tokens has another size than context_lengths",
                                       "Give one number for each request.",
                                       {}});
  leanattn_shape shape;
  leanattn_shape_init(&shape);
  const leanattn_status status =
      leanattn_shape_of_requests(context_lengths.data(), query_tokens.empty() ? nullptr : query_tokens.data(),
                                 static_cast<std::int32_t>(context_lengths.size()), &shape);
  if (status != LEANATTN_OK) return tl::unexpected<Error>(detail::last_error(status));
  PlanShape made;
  made.batch = shape.batch;
  made.longest_context = shape.longest_context;
  made.total_context = shape.total_context;
  made.query_tokens = shape.query_tokens;
  made.chunks = shape.chunks;
  made.chunk_context = shape.chunk_context;
  made.chunk_pairs = shape.chunk_pairs;
  return made;
}

/// What to launch for a problem and a shape. A Plan is a pointer into its Engine: it is cheap to copy and valid as long
/// as the Engine. Any thread may use it.
class Plan {
 public:
  /// The bytes that a workspace for this plan must have at least: device memory, aligned to 256 bytes.
  std::int64_t workspace_bytes() const { return leanattn_plan_workspace_bytes(plan_); }

  /// Turns device memory of the caller's into a workspace by zeroing it, in stream order. This is needed once, and
  /// again after a fault on it (Engine::check), which it acknowledges. Errors: invalid_argument, workspace_corrupt
  /// (after a fault, while the stream is being captured), launch_failed, context_lost.
  Result<void> init_workspace(void* workspace, std::int64_t bytes, leanattn_stream stream) const {
    return detail::to_result(leanattn_plan_init_workspace(plan_, workspace, bytes, stream));
  }
  /// Makes a workspace usable again after a launch that did not end, or that ended with a fault. Errors: those of
  /// init_workspace.
  Result<void> reset_workspace(void* workspace, std::int64_t bytes, leanattn_stream stream) const {
    return detail::to_result(leanattn_plan_reset_workspace(plan_, workspace, bytes, stream));
  }

  /// Enqueues one decode step and returns; see leanattn_plan_launch. A workspace serves one launch at a time. Errors:
  /// invalid_argument, workspace_corrupt and group_broken (an earlier launch ended with a fault, see Engine::check),
  /// not_prepared, launch_failed, context_lost.
  Result<void> launch(const DecodeArgs& args, void* workspace, leanattn_stream stream) const {
    const leanattn_decode_args c_args = detail::to_c(args);
    return detail::to_result(leanattn_plan_launch(plan_, &c_args, workspace, stream));
  }

  /// The plan's kernel and grid, and where its configuration came from. The texts are valid as long as the Engine.
  leanattn_plan_info info() const {
    leanattn_plan_info info;
    leanattn_plan_info_init(&info);
    leanattn_plan_get_info(plan_, &info);  // cannot fail, because plan and struct_size are valid
    return info;
  }

  /// For calls of the C interface. The engine owns it.
  const leanattn_plan* get() const { return plan_; }

 private:
  friend class Engine;
  explicit Plan(const leanattn_plan* plan) : plan_(plan) {}
  const leanattn_plan* plan_;
};

class Engine;

/// How the ranks of a group bring their results together: inside the decode kernel, by the memory of GPUs that reach
/// each other; by NCCL; or by the first of these that works.
enum class GroupTransport { automatic, peers, nccl };

/// One rank's membership of a group, whose ranks hold a part of every context each (docs/groups.md). Move-only. Destroy
/// it before its Engine, after the last launch of every rank has ended.
class Group {
 public:
  /// What the other ranks need to know of a rank. Plain bytes, to be sent by any means.
  using Blob = std::array<unsigned char, LEANATTN_GROUP_BLOB_BYTES>;
  /// NCCL's unique id. Plain bytes, to be sent by any means.
  using NcclId = std::array<unsigned char, LEANATTN_NCCL_ID_BYTES>;

  /// The bytes that a group needs for launches of this problem; see leanattn_group_bytes, which also has the errors.
  static Result<std::int64_t> bytes(const Problem& problem, int max_batch) {
    const leanattn_problem c_problem = detail::to_c(problem);
    std::int64_t bytes = 0;
    const leanattn_status status = leanattn_group_bytes(&c_problem, max_batch, &bytes);
    if (status != LEANATTN_OK) return tl::unexpected<Error>(detail::last_error(status));
    return bytes;
  }

  /// A rank of `size`, on the GPU of `engine`, with `memory_bytes` for what the others send. `peers` of the ranks merge
  /// inside the kernel: 0 stands for all, and 1 for none. `memory` is device memory of the caller's for what peers
  /// send, which outlives the group; null: the group allocates it. See leanattn_group_create, which also has the
  /// errors.
  static Result<Group> create(const Engine& engine, int rank, int size, std::int64_t memory_bytes, int peers = 0,
                              void* memory = nullptr);

  /// One group of several engines of this process, connected, in the order of their ranks. Several engines may be of
  /// one GPU, but not over NCCL. `automatic` takes NCCL where a GPU does not reach the memory of another one. Errors:
  /// those of create, connect and connect_nccl.
  static Result<std::vector<Group>> of_engines(const std::vector<const Engine*>& engines, std::int64_t memory_bytes,
                                               GroupTransport transport = GroupTransport::automatic) {
    std::string no_peers;
    if (transport != GroupTransport::nccl) {
      auto groups = of_peers(engines, memory_bytes);
      if (groups || transport == GroupTransport::peers || groups.error().code != ErrorCode::unsupported) return groups;
      no_peers = groups.error().message;
    }
    auto groups = create_all(engines, memory_bytes, 1);
    if (!groups) return groups;
    auto id = nccl_id();
    if (!id) {
      if (!no_peers.empty()) id.error().message += ", and not all ranks can be peers: " + no_peers;
      return tl::unexpected<Error>(id.error());
    }
    for (Group& group : *groups) {
      if (auto ok = group.connect_nccl(*id); !ok) return tl::unexpected<Error>(ok.error());
    }
    return groups;
  }

  /// A new unique id of NCCL. See leanattn_nccl_unique_id, which also has the errors.
  static Result<NcclId> nccl_id() {
    NcclId id{};
    if (auto ok = detail::to_result(leanattn_nccl_unique_id(id.data())); !ok) return tl::unexpected<Error>(ok.error());
    return id;
  }

  /// What this rank is to the others. See leanattn_group_export, which also has the errors.
  Result<Blob> export_blob() const {
    Blob blob{};
    if (auto ok = detail::to_result(leanattn_group_export(group_.get(), blob.data())); !ok)
      return tl::unexpected<Error>(ok.error());
    return blob;
  }
  /// Maps the memory of the peers (of all ranks, unless create() was told otherwise), given their blobs in the order of
  /// their ranks. See leanattn_group_connect, which also has the errors.
  Result<void> connect(const std::vector<Blob>& blobs) {
    if (auto ok = check_count(blobs.size(), "blobs"); !ok) return ok;
    return detail::to_result(leanattn_group_connect(group_.get(), blobs.data()));
  }
  /// The same where the caller has mapped the memory that all peers were given: memory[p] is where this rank's GPU
  /// reaches that of peer p. See leanattn_group_connect_mapped, which also has the errors.
  Result<void> connect(const std::vector<Blob>& blobs, const std::vector<void*>& memory) {
    if (auto ok = check_count(blobs.size(), "blobs"); !ok) return ok;
    if (auto ok = check_count(memory.size(), "addresses"); !ok) return ok;
    return detail::to_result(leanattn_group_connect_mapped(group_.get(), blobs.data(), memory.data()));
  }
  /// Connects ranks that are no peers, by a communicator that the group makes of NCCL's unique id. See
  /// leanattn_group_connect_nccl, which also has the errors.
  Result<void> connect_nccl(const NcclId& id) {
    leanattn_nccl_options options;
    leanattn_nccl_options_init(&options);
    options.unique_id = id.data();
    return detail::to_result(leanattn_group_connect_nccl(group_.get(), &options));
  }
  /// The same by a communicator of the caller's, which stays the caller's and outlives the group, unless that is
  /// broken.
  Result<void> connect_nccl(leanattn_nccl_comm comm) {
    leanattn_nccl_options options;
    leanattn_nccl_options_init(&options);
    options.comm = comm;
    return detail::to_result(leanattn_group_connect_nccl(group_.get(), &options));
  }
  /// Makes the group usable again after group_broken. All ranks must do so, between two barriers. See
  /// leanattn_group_reset, which also has the errors.
  Result<void> reset(leanattn_stream stream) { return detail::to_result(leanattn_group_reset(group_.get(), stream)); }

  /// For calls of the C interface. This object owns it.
  leanattn_group* get() const { return group_.get(); }

 private:
  struct Destroy {
    void operator()(leanattn_group* group) const { leanattn_group_destroy(group); }
  };
  Group(leanattn_group* group, int size, int peers) : group_(group), size_(size), peers_(peers) {}
  Result<void> check_count(std::size_t count, const char* of_what) const {
    if (count == static_cast<std::size_t>(peers_)) return {};
    return tl::unexpected<Error>(Error{ErrorCode::invalid_argument,
                                       std::to_string(count) + " " + of_what + " for a group of " +
                                           std::to_string(peers_) + (peers_ == size_ ? " ranks" : " peers"),
                                       "Give those of all of them, in the order of their ranks.",
                                       {}});
  }
  static Result<std::vector<Group>> create_all(const std::vector<const Engine*>& engines, std::int64_t memory_bytes,
                                               int peers) {
    std::vector<Group> groups;
    for (const Engine* engine : engines) {
      auto made =
          create(*engine, static_cast<int>(groups.size()), static_cast<int>(engines.size()), memory_bytes, peers);
      if (!made) return tl::unexpected<Error>(made.error());
      groups.push_back(std::move(*made));
    }
    return groups;
  }
  static Result<std::vector<Group>> of_peers(const std::vector<const Engine*>& engines, std::int64_t memory_bytes) {
    auto groups = create_all(engines, memory_bytes, 0);
    if (!groups) return groups;
    std::vector<Blob> blobs;
    for (const Group& group : *groups) {
      auto blob = group.export_blob();
      if (!blob) return tl::unexpected<Error>(blob.error());
      blobs.push_back(*blob);
    }
    for (Group& group : *groups) {
      if (auto ok = group.connect(blobs); !ok) return tl::unexpected<Error>(ok.error());
    }
    return groups;
  }

  std::unique_ptr<leanattn_group, Destroy> group_;
  int size_, peers_;
};

/// The winners for one GPU, and the kernels that are loaded on it. Move-only. Destroy it after the last launch of its
/// plans has ended.
class Engine {
 public:
  /// See leanattn_engine_create. Errors: invalid_argument, no_driver, no_device, driver_too_old, unsupported,
  /// out_of_memory, context_lost.
  static Result<Engine> create(const EngineOptions& options = {}) {
    if (auto ok = detail::check_text("cache_dir", options.cache_dir); !ok) return tl::unexpected<Error>(ok.error());
    leanattn_engine_options c_options;
    leanattn_engine_options_init(&c_options);
    c_options.device = options.device;
    if (!options.disk_cache) c_options.flags |= LEANATTN_ENGINE_NO_DISK_CACHE;
    if (!options.cache_dir.empty()) c_options.cache_dir = options.cache_dir.c_str();
    leanattn_engine* engine = nullptr;
    const leanattn_status status = leanattn_engine_create(&c_options, &engine);
    if (status != LEANATTN_OK) return tl::unexpected<Error>(detail::last_error(status));
    Engine made(engine);
    if (options.tune_on_first_use != AutotuneMode::off) {
      if (auto ok = made.autotune(options.tune_on_first_use, options.tuning); !ok)
        return tl::unexpected<Error>(ok.error());
    }
    return made;
  }

  /// See leanattn_engine_plan_with. `stream` may be null; it is asked whether it is being captured and how many SMs it
  /// has. Errors: invalid_argument, unsupported, nvrtc_missing, compile_failed, kernel_rejected, load_failed,
  /// driver_too_old, out_of_memory, not_prepared, context_lost.
  Result<Plan> plan(const Problem& problem, const PlanShape& shape, leanattn_stream stream = nullptr,
                    WhenMissing when_missing = WhenMissing::compile) const {
    const leanattn_problem c_problem = detail::to_c(problem);
    const leanattn_shape c_shape = detail::to_c(shape);
    leanattn_plan_options options;
    leanattn_plan_options_init(&options);
    options.when_missing = static_cast<std::int32_t>(when_missing);
    const leanattn_plan* plan = nullptr;
    const leanattn_status status =
        leanattn_engine_plan_with(engine_.get(), &c_problem, &c_shape, &options, stream, &plan);
    if (status != LEANATTN_OK) return tl::unexpected<Error>(detail::last_error(status));
    return Plan(plan);
  }

  /// The plan of a problem with context_parallel, on a connected group of this engine. Ranks of one process make all
  /// their plans before they launch any. See leanattn_engine_plan_group, which also has the errors.
  Result<Plan> plan(const Problem& problem, const PlanShape& shape, const Group& group,
                    leanattn_stream stream = nullptr) const {
    const leanattn_problem c_problem = detail::to_c(problem);
    const leanattn_shape c_shape = detail::to_c(shape);
    const leanattn_plan* plan = nullptr;
    const leanattn_status status =
        leanattn_engine_plan_group(engine_.get(), &c_problem, &c_shape, group.get(), stream, &plan);
    if (status != LEANATTN_OK) return tl::unexpected<Error>(detail::last_error(status));
    return Plan(plan);
  }

  /// What plan() would launch, and how good this answer is. Compiles nothing. Errors: invalid_argument, unsupported,
  /// context_lost.
  Result<leanattn_choice> lookup(const Problem& problem, const PlanShape& shape) const {
    const leanattn_problem c_problem = detail::to_c(problem);
    const leanattn_shape c_shape = detail::to_c(shape);
    leanattn_choice choice;
    leanattn_choice_init(&choice);
    const leanattn_status status = leanattn_engine_lookup(engine_.get(), &c_problem, &c_shape, &choice);
    if (status != LEANATTN_OK) return tl::unexpected<Error>(detail::last_error(status));
    return choice;
  }

  /// Enqueues a merge of the results over disjoint pieces of a context into one. See leanattn_engine_merge_partials,
  /// which also has the errors.
  Result<void> merge_partials(const leanattn_merge_args& args, leanattn_stream stream) {
    return detail::to_result(leanattn_engine_merge_partials(engine_.get(), &args, stream));
  }

  /// Finds the fastest kernel and grid for these shapes, stores them, and has plans use them from then on. It runs in a
  /// child process and waits for it. See leanattn_engine_tune, which also has the errors. One result for each shape.
  Result<std::vector<leanattn_tuned_shape>> tune(const Problem& problem, const std::vector<PlanShape>& shapes,
                                                 const TuningOptions& options = {}) const {
    if (auto ok = detail::check_text("program", options.program); !ok) return tl::unexpected<Error>(ok.error());
    const leanattn_problem c_problem = detail::to_c(problem);
    std::vector<leanattn_shape> c_shapes;
    for (const PlanShape& shape : shapes) c_shapes.push_back(detail::to_c(shape));
    std::vector<leanattn_tuned_shape> results(shapes.size());
    for (leanattn_tuned_shape& result : results) leanattn_tuned_shape_init(&result);
    const leanattn_tune_options c_options = detail::to_c(options);
    const leanattn_status status =
        leanattn_engine_tune(engine_.get(), &c_problem, c_shapes.data(), static_cast<std::int32_t>(c_shapes.size()),
                             &c_options, results.data());
    if (status != LEANATTN_OK) return tl::unexpected<Error>(detail::last_error(status));
    return results;
  }

  /// Switches tuning on first use on or off. `options.budget_s` is needed, for all first uses together. See
  /// leanattn_engine_autotune, which also has the errors.
  Result<void> autotune(AutotuneMode mode, const TuningOptions& options = {}) {
    if (auto ok = detail::check_text("program", options.program); !ok) return ok;
    const leanattn_tune_options c_options = detail::to_c(options);
    return detail::to_result(
        leanattn_engine_autotune(engine_.get(), static_cast<leanattn_autotune_mode>(mode), &c_options));
  }

  /// Reads the winners again, after tuning or an import. Plans that were made before stay valid and do not change.
  /// Errors: context_lost.
  Result<void> reload() { return detail::to_result(leanattn_engine_reload(engine_.get())); }

  /// Whether a launch has ended with a fault, because its workspace was not all zero, was used by two launches at a
  /// time or context lengths changed while it ran. Reads one word and does not wait. See leanattn_engine_check. Errors:
  /// workspace_corrupt, group_broken, context_lost.
  Result<void> check() const { return detail::to_result(leanattn_engine_check(engine_.get())); }

  /// Forgets the fault that check() reports, once all launches have ended and every workspace is zero again. See
  /// leanattn_engine_acknowledge. Errors: context_lost.
  Result<void> acknowledge() { return detail::to_result(leanattn_engine_acknowledge(engine_.get())); }

  /// What did not work, such as a cache that cannot be written: one sentence on each line, empty when all is well.
  std::string warnings() const { return leanattn_engine_warnings(engine_.get()); }

  /// For calls of the C interface. This object owns it.
  leanattn_engine* get() const { return engine_.get(); }

 private:
  struct Destroy {
    void operator()(leanattn_engine* engine) const { leanattn_engine_destroy(engine); }
  };
  explicit Engine(leanattn_engine* engine) : engine_(engine) {}
  std::unique_ptr<leanattn_engine, Destroy> engine_;
};

inline Result<Group> Group::create(const Engine& engine, int rank, int size, std::int64_t memory_bytes, int peers,
                                   void* memory) {
  leanattn_group_options options;
  leanattn_group_options_init(&options);
  options.rank = rank;
  options.size = size;
  options.memory_bytes = memory_bytes;
  options.peers = peers;
  options.memory = memory;
  leanattn_group* group = nullptr;
  const leanattn_status status = leanattn_group_create(engine.get(), &options, &group);
  if (status != LEANATTN_OK) return tl::unexpected<Error>(detail::last_error(status));
  return Group(group, size, peers != 0 ? peers : size);
}

}  // namespace v1
}  // namespace leanattn
