/* leanattn.h -- the C ABI (C11): engine -> plan -> launch. Every function may be called from any thread, except that
 * leanattn_engine_destroy must be the last use of an engine. No CUDA headers are needed; nothing throws; nothing
 * prints.
 *
 * Structs carry their size in `struct_size`, so that programs and libraries of different versions work together: zero
 * one and set struct_size = sizeof(the struct), or let leanattn_<struct>_init do both. New fields are only ever
 * appended, and zero always means what happened before the field existed. */
#ifndef LEANATTN_LEANATTN_H_
#define LEANATTN_LEANATTN_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What the shared library exports. */
#define LEANATTN_API __attribute__((visibility("default")))

/* No call throws; C has no word for that. */
#ifdef __cplusplus
#define LEANATTN_NOEXCEPT noexcept
extern "C" {
#else
#define LEANATTN_NOEXCEPT
#endif

/* Of this header; leanattn_version() is the library's. */
#define LEANATTN_VERSION_MAJOR 0
/* See LEANATTN_VERSION_MAJOR. */
#define LEANATTN_VERSION_MINOR 1
/* See LEANATTN_VERSION_MAJOR. */
#define LEANATTN_VERSION_PATCH 0

/* What a call came to. Values are stable; new ones are only ever appended. */
typedef enum leanattn_status {
  LEANATTN_OK = 0,
  LEANATTN_INVALID_ARGUMENT = 1,   /* a value is out of its domain; the message names it */
  LEANATTN_UNSUPPORTED = 2,        /* valid, but this build or device cannot do it */
  LEANATTN_NO_DRIVER = 3,          /* libcuda is missing or refuses to start */
  LEANATTN_NO_DEVICE = 4,          /* no such CUDA device */
  LEANATTN_DRIVER_TOO_OLD = 5,     /* the driver cannot load what NVRTC made */
  LEANATTN_NVRTC_MISSING = 6,      /* libnvrtc is missing or unusable */
  LEANATTN_COMPILE_FAILED = 7,     /* NVRTC rejected the source; leanattn_last_error_log() has its log */
  LEANATTN_KERNEL_REJECTED = 8,    /* compiled, but spills registers or serialises wgmma */
  LEANATTN_LOAD_FAILED = 9,        /* the driver refused the cubin */
  LEANATTN_LAUNCH_FAILED = 10,     /* the driver refused the launch */
  LEANATTN_OUT_OF_MEMORY = 11,     /* device or host memory */
  LEANATTN_CACHE_UNAVAILABLE = 12, /* the cache directory cannot be used */
  LEANATTN_DATABASE_CORRUPT = 13,
  LEANATTN_DATABASE_NEWER = 14,
  LEANATTN_DATABASE_BUSY = 15,
  LEANATTN_NOT_FOUND = 16,
  LEANATTN_NOT_PREPARED = 17, /* a plan that must compile or load was asked for during stream capture */
  LEANATTN_WRONG_RESULT = 18,
  LEANATTN_INTERRUPTED = 19,
  LEANATTN_CONTEXT_LOST = 20, /* the CUDA context is broken; make a new engine, in a new process if that fails too */
  LEANATTN_INTERNAL = 21      /* the library's own mistake */
} leanattn_status;

/* Element type of q, k, v and o. */
typedef enum leanattn_dtype { LEANATTN_BF16 = 0, LEANATTN_FP16 = 1 } leanattn_dtype;

/* How the KV cache lies in memory. */
typedef enum leanattn_kv_layout {
  LEANATTN_KV_CONTIGUOUS = 0, /* consecutive tokens of one KV head are adjacent: [batch, kv_heads, context, head_dim] */
  LEANATTN_KV_STRIDED = 1     /* any token stride, e.g. [batch, context, kv_heads, head_dim] */
} leanattn_kv_layout;

/* What a request's query tokens see of each other, when there are several. */
typedef enum leanattn_query_mask {
  LEANATTN_MASK_CAUSAL = 0, /* each sees those up to itself */
  LEANATTN_MASK_TREE = 1,   /* each sees those that its word of tree_mask says */
  LEANATTN_MASK_FULL = 2    /* each sees all */
} leanattn_query_mask;

/* Element type of k and v: that of q, or one byte. */
typedef enum leanattn_kv_format {
  LEANATTN_KV_SAME = 0,
  LEANATTN_KV_FP8_E4M3 = 1,
  LEANATTN_KV_FP8_E5M2 = 2,
  LEANATTN_KV_INT8 = 3
} leanattn_kv_format;

/* Rotary position embedding: which dims turn together. */
typedef enum leanattn_rope {
  LEANATTN_ROPE_NONE = 0,
  LEANATTN_ROPE_HALF_SPLIT = 1, /* dim i with i + rope_dim / 2 */
  LEANATTN_ROPE_INTERLEAVED = 2 /* dim 2 i with 2 i + 1 */
} leanattn_rope;

/* What has a scale of its own, in a cache of one-byte elements. */
typedef enum leanattn_kv_scale {
  LEANATTN_SCALE_TENSOR = 0, /* k_scale, v_scale: [1] */
  LEANATTN_SCALE_HEAD = 1,   /* [kv_heads] */
  LEANATTN_SCALE_TOKEN = 2 /* [batch, kv_heads, context], or [pages, kv_heads, page_size], through kv_scale_stride_* */
} leanattn_kv_scale;

/* How a configuration was found. From best to worst: exact, bucket, without_pdl, nearest, model, fallback. Values are
 * stable; new ones are only ever appended. */
typedef enum leanattn_provenance {
  LEANATTN_EXACT = 0,      /* measured for this very shape */
  LEANATTN_BUCKET = 1,     /* measured for the same power of two of batch and context */
  LEANATTN_NEAREST = 2,    /* measured for the nearest shape with the same kernel; the grid is re-derived */
  LEANATTN_MODEL = 3,      /* another problem of this GPU is measured; the grid is the schedule model's */
  LEANATTN_FALLBACK = 4,   /* nothing is known: the default that is safe everywhere */
  LEANATTN_WITHOUT_PDL = 5 /* only for a problem with pdl: measured for this shape or its bucket with ordinary launches;
                              dependent launch is switched on, its time is not known */
} leanattn_provenance;

/* One GPU, what was tuned for it, and the kernels loaded on it. */
typedef struct leanattn_engine leanattn_engine;

/* A kernel that is loaded, and the grid to launch it with. */
typedef struct leanattn_plan leanattn_plan;

/* The same type as CUstream and cudaStream_t; null is the legacy default stream. */
typedef struct CUstream_st* leanattn_stream;

/* ---- Version and errors ---- */

/* "0.1.0", of the library that is loaded. */
LEANATTN_API const char* leanattn_version(void) LEANATTN_NOEXCEPT;

/* snake_case name of a status, e.g. "invalid_argument". Never null. */
LEANATTN_API const char* leanattn_status_name(leanattn_status status) LEANATTN_NOEXCEPT;

/* The status of the last failed call on this thread. A successful call changes neither it nor the texts below, which
 * are never null (empty where there is nothing to say) and valid until the next failed call on this thread. */
LEANATTN_API leanattn_status leanattn_last_error_status(void) LEANATTN_NOEXCEPT;

/* What was wrong, in one sentence with the offending value. */
LEANATTN_API const char* leanattn_last_error_message(void) LEANATTN_NOEXCEPT;

/* What to do about it. */
LEANATTN_API const char* leanattn_last_error_hint(void) LEANATTN_NOEXCEPT;

/* The compiler's log. */
LEANATTN_API const char* leanattn_last_error_log(void) LEANATTN_NOEXCEPT;

/* ---- Engine: one GPU, what was tuned for it, and the kernels loaded on it ---- */

/* Compiled kernels stay in memory; the user's tuning.db is not read. */
#define LEANATTN_ENGINE_NO_DISK_CACHE 1u

/* Which GPU, and where what was tuned and compiled is kept. */
typedef struct leanattn_engine_options {
  size_t struct_size;
  int32_t device;        /* CUDA ordinal */
  uint32_t flags;        /* LEANATTN_ENGINE_* */
  const char* cache_dir; /* null: LEANATTN_CACHE_DIR, else $XDG_CACHE_HOME/leanattn, else ~/.cache/leanattn */
} leanattn_engine_options;

/* The defaults: device 0 with its usual cache. */
static inline void leanattn_engine_options_init(leanattn_engine_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
}

/* Makes an engine. It holds a reference on the device's primary context (the one the CUDA runtime uses), whichever
 * context is current on the calling thread stays so. `options` may be null: device 0, the usual cache. A cache that
 * cannot be used is no error: see leanattn_engine_warnings. A process may have several engines, of one device too.
 * Errors: invalid_argument, no_driver, no_device, driver_too_old, unsupported (a GPU before sm_80), out_of_memory,
 * context_lost (the process was forked from one that had started CUDA). */
LEANATTN_API leanattn_status leanattn_engine_create(const leanattn_engine_options* options,
                                                    leanattn_engine** engine) LEANATTN_NOEXCEPT;

/* Frees the engine and every plan of it, after the build in the background that may be in progress. No launch of them
 * may be running or part of a graph that will run. Null is allowed. In a child that was forked since the engine was
 * made nothing is freed: it is the parent's. */
LEANATTN_API void leanattn_engine_destroy(leanattn_engine* engine) LEANATTN_NOEXCEPT;

/* What was degraded when the engine was made or reloaded, or has been since when winners were read (a cache that is
 * read-only, a damaged database ...), one sentence a line; empty when all is well. Winners are read at the first
 * look-up of a problem, so later calls may say more. Valid until the next reload or the engine's end. */
LEANATTN_API const char* leanattn_engine_warnings(const leanattn_engine* engine) LEANATTN_NOEXCEPT;

/* Reads the winners again, after tuning or an import. Plans made before stay valid and unchanged. */
LEANATTN_API leanattn_status leanattn_engine_reload(leanattn_engine* engine) LEANATTN_NOEXCEPT;

/* ---- Plans: what to launch for a problem and a shape ---- */

/* What never changes in a model. */
typedef struct leanattn_problem {
  size_t struct_size;
  int32_t q_heads;
  int32_t kv_heads;  /* divides q_heads, at most 128 query heads each */
  int32_t head_dim;  /* of q and K, and of V unless v_head_dim says otherwise; a multiple of 16, 16 to 512 */
  int32_t dtype;     /* leanattn_dtype */
  int32_t kv_layout; /* leanattn_kv_layout */
  int32_t lse;       /* not 0: launches also write the log-sum-exp of every row */
  int32_t pdl;       /* not 0: launches may overlap the kernel before them; see leanattn_plan_launch for the contract */
  int32_t reserved;
  /* Beside plain dense decode; docs/features.md has each one's limits. */
  int32_t page_size;   /* tokens per page of a paged cache; 0: dense */
  int32_t q_len;       /* most query tokens of a request, the last of its context, 1 to 16 (mask full: 1024); 0: 1 */
  int32_t ragged_q;    /* not 0: each request has its own number of them, through q_offsets */
  int32_t query_mask;  /* leanattn_query_mask; of no consequence for one query token */
  int32_t window;      /* tokens a query sees, its own the last of them; 0: all */
  int32_t sink_tokens; /* first tokens of a context that stay visible beside the window */
  int32_t sink_logits; /* not 0: a logit per query head counts in the denominator of its softmax */
  int32_t alibi;       /* not 0: alibi_slopes[head] * (kv index - q index) is added to scores */
  double soft_cap;     /* scores become cap * tanh(score / cap); 0: as they are */
  const char* score;   /* a CUDA expression of score, q_index, kv_index and head that replaces scores; null: none */
  int32_t kv_format;   /* leanattn_kv_format */
  int32_t kv_scale;    /* leanattn_kv_scale */
  int32_t v_head_dim;  /* columns of v and o; 0: head_dim */
  int32_t batch_invariant; /* not 0: a request's bits depend on neither its batch mates nor the grid */
  int32_t append;          /* not 0: k_new and v_new are written into the cache before it is read */
  int32_t rope;            /* leanattn_rope: of q, and of the keys that are appended */
  int32_t rope_dim;        /* dims that turn, the first of a head; 0: all */
  int32_t reserved2;
} leanattn_problem;

/* What the caller knows or guesses about a step. It chooses speed, never correctness: a plan gives right results for
 * any context lengths and any batch up to max_batch. */
typedef struct leanattn_shape {
  size_t struct_size;
  int32_t batch;           /* requests of a typical step */
  int32_t max_batch;       /* most requests of any step; 0: batch */
  int64_t longest_context; /* tokens of the longest request */
  int64_t total_context;   /* tokens of all requests together; 0: batch * longest_context */
} leanattn_shape;

/* All zero but struct_size: set heads and head_dim; every other zero is a feature that is not used. */
static inline void leanattn_problem_init(leanattn_problem* problem) {
  memset(problem, 0, sizeof *problem);
  problem->struct_size = sizeof *problem;
}

/* All zero but struct_size: set batch and longest_context at least. */
static inline void leanattn_shape_init(leanattn_shape* shape) {
  memset(shape, 0, sizeof *shape);
  shape->struct_size = sizeof *shape;
}

/* What would be launched for a shape, and how good the answer is. */
typedef struct leanattn_choice {
  size_t struct_size;
  int32_t provenance;      /* leanattn_provenance */
  int32_t stale;           /* measured under another driver, NVRTC or library than runs now; usable all the same */
  int64_t grid;            /* CTAs */
  int64_t workspace_bytes; /* as leanattn_plan_workspace_bytes would say */
  double tuned_us;         /* median of the measurement it rests on; 0 for model and fallback */
  int64_t tuned_longest_context; /* of that measurement's shape; 0 for fallback */
  int64_t tuned_total_context;
  int32_t tuned_batch;
  int32_t reserved;
  char layer[16];        /* database it comes from: "user", "site", "shipped" or empty */
  char kernel_name[128]; /* stable identity of the kernel */
  int32_t pdl;           /* launches go out with programmatic dependent launch; always 0 before sm_90 */
  int32_t tuned_pdl;     /* so did those of the measurement it rests on */
} leanattn_choice;

/* An empty choice, for leanattn_engine_lookup to fill. */
static inline void leanattn_choice_init(leanattn_choice* choice) {
  memset(choice, 0, sizeof *choice);
  choice->struct_size = sizeof *choice;
}

/* Looks a shape up without compiling or loading anything. `choice->struct_size` must be set.
 * Errors: invalid_argument, unsupported. */
LEANATTN_API leanattn_status leanattn_engine_lookup(const leanattn_engine* engine, const leanattn_problem* problem,
                                                    const leanattn_shape* shape,
                                                    leanattn_choice* choice) LEANATTN_NOEXCEPT;

/* The plan for a problem and a shape. The first call for a kernel compiles it or takes it from the cache, and loads it;
 * concurrent calls for one kernel wait for one compile. Later calls are one look-up without locks. A tuned kernel that
 * cannot be built here gives way to the default one, and the plan says so. The plan belongs to the engine: it is valid
 * until leanattn_engine_destroy, and is never freed by the caller.
 * `stream` is the stream that the plan is wanted for; it is asked only whether it is being captured, since a capture
 * forbids what loading needs. Prepare plans before capturing.
 * Errors: invalid_argument, unsupported, nvrtc_missing, compile_failed, kernel_rejected, load_failed, driver_too_old,
 * out_of_memory, not_prepared (stream is being captured and the kernel is not loaded yet), context_lost. */
LEANATTN_API leanattn_status leanattn_engine_plan(leanattn_engine* engine, const leanattn_problem* problem,
                                                  const leanattn_shape* shape, leanattn_stream stream,
                                                  const leanattn_plan** plan) LEANATTN_NOEXCEPT;

/* What leanattn_engine_plan_with does when the kernel it would answer with is not loaded yet. */
typedef enum leanattn_when_missing {
  LEANATTN_WHEN_MISSING_COMPILE = 0, /* compiles it, or waits for who does */
  LEANATTN_WHEN_MISSING_FALLBACK = 1 /* answers with a stand-in, and builds it in the background */
} leanattn_when_missing;

/* How a plan is asked for. */
typedef struct leanattn_plan_options {
  size_t struct_size;
  int32_t when_missing; /* leanattn_when_missing */
  int32_t reserved;
} leanattn_plan_options;

/* The defaults: a missing kernel is compiled. */
static inline void leanattn_plan_options_init(leanattn_plan_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
}

/* leanattn_engine_plan with options; null is leanattn_engine_plan. With LEANATTN_WHEN_MISSING_FALLBACK a kernel that is
 * not loaded is compiled on a thread of the engine's, and the plan is meanwhile one of a kernel that is loaded, or else
 * of the safe default, which the first call for a problem compiles or takes from the cache. Such a plan says so
 * (leanattn_plan_info.stand_in) and is as right and as long-lived as any other: ask again at a later step, and the
 * answer is the better one once it is ready, at the price of a look-up. One that cannot be built is not tried again
 * before leanattn_engine_reload. Errors: those of leanattn_engine_plan, as far as the stand-in meets them. */
LEANATTN_API leanattn_status leanattn_engine_plan_with(leanattn_engine* engine, const leanattn_problem* problem,
                                                       const leanattn_shape* shape,
                                                       const leanattn_plan_options* options, leanattn_stream stream,
                                                       const leanattn_plan** plan) LEANATTN_NOEXCEPT;

/* What a plan launches, and what it rests on. */
typedef struct leanattn_plan_info {
  size_t struct_size;
  const char* kernel_name; /* valid as long as the plan, like the next */
  const char* layer;       /* database that the configuration comes from: "user", "site", "shipped" or empty */
  int64_t grid;            /* CTAs */
  int64_t workspace_bytes;
  double tuned_us;    /* median of the measurement it rests on; 0: none */
  double compile_ms;  /* 0: the kernel came from cubin.db */
  int32_t provenance; /* leanattn_provenance */
  int32_t stale;
  int32_t max_batch;
  int32_t threads;      /* per CTA */
  int32_t shared_bytes; /* dynamic shared memory per CTA */
  int32_t registers;    /* per thread */
  int32_t ctas_per_sm;  /* that one SM holds at once */
  int32_t reserved;
  int32_t pdl;       /* launches go out with programmatic dependent launch; always 0 before sm_90 */
  int32_t tuned_pdl; /* so did those of the measurement it rests on */
  int32_t stand_in;  /* a better kernel is being built: ask again at a later step */
  int32_t reserved2;
} leanattn_plan_info;

/* An empty one, for leanattn_plan_get_info to fill. */
static inline void leanattn_plan_info_init(leanattn_plan_info* info) {
  memset(info, 0, sizeof *info);
  info->struct_size = sizeof *info;
}

/* `info->struct_size` must be set. Errors: invalid_argument. */
LEANATTN_API leanattn_status leanattn_plan_get_info(const leanattn_plan* plan,
                                                    leanattn_plan_info* info) LEANATTN_NOEXCEPT;

/* ---- Workspace: device memory of the caller's that CTAs exchange partial results through ---- */

/* Bytes a workspace for this plan must have; -1 for a null plan. At most two fp32 partials a CTA, and four bytes for
 * each CTA and each output tile. */
LEANATTN_API int64_t leanattn_plan_workspace_bytes(const leanattn_plan* plan) LEANATTN_NOEXCEPT;

/* Makes fresh device memory a workspace: zeroes it, in stream order. Once is enough: every completed launch leaves the
 * workspace as it found it, so plans that fit may use one workspace in turn. `workspace` is 256-byte aligned, as
 * cudaMalloc gives it. Errors: invalid_argument, context_lost. */
LEANATTN_API leanattn_status leanattn_plan_init_workspace(const leanattn_plan* plan, void* workspace,
                                                          int64_t workspace_bytes,
                                                          leanattn_stream stream) LEANATTN_NOEXCEPT;

/* Makes a workspace usable again whose last launch was aborted. The same as init_workspace, by the name of its use. */
LEANATTN_API leanattn_status leanattn_plan_reset_workspace(const leanattn_plan* plan, void* workspace,
                                                           int64_t workspace_bytes,
                                                           leanattn_stream stream) LEANATTN_NOEXCEPT;

/* ---- Launch ---- */

/* One decode step: O = softmax(scale * Q K^T) V for one query row per request and query head. All pointers are device
 * pointers. Strides count elements; 0 stands for the dense stride of the layout named in the problem, with
 * context_capacity as its context extent. Bases and strides of q, k, v and o are multiples of 16 bytes. */
typedef struct leanattn_decode_args {
  size_t struct_size;
  const void* q;                  /* [batch, q_heads, head_dim] */
  const void* k;                  /* [batch, kv_heads, context_capacity, head_dim] through its strides */
  const void* v;                  /* likewise */
  void* o;                        /* [batch, q_heads, head_dim] */
  float* lse;                     /* [batch, q_heads], natural logarithm; null unless the problem has lse */
  const int32_t* context_lengths; /* [batch] tokens; read by the kernel, clamped to [0, context_capacity] */
  int64_t q_stride_batch, q_stride_head;
  int64_t k_stride_batch, k_stride_head, k_stride_token;
  int64_t v_stride_batch, v_stride_head, v_stride_token;
  int64_t o_stride_batch, o_stride_head;
  int32_t batch;            /* 1 to the plan's max_batch */
  int32_t context_capacity; /* tokens that k and v hold per request */
  float scale;              /* softmax scale, positive; 0: 1 / sqrt(head_dim) */
  int32_t reserved;
  /* What the problem's features need; everything else stays zero. Device pointers, read by the kernel. */
  const int32_t* page_table; /* page_size: [batch, max_pages] pages of k and v, through page_table_stride */
  const int32_t* q_offsets;  /* ragged_q: [batch + 1], where each request's query tokens start; the first is 0 */
  const uint32_t* tree_mask; /* tree: [query tokens], bit j: sees the request's query token j */
  const float* alibi_slopes; /* alibi: [q_heads] */
  const float* sink_logits;  /* sink_logits: [q_heads] */
  const float* k_scale;      /* one-byte kv_format: element * scale is the key; see leanattn_kv_scale. Null: 1 */
  const float* v_scale;
  int64_t q_stride_token, o_stride_token; /* between query tokens of one request; 0: q_heads rows */
  int64_t page_table_stride;              /* between requests' rows; 0: max_pages */
  int64_t kv_scale_stride_batch, kv_scale_stride_head, kv_scale_stride_token; /* elements, of k_scale and v_scale */
  int64_t pool_pages; /* page_size: pages that k and v hold; k_stride_batch and v_stride_batch step between pages */
  int32_t max_pages;  /* page_size: entries of a request's row of the table; the capacity is max_pages * page_size */
  int32_t reserved2;
  const void* k_new; /* append: [batch, q_len, kv_heads, head_dim], ragged_q: [query tokens, kv_heads, head_dim] */
  const void* v_new; /* likewise, v_head_dim wide */
  const float* rope_table; /* rope: [positions, rope_dim]: rope_dim / 2 cosines, then as many sines */
  int64_t k_new_stride_batch, k_new_stride_token, k_new_stride_head; /* 0: dense */
  int64_t v_new_stride_batch, v_new_stride_token, v_new_stride_head;
} leanattn_decode_args;

/* All zero but struct_size: dense strides, the usual scale, no feature. */
static inline void leanattn_decode_args_init(leanattn_decode_args* args) {
  memset(args, 0, sizeof *args);
  args->struct_size = sizeof *args;
}

/* Enqueues one step on `stream` and returns. No allocation, no lock, no synchronisation; legal while the stream is
 * being captured, and the graph stays right when context_lengths change between replays. A request of length zero gets
 * zeros and an LSE of -inf. The workspace serves one launch at a time: keep one per stream, and one per graph that may
 * run beside others. With LEANATTN_DEBUG=1 in the environment of leanattn_engine_create, a launch whose workspace is
 * still in use on another stream, whose pointers are not device memory, or whose lengths, query offsets or pages are
 * out of their domain, is refused; this costs a lock, a small kernel and a wait for it.
 *
 * A plan of a problem with `pdl`, on sm_90 and newer, launches with the attribute programmatic stream serialization:
 * the kernel may start before the kernels in front of it in the stream have ended. What it reads before it executes
 * griddepcontrol.wait must therefore not be written by a kernel that may still run then:
 *   - may come from the kernel right before: q, k_new and v_new, and of k and v the rows of each request's last q_len
 *     tokens (of one query token: position context_length - 1);
 *   - must not: context_lengths, q_offsets, page_table, and the rows of all earlier tokens.
 * May still run: the kernel right before; and where that one was itself launched with the attribute and executes
 * griddepcontrol.launch_dependents before its own wait, as this library's kernels do, the one before it, and so on. The
 * kernel before need not do anything; the launch only gains when it executes launch_dependents early. A kernel
 * after this one that is launched with the attribute must execute griddepcontrol.wait before it reads o or lse, and
 * before it writes what this launch reads or writes; one without the attribute needs nothing. The workspace is written
 * and read after the wait only, so that consecutive launches of one stream may share it as ever.
 *
 * Errors: invalid_argument (which argument, and its value; nothing was enqueued), launch_failed, context_lost. */
LEANATTN_API leanattn_status leanattn_plan_launch(const leanattn_plan* plan, const leanattn_decode_args* args,
                                                  void* workspace, leanattn_stream stream) LEANATTN_NOEXCEPT;

/* ---- Merging: results over disjoint pieces of a context become the result over all of it ---- */

/* Most parts that one call merges. */
#define LEANATTN_MERGE_PARTS 8

/* All pointers are device pointers, strides count elements. */
typedef struct leanattn_merge_args {
  size_t struct_size;
  const void* o[LEANATTN_MERGE_PARTS];    /* of each part: [rows, dim] through o_stride_row */
  const float* lse[LEANATTN_MERGE_PARTS]; /* of each part: [rows], natural logarithm; -inf: the part saw no token */
  void* out_o;                            /* [rows, dim] through out_stride_row; may be one of the parts */
  float* out_lse;                         /* [rows]; may be one of the parts, or null */
  int64_t o_stride_row, out_stride_row;   /* 0: dim */
  int64_t rows;                           /* e.g. batch * q_heads */
  int32_t parts;                          /* 1 to LEANATTN_MERGE_PARTS */
  int32_t dim;                            /* even */
  int32_t dtype;                          /* leanattn_dtype */
  int32_t reserved;
} leanattn_merge_args;

/* All zero but struct_size: dense strides. */
static inline void leanattn_merge_args_init(leanattn_merge_args* args) {
  memset(args, 0, sizeof *args);
  args->struct_size = sizeof *args;
}

/* Enqueues the merge on `stream`: O = sum of w_i O_i with w_i = exp(LSE_i - LSE), LSE = log sum exp(LSE_i), in fp32.
 * For requests that share a prefix, which is then read once, and for contexts split over several GPUs. The first call
 * of an engine compiles and loads the kernel; later ones only enqueue. Errors: invalid_argument, those of
 * leanattn_engine_plan, launch_failed, context_lost. */
LEANATTN_API leanattn_status leanattn_engine_merge_partials(leanattn_engine* engine, const leanattn_merge_args* args,
                                                            leanattn_stream stream) LEANATTN_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif /* LEANATTN_LEANATTN_H_ */
