/* leanattn.h -- the C ABI (C11): an engine makes plans, and a plan launches decode steps. Every function may be called
 * from any thread, except that leanattn_engine_destroy must be the last use of an engine. No CUDA headers are needed.
 * No function throws or prints.
 *
 * Each struct carries its size in `struct_size`, so that programs and libraries of different versions work together.
 * Let leanattn_<struct>_init set it, or zero the struct and set struct_size = sizeof(the struct). New fields are only
 * ever appended, and 0 in a new field always means the behaviour from before the field existed. */
#ifndef LEANATTN_LEANATTN_H_
#define LEANATTN_LEANATTN_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Marks what the shared library exports. */
#define LEANATTN_API __attribute__((visibility("default")))

/* noexcept for C++ programs; C has no such word. */
#ifdef __cplusplus
#define LEANATTN_NOEXCEPT noexcept
extern "C" {
#else
#define LEANATTN_NOEXCEPT
#endif

/* The version of this header. leanattn_version() returns that of the loaded library. */
#define LEANATTN_VERSION_MAJOR 0
/* See LEANATTN_VERSION_MAJOR. */
#define LEANATTN_VERSION_MINOR 2
/* See LEANATTN_VERSION_MAJOR. */
#define LEANATTN_VERSION_PATCH 0

/* The outcome of a call. Values are stable; new ones are only ever appended. */
typedef enum leanattn_status {
  LEANATTN_OK = 0,
  LEANATTN_INVALID_ARGUMENT = 1,   /* a value is out of its range; the message names it */
  LEANATTN_UNSUPPORTED = 2,        /* valid, but this build or GPU cannot do it */
  LEANATTN_NO_DRIVER = 3,          /* libcuda is missing or refuses to start */
  LEANATTN_NO_DEVICE = 4,          /* no such CUDA device */
  LEANATTN_DRIVER_TOO_OLD = 5,     /* the driver cannot load what NVRTC made */
  LEANATTN_NVRTC_MISSING = 6,      /* libnvrtc is missing or unusable */
  LEANATTN_COMPILE_FAILED = 7,     /* NVRTC rejected the source; leanattn_last_error_log() has its log */
  LEANATTN_KERNEL_REJECTED = 8,    /* the kernel compiled, but spills registers or serialises wgmma */
  LEANATTN_LOAD_FAILED = 9,        /* the driver refused the cubin */
  LEANATTN_LAUNCH_FAILED = 10,     /* the driver refused the launch */
  LEANATTN_OUT_OF_MEMORY = 11,     /* no more device or host memory, or no thread or process left */
  LEANATTN_CACHE_UNAVAILABLE = 12, /* the cache directory cannot be used */
  LEANATTN_DATABASE_CORRUPT = 13,  /* the file is damaged, or is no database of this library */
  LEANATTN_DATABASE_NEWER = 14,    /* a newer library wrote the database, which is left alone */
  LEANATTN_DATABASE_BUSY = 15,     /* another process has locked the database for too long */
  LEANATTN_NOT_FOUND = 16,         /* nothing is stored under this name */
  LEANATTN_NOT_PREPARED = 17,      /* the kernel must be compiled or loaded, and the stream is being captured */
  LEANATTN_WRONG_RESULT = 18,      /* a kernel disagreed with the oracle */
  LEANATTN_INTERRUPTED = 19,       /* cancelled by the caller or a signal */
  LEANATTN_CONTEXT_LOST = 20,      /* the CUDA context is broken: make a new engine, if need be in a new process */
  LEANATTN_INTERNAL = 21,          /* a mistake of the library */
  LEANATTN_WORKSPACE_CORRUPT = 22, /* a workspace was not all zero between launches, or was used by two at a time:
                                      results of launches on it are wrong, and it must be zeroed */
  LEANATTN_GROUP_BROKEN = 23       /* a rank of a group did not come in time, or launched something else than the
                                      others: results since then are wrong, and all ranks must reset the group */
} leanattn_status;

/* Element type of q and o, and of k and v unless kv_format says otherwise. */
typedef enum leanattn_dtype { LEANATTN_BF16 = 0, LEANATTN_FP16 = 1 } leanattn_dtype;

/* How the KV cache lies in memory. */
typedef enum leanattn_kv_layout {
  LEANATTN_KV_CONTIGUOUS = 0, /* consecutive tokens of one KV head are adjacent: [batch, kv_heads, context, head_dim] */
  LEANATTN_KV_STRIDED = 1     /* any token stride, such as [batch, context, kv_heads, head_dim] */
} leanattn_kv_layout;

/* Which of a request's query tokens each of them sees, where there are several. */
typedef enum leanattn_query_mask {
  LEANATTN_MASK_CAUSAL = 0, /* each sees itself and those before it */
  LEANATTN_MASK_TREE = 1,   /* each sees those that its word of tree_mask names */
  LEANATTN_MASK_FULL = 2    /* each sees all of them */
} leanattn_query_mask;

/* Element type of the cache: that of q, one byte, or four bits. LEANATTN_KV_FP8_DS_MLA are rows of a latent cache of
 * 576 columns with a format of their own: 512 fp8 e4m3 values, four fp32 scales of 128 of them each, and 64 bf16
 * values, 656 bytes in all. Strides of k then count bytes. docs/how-to/latent.md says what goes with it.
 * LEANATTN_KV_FP8_DS_V4 are rows of a latent cache of 512 columns, all of which are values: 448 fp8 e4m3 values and 64
 * bf16 values, 576 bytes, by which k_stride_token is. Behind all rows of a page are 8 bytes for each of them: powers of
 * two (UE8M0) by which seven groups of 64 fp8 values are multiplied, and a byte that nobody reads.
 * LEANATTN_KV_INT4 are numbers 0 to 15, two a byte, the lower half of it first. Strides of k and v then count bytes,
 * head_dim / 2 to a row. A token of a head has a scale and a zero point for each of k and v: the last four bits of the
 * fp32 scale are the zero point, and the scale has zeros there. Element x is (x - zero point) * scale.
 * LEANATTN_KV_NVFP4 are floats of four bits (e2m1: a sign, and 0, 0.5, 1, 1.5, 2, 3, 4 or 6), two a byte likewise. 16
 * columns of a row share an fp8 e4m3 scale, which lies in k_block_scales and v_block_scales.
 * docs/how-to/caches.md says what goes with them. */
typedef enum leanattn_kv_format {
  LEANATTN_KV_SAME = 0, /* that of q */
  LEANATTN_KV_FP8_E4M3 = 1,
  LEANATTN_KV_FP8_E5M2 = 2,
  LEANATTN_KV_INT8 = 3,
  LEANATTN_KV_FP8_DS_MLA = 4,
  LEANATTN_KV_INT4 = 5,
  LEANATTN_KV_NVFP4 = 6,
  LEANATTN_KV_FP8_DS_V4 = 7
} leanattn_kv_format;

/* Rotary position embedding: which dims are rotated together. */
typedef enum leanattn_rope {
  LEANATTN_ROPE_NONE = 0,
  LEANATTN_ROPE_HALF_SPLIT = 1, /* dim i with i + rope_dim / 2 */
  LEANATTN_ROPE_INTERLEAVED = 2 /* dim 2 i with 2 i + 1 */
} leanattn_rope;

/* What has a scale of its own in a cache of one-byte or four-bit elements, and the shape of k_scale and v_scale. */
typedef enum leanattn_kv_scale {
  LEANATTN_SCALE_TENSOR = 0, /* [1]; with LEANATTN_KV_INT4 LEANATTN_SCALE_IN_ROW is meant */
  LEANATTN_SCALE_HEAD = 1,   /* [kv_heads] */
  LEANATTN_SCALE_TOKEN = 2,  /* [batch, kv_heads, context], or [pages, kv_heads, page_size], by kv_scale_stride_* */
  LEANATTN_SCALE_IN_ROW = 3  /* as LEANATTN_SCALE_TOKEN, and none may be null; scales lie among the rows, so that bases
                                and strides of k and v are multiples of 4 bytes only */
} leanattn_kv_scale;

/* How good the answer of a look-up is. From best to worst: exact, bucket, without_pdl, nearest, model, fallback.
 * Values are stable; new ones are only ever appended. */
typedef enum leanattn_provenance {
  LEANATTN_EXACT = 0,      /* measured for this problem and shape */
  LEANATTN_BUCKET = 1,     /* measured for a shape with the same powers of two of batch and contexts */
  LEANATTN_NEAREST = 2,    /* measured for the nearest shape of a problem with the same head_dim and group */
  LEANATTN_MODEL = 3,      /* measured for another problem on this GPU */
  LEANATTN_FALLBACK = 4,   /* nothing that was measured helps */
  LEANATTN_WITHOUT_PDL = 5 /* only for a problem with pdl: measured for this shape or its bucket, but with ordinary
                              launches, so that the time with dependent launch is not known */
} leanattn_provenance;

/* An engine: the winners for one GPU, and the kernels that are loaded on it. */
typedef struct leanattn_engine leanattn_engine;

/* A plan: a loaded kernel with its grid and workspace size for one problem, ready to launch. */
typedef struct leanattn_plan leanattn_plan;

/* The same type as CUstream and cudaStream_t; null is the legacy default stream. */
typedef struct CUstream_st* leanattn_stream;

/* ---- Version and errors ---- */

/* The version of the loaded library, such as "0.2.0". Static storage. */
LEANATTN_API const char* leanattn_version(void) LEANATTN_NOEXCEPT;

/* The snake_case name of a status, such as "invalid_argument". Never null; static storage. */
LEANATTN_API const char* leanattn_status_name(leanattn_status status) LEANATTN_NOEXCEPT;

/* The status of the last call on this thread that failed. A call that succeeds changes neither it nor the texts below.
 * These are never null, may be empty, and are valid until the next call on this thread that fails. */
LEANATTN_API leanattn_status leanattn_last_error_status(void) LEANATTN_NOEXCEPT;

/* What was wrong, in one sentence that contains the value. */
LEANATTN_API const char* leanattn_last_error_message(void) LEANATTN_NOEXCEPT;

/* What to do about it. May be empty. */
LEANATTN_API const char* leanattn_last_error_hint(void) LEANATTN_NOEXCEPT;

/* The compiler's log, after compile_failed. Else empty. */
LEANATTN_API const char* leanattn_last_error_log(void) LEANATTN_NOEXCEPT;

/* ---- Engine: the winners for one GPU, and the kernels loaded on it ---- */

/* Compiled kernels are kept in memory only, and the user's tuning.db is not read. */
#define LEANATTN_ENGINE_NO_DISK_CACHE 1u

/* Which GPU an engine is for, and where its databases are. */
typedef struct leanattn_engine_options {
  size_t struct_size;
  int32_t device;        /* CUDA ordinal */
  uint32_t flags;        /* LEANATTN_ENGINE_* */
  const char* cache_dir; /* directory of tuning.db and cubin.db; copied. Null: LEANATTN_CACHE_DIR, else
                            $XDG_CACHE_HOME/leanattn, else ~/.cache/leanattn */
} leanattn_engine_options;

/* The defaults: device 0 and the usual cache directory. */
static inline void leanattn_engine_options_init(leanattn_engine_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
}

/* Makes an engine, which belongs to the caller until leanattn_engine_destroy. `options` may be null for the defaults.
 * The engine holds a reference to the primary context of the GPU, which is the one that the CUDA runtime uses. The
 * context that is current on the calling thread stays current. A cache that cannot be used is no error; see
 * leanattn_engine_warnings. A process may have several engines, also for one GPU. Errors: invalid_argument, no_driver,
 * no_device, driver_too_old, unsupported (a GPU before sm_80), out_of_memory, context_lost (the process was forked from
 * one that had started CUDA). */
LEANATTN_API leanattn_status leanattn_engine_create(const leanattn_engine_options* options,
                                                    leanattn_engine** engine) LEANATTN_NOEXCEPT;

/* Frees the engine and all of its plans. Waits for a build in the background that is in progress. No launch of these
 * plans may be running, or be part of a graph that will run. Null is allowed. In a child process that was forked after
 * the engine was made, nothing is freed, because the engine is the parent's. */
LEANATTN_API void leanattn_engine_destroy(leanattn_engine* engine) LEANATTN_NOEXCEPT;

/* What did not work when the engine was made, was reloaded or read winners, such as a read-only cache or a damaged
 * database: one sentence on each line, empty when all is well, never null. Winners are read at the first look-up of a
 * problem, so a later call may return more. The text is valid until the next reload, or until the engine is
 * destroyed. */
LEANATTN_API const char* leanattn_engine_warnings(const leanattn_engine* engine) LEANATTN_NOEXCEPT;

/* Reads the winners again, after tuning or an import. Plans that were made before stay valid and do not change. Errors:
 * invalid_argument, context_lost (in a child process that was forked after the engine was made). */
LEANATTN_API leanattn_status leanattn_engine_reload(leanattn_engine* engine) LEANATTN_NOEXCEPT;

/* ---- Plans: what to launch for a problem and a shape ---- */

/* What never changes in a model. */
typedef struct leanattn_problem {
  size_t struct_size;
  int32_t q_heads;
  int32_t kv_heads; /* divides q_heads; at most 128 query heads share a KV head */
  int32_t
      head_dim;  /* columns of q and k, and of v unless v_head_dim is set; a multiple of 16, 16 to 512 (latent: 640) */
  int32_t dtype; /* leanattn_dtype */
  int32_t kv_layout; /* leanattn_kv_layout */
  int32_t lse;       /* not 0: launches also write the log-sum-exp of every query row */
  int32_t pdl;       /* not 0: launches may overlap the kernel before them; see leanattn_plan_launch for the contract */
  int32_t reserved;
  /* Features, beside plain dense decode. docs/features.md has their limits. */
  int32_t page_size;   /* tokens per page of a paged cache; 0: dense */
  int32_t q_len;       /* most query tokens of a request, which end its context; 1 to 16 (mask full: 1024; ragged_q:
                          131072, and any above 16 is the same problem); 0: 1 */
  int32_t ragged_q;    /* not 0: each request has its own number of query tokens, by q_offsets */
  int32_t query_mask;  /* leanattn_query_mask; makes no difference for one query token, with which tree is refused */
  int32_t window;      /* tokens that a query token sees, itself the last of them; with the full mask as many to either
                          side; 0: all */
  int32_t sink_tokens; /* first tokens of a context that stay visible beside the window */
  int32_t sink_logits; /* not 0: each query head has a logit that counts in the denominator of its softmax */
  int32_t alibi;       /* not 0: alibi_slopes[head] * (kv index - q index) is added to scores */
  double soft_cap;     /* scores become cap * tanh(score / cap); 0: unchanged */
  const char* score;   /* an expression of score, q_index, kv_index and head that replaces scores; null: none.
                          docs/features.md has its language. Copied. */
  int32_t kv_format;   /* leanattn_kv_format */
  int32_t kv_scale;    /* leanattn_kv_scale */
  int32_t v_head_dim;  /* columns of v and o; 0: head_dim */
  int32_t batch_invariant; /* not 0: the bits of a request depend on neither the other requests nor the grid */
  int32_t append;          /* not 0: the kernel writes k_new and v_new into the cache before it reads it */
  int32_t rope;            /* leanattn_rope: how q and the appended keys are rotated */
  int32_t rope_dim;        /* the first dims of a head (latent: behind the columns of v), which are rotated; 0: all */
  int32_t latent;          /* not 0: v is the first v_head_dim columns of k, so that there is no v (multi-head latent
                              attention with absorbed projections) */
  int32_t selection_block; /* each query token brings a list of the blocks that it sees, of so many tokens each: 1, 16,
                              32, 64 or 128; 0: it sees its whole context. Needs page_size. */
  int32_t selection_in_pool; /* not 0: the lists count blocks of the pool, not of the request's context */
  /* Contexts that several GPUs share; docs/groups.md. Plans of such a problem are made by leanattn_engine_plan_group.
   */
  int32_t context_parallel; /* ranks, each of which holds a part of every context: 2 to 8; 0 or 1: one has all of it */
  int32_t context_interleave; /* ranks hold units of so many tokens in turn: a power of two up to 256; 0: rank r holds
                                 the r-th contiguous part of every context, and parts may have any sizes */
  int32_t replicate_output;   /* not 0: every rank writes o of all query heads. 0: rank r writes the r-th share of the
                                 query heads, which context_parallel divides (two levels: docs/groups.md) */
  int32_t second_cache; /* not 0: with a selection, query tokens also see the first tokens of a second cache, which is
                           read whole */
  int32_t spans; /* not 0: with ragged_q and the causal mask, query tokens lie in spans of tokens that see each other
                    both ways, as those of an image do in a prompt */
  int32_t packed_kv; /* not 0: k and v are no cache. The rows of all requests follow each other, as those of q do with
                        ragged_q, and kv_offsets says where those of a request begin */
} leanattn_problem;

/* What the caller knows or guesses about a decode step. It decides how fast a launch is, never whether it is right: a
 * plan gives right results for any context lengths and any batch up to max_batch. */
typedef struct leanattn_shape {
  size_t struct_size;
  int32_t batch;           /* requests of a typical step */
  int32_t max_batch;       /* the most requests of any step; 0: batch */
  int64_t longest_context; /* tokens of the longest request; selection_block: that a query token has selected at most */
  int64_t total_context;   /* tokens of all requests together; 0: batch * longest_context */
  /* The mix of a step with prefill (ragged_q with q_len above 16): its requests with several query tokens, its chunks,
   * beside others with one each. Other problems ignore it. leanattn_shape_of_requests fills it in; a caller who only
   * knows limits gives query_tokens alone. */
  int64_t query_tokens;  /* of all requests together, or that a launch has room for; 0: not known, or one each */
  int64_t chunk_context; /* tokens of the contexts of all chunks together; 0: longest_context each */
  int64_t chunk_pairs; /* pairs of a query token and a token of its context up to itself, over all chunks; 0: of chunks
                          that are equal */
  int32_t chunks;      /* how many requests are chunks; 0: the fewest that can have so many query tokens */
  int32_t reserved;
} leanattn_shape;

/* Everything is 0 but struct_size. Set the heads and head_dim; any other 0 means that a feature is not used. */
static inline void leanattn_problem_init(leanattn_problem* problem) {
  memset(problem, 0, sizeof *problem);
  problem->struct_size = sizeof *problem;
}

/* Everything is 0 but struct_size. Set batch and longest_context at least. */
static inline void leanattn_shape_init(leanattn_shape* shape) {
  memset(shape, 0, sizeof *shape);
  shape->struct_size = sizeof *shape;
}

/* Fills `shape`, whose struct_size must be set, for a step whose requests are known on the host. context_lengths:
 * [batch], in tokens, negative ones count as 0. query_tokens: [batch], of each request; null: one each. max_batch
 * becomes 0. Both arrays stay the caller's. Errors: invalid_argument. */
LEANATTN_API leanattn_status leanattn_shape_of_requests(const int32_t* context_lengths, const int32_t* query_tokens,
                                                        int32_t batch, leanattn_shape* shape) LEANATTN_NOEXCEPT;

/* The answer of a look-up: what would be launched for a shape, and how good this answer is. "The winner" is the
 * measurement on which it rests. */
typedef struct leanattn_choice {
  size_t struct_size;
  int32_t provenance;            /* leanattn_provenance */
  int32_t stale;                 /* the winner was measured with another driver, NVRTC or kernel; still usable */
  int64_t grid;                  /* CTAs */
  int64_t workspace_bytes;       /* as leanattn_plan_workspace_bytes would return */
  double tuned_us;               /* median of the winner, in microseconds; 0 for model and fallback */
  int64_t tuned_longest_context; /* the winner's shape, likewise the next two; 0 for fallback */
  int64_t tuned_total_context;
  int32_t tuned_batch;
  int32_t reserved;
  char layer[16];        /* database that has the winner: "user", "site", "shipped" or empty */
  char kernel_name[128]; /* stable name of the kernel */
  int32_t pdl;           /* launches use programmatic dependent launch; 0 before sm_90, and for an untuned shape where
                            an ordinary launch is expected to be faster */
  int32_t tuned_pdl;     /* the winner was measured with programmatic dependent launch */
} leanattn_choice;

/* An empty choice, for leanattn_engine_lookup to fill. */
static inline void leanattn_choice_init(leanattn_choice* choice) {
  memset(choice, 0, sizeof *choice);
  choice->struct_size = sizeof *choice;
}

/* Looks a shape up without compiling or loading anything. `choice->struct_size` must be set. Errors: invalid_argument,
 * unsupported, context_lost (in a child process that was forked after the engine was made). */
LEANATTN_API leanattn_status leanattn_engine_lookup(const leanattn_engine* engine, const leanattn_problem* problem,
                                                    const leanattn_shape* shape,
                                                    leanattn_choice* choice) LEANATTN_NOEXCEPT;

/* Makes the plan for a problem and a shape. The first call for a kernel loads it, from the cache or after compiling it.
 * Calls from other threads for the same kernel wait for this. Later calls are one look-up without locks. Where the
 * tuned kernel cannot be built, the plan is that of the default configuration, and its provenance says fallback. The
 * plan belongs to the engine: it is valid until leanattn_engine_destroy, and the caller never frees it.
 * `stream` is the stream that will launch, or null. It is asked whether it is being captured, because kernels cannot be
 * loaded during a capture, and, where CTAs wait for each other, for its SMs, because a green context has fewer. Make
 * plans before capturing.
 * Errors: invalid_argument, unsupported, nvrtc_missing, compile_failed, kernel_rejected, load_failed, driver_too_old,
 * out_of_memory, not_prepared (stream is being captured and the kernel is not loaded yet), context_lost. */
LEANATTN_API leanattn_status leanattn_engine_plan(leanattn_engine* engine, const leanattn_problem* problem,
                                                  const leanattn_shape* shape, leanattn_stream stream,
                                                  const leanattn_plan** plan) LEANATTN_NOEXCEPT;

/* What leanattn_engine_plan_with does when the kernel of its answer is not loaded yet. */
typedef enum leanattn_when_missing {
  LEANATTN_WHEN_MISSING_COMPILE = 0, /* compiles it, or waits for the thread that does */
  LEANATTN_WHEN_MISSING_FALLBACK = 1 /* answers with a stand-in, and builds the kernel in the background. The provenance
                                        of a stand-in is fallback, but not every fallback is a stand-in. */
} leanattn_when_missing;

/* The options of leanattn_engine_plan_with. */
typedef struct leanattn_plan_options {
  size_t struct_size;
  int32_t when_missing; /* leanattn_when_missing */
  int32_t reserved;
} leanattn_plan_options;

/* The defaults: a kernel that is not loaded is compiled first. */
static inline void leanattn_plan_options_init(leanattn_plan_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
}

/* leanattn_engine_plan with options; null means the defaults. With LEANATTN_WHEN_MISSING_FALLBACK a kernel that is not
 * loaded is built on a thread of the engine. Meanwhile the plan is a stand-in: it has another kernel of the problem
 * that is loaded already or, if there is none, the default kernel, which the first call for the problem then compiles
 * or takes from the cache. A stand-in (leanattn_plan_info.stand_in) gives results that are as right and lives as long
 * as any other plan. Ask again at a later step: this takes one look-up, and the answer is the better plan once its
 * kernel is ready. A kernel that cannot be built is not tried again before leanattn_engine_reload. Errors: those of
 * leanattn_engine_plan that concern the stand-in. */
LEANATTN_API leanattn_status leanattn_engine_plan_with(leanattn_engine* engine, const leanattn_problem* problem,
                                                       const leanattn_shape* shape,
                                                       const leanattn_plan_options* options, leanattn_stream stream,
                                                       const leanattn_plan** plan) LEANATTN_NOEXCEPT;

/* What a plan launches. "The winner" is the measurement on which its configuration rests. */
typedef struct leanattn_plan_info {
  size_t struct_size;
  const char* kernel_name; /* valid as long as the plan; so is `layer` */
  const char* layer;       /* database that has the winner: "user", "site", "shipped" or empty */
  int64_t grid;            /* CTAs */
  int64_t workspace_bytes; /* as leanattn_plan_workspace_bytes */
  double tuned_us;         /* median of the winner, in microseconds; 0: none */
  double compile_ms;       /* milliseconds; 0: the kernel came from cubin.db */
  int32_t provenance;      /* leanattn_provenance */
  int32_t stale;           /* the winner was measured with another driver, NVRTC or kernel */
  int32_t max_batch;       /* the most requests of a launch */
  int32_t threads;         /* of a CTA */
  int32_t shared_bytes;    /* dynamic shared memory of a CTA */
  int32_t registers;       /* of a thread */
  int32_t ctas_per_sm;     /* that one SM holds at a time */
  int32_t reserved;
  int32_t pdl;       /* launches use programmatic dependent launch; 0 as in leanattn_choice */
  int32_t tuned_pdl; /* the winner was measured with programmatic dependent launch */
  int32_t stand_in;  /* not 0: a better kernel is being built; ask again at a later step */
  int32_t reserved2;
} leanattn_plan_info;

/* An empty info, for leanattn_plan_get_info to fill. */
static inline void leanattn_plan_info_init(leanattn_plan_info* info) {
  memset(info, 0, sizeof *info);
  info->struct_size = sizeof *info;
}

/* Fills `info`, whose struct_size must be set. Errors: invalid_argument. */
LEANATTN_API leanattn_status leanattn_plan_get_info(const leanattn_plan* plan,
                                                    leanattn_plan_info* info) LEANATTN_NOEXCEPT;

/* ---- Workspace: device memory of the caller's, through which the CTAs of a launch exchange partial results ---- */

/* The bytes that a workspace for this plan must have at least; -1 for a null plan. They hold up to two fp32 partials
 * for each CTA (of batch-invariant plans for each LeanTile), and four bytes for each CTA and each output tile. */
LEANATTN_API int64_t leanattn_plan_workspace_bytes(const leanattn_plan* plan) LEANATTN_NOEXCEPT;

/* Turns device memory into a workspace by zeroing it, in stream order. This is needed once: every launch that ends
 * leaves the workspace as it found it, so plans for which it is large enough may use it in turn. `workspace` must be
 * aligned to 256 bytes, as cudaMalloc aligns it, and stays the caller's. After a fault on this workspace
 * (leanattn_engine_check) it also waits for the stream and acknowledges the fault. Errors: invalid_argument,
 * workspace_corrupt (after a fault on it, while the stream is being captured), launch_failed, context_lost. */
LEANATTN_API leanattn_status leanattn_plan_init_workspace(const leanattn_plan* plan, void* workspace,
                                                          int64_t workspace_bytes,
                                                          leanattn_stream stream) LEANATTN_NOEXCEPT;

/* Makes a workspace usable again after a launch that did not end, or that ended with a fault. Does the same as
 * leanattn_plan_init_workspace. */
LEANATTN_API leanattn_status leanattn_plan_reset_workspace(const leanattn_plan* plan, void* workspace,
                                                           int64_t workspace_bytes,
                                                           leanattn_stream stream) LEANATTN_NOEXCEPT;

/* Whether a launch of the engine has ended with a fault since the engine was made, or since the last one was
 * acknowledged. These faults are found: a CTA has waited for another one's partial result, or for its own KV, for
 * longer than the bound (LEANATTN_WAIT_BOUND_MS); a counter of the workspace had an impossible value; in a group, a
 * rank did not send what it must, or launched something else. For the first two: the workspace was then not all zero
 * before the launch, as after a launch that was aborted; or two launches used it at a time; or context_lengths changed
 * while a launch ran; or something else held the SMs for longer than the bound. Such a launch ends, but its results
 * are wrong, and so may be those of later launches on the workspace.
 *
 * This reads one word of host memory and does not wait, so it speaks of launches that have ended: synchronise first to
 * ask about a certain one. leanattn_plan_launch asks, too, and launches nothing after a fault. Replays of graphs do not
 * ask, so programs that only replay should call this now and then. Errors: workspace_corrupt (with the address of the
 * workspace), group_broken, invalid_argument, context_lost (in a child process that was forked after the engine was
 * made). */
LEANATTN_API leanattn_status leanattn_engine_check(const leanattn_engine* engine) LEANATTN_NOEXCEPT;

/* Forgets the fault that leanattn_engine_check reports. leanattn_plan_init_workspace does so itself, for the workspace
 * that the fault names. This is for programs that zero their workspaces in another way, or have freed this one: first
 * wait for all launches of the engine, and zero every workspace that they used. Errors: invalid_argument, context_lost
 * (in a child process that was forked after the engine was made). */
LEANATTN_API leanattn_status leanattn_engine_acknowledge(leanattn_engine* engine) LEANATTN_NOEXCEPT;

/* ---- Launch ---- */

/* The stride of a dimension whose entries are all the same memory, as frameworks expand tensors: 0, which as a stride
 * below stands for the dense one. For what is only read. */
#define LEANATTN_STRIDE_EXPANDED INT64_MIN

/* The arguments of one decode step: O = softmax(scale * Q K^T) V for each query token and query head. All pointers are
 * device pointers, and the memory stays the caller's. Strides count elements. 0 stands for the dense stride: of k and v
 * in the problem's layout with context_capacity tokens, of the others in the order below. LEANATTN_STRIDE_EXPANDED is
 * taken everywhere but for o and, with append, k and v. Bases and strides of q, k, v and o are multiples of 16 bytes,
 * of k and v with LEANATTN_SCALE_IN_ROW of 4 bytes.
 * With ragged_q, [batch, q_len, ...] below becomes [query tokens, ...]. */
typedef struct leanattn_decode_args {
  size_t struct_size;
  const void* q;                  /* [batch, q_len, q_heads, head_dim] */
  const void* k;                  /* [batch, kv_heads, context_capacity, head_dim] by its strides;
                                     paged: [pool_pages, kv_heads, page_size, head_dim] */
  const void* v;                  /* likewise, v_head_dim wide; latent: null, as are v_scale and v_new */
  void* o;                        /* [batch, q_len, q_heads, v_head_dim] */
  float* lse;                     /* [batch, q_len, q_heads], natural logarithm; null unless the problem has lse */
  const int32_t* context_lengths; /* [batch], in tokens; the kernel reads them and clamps them to
                                     [0, context_capacity]; selection_in_pool: not read, may be null */
  int64_t q_stride_batch, q_stride_head;
  int64_t k_stride_batch, k_stride_head, k_stride_token;
  int64_t v_stride_batch, v_stride_head, v_stride_token;
  int64_t o_stride_batch, o_stride_head;
  int32_t batch;            /* 0 to the plan's max_batch; 0: nothing is enqueued, and pointers may be null */
  int32_t context_capacity; /* tokens for which k and v have room in each request; paged: 0 */
  float scale;              /* softmax scale, positive; 0: 1 / sqrt(head_dim), but not if latent */
  int32_t reserved;
  /* The arguments of the problem's features, each of which is named first. Those of other features stay 0. */
  const int32_t* page_table; /* page_size: [batch, max_pages], numbers of pages in k and v, by page_table_stride; the
                                tokens of any other number, such as -1, are ignored as if they were masked.
                                selection_in_pool: null */
  const int32_t* q_offsets;  /* ragged_q: [batch + 1], where the query tokens of each request start; the first is 0 */
  const uint32_t* tree_mask; /* tree: [query tokens]; bit j says that it sees the request's query token j */
  const float* alibi_slopes; /* alibi: [q_heads] */
  const float* sink_logits;  /* sink_logits: [q_heads] */
  const float* k_scale;      /* one-byte kv_format: element * scale is the key; see leanattn_kv_scale. Null: all 1.
                                LEANATTN_KV_INT4: with zero points, not null. append: those of new tokens are written
                                where each token has its own */
  const float* v_scale;      /* likewise of the value */
  int64_t q_stride_token, o_stride_token; /* q_len > 1: between the query tokens of a request */
  int64_t page_table_stride;              /* between the rows of two requests; 0: max_pages */
  int64_t kv_scale_stride_batch, kv_scale_stride_head, kv_scale_stride_token; /* kv_scale token, in_row; with
                                LEANATTN_KV_NVFP4 those of k_block_scales and v_block_scales, in bytes */
  int64_t pool_pages; /* page_size: pages that k and v hold; k_stride_batch and v_stride_batch lead from page to page */
  int32_t max_pages;  /* page_size: entries of page_table for a request, which may have max_pages * page_size tokens */
  int32_t query_tokens;    /* ragged_q: the tokens for which q and o have room, at least the last of q_offsets, which
                              bounds    a launch with prefill; 0: batch * q_len */
  const void* k_new;       /* append: [batch, q_len, kv_heads, head_dim]; in a group the same on all ranks */
  const void* v_new;       /* likewise, v_head_dim wide */
  const float* rope_table; /* rope: [positions, rope_dim], each rope_dim / 2 cosines and then as many sines */
  int64_t k_new_stride_batch, k_new_stride_token, k_new_stride_head;
  int64_t v_new_stride_batch, v_new_stride_token, v_new_stride_head;
  /* selection_block: the blocks that each query token sees through each KV head, in any order: [batch, q_len,
   * selection_heads, selection_capacity] by selection_stride_*. Block b of a request has its tokens from
   * b * selection_block on, of which the query token sees those that its mask lets it see. A number that is no block of
   * the context or the pool, such as -1, is a hole. A block that is named twice counts twice. */
  const int32_t* selection;
  /* selection_block: [batch, q_len], how many entries of its lists count; clamped to [0, selection_capacity] */
  const int32_t* selected_counts;
  int64_t selection_stride_batch, selection_stride_token, selection_stride_head;
  int32_t selection_capacity; /* selection_block: entries of a list, holes included */
  int32_t selection_heads;    /* lists of a query token: kv_heads (0 means the same), or 1 that all KV heads share */
  /* context_parallel: [batch], tokens of the whole contexts, over all ranks. Needed where something depends on
   * positions: a window, alibi, a score, append, rope, or several query tokens with a causal mask. Where it is given,
   * ranks of an engine with LEANATTN_DEBUG compare it. context_lengths counts this rank's tokens, as k and v do. */
  const int32_t* full_context_lengths;
  /* context_parallel without context_interleave, where something depends on positions: [batch], where in the whole
   * context the tokens of this rank begin. Else null. */
  const int32_t* context_starts;
  /* second_cache: pages as those of k and v, of the same page_size and by the same strides. second_v: null if latent */
  const void* second_k;
  const void* second_v;
  const int32_t* second_page_table; /* [batch, second_max_pages] by second_page_table_stride, numbers of its pages */
  const int32_t* second_lengths; /* [batch, q_len]: each query token sees so many first tokens of its request's pages;
                                    clamped to [0, second_max_pages * page_size] */
  int64_t second_page_table_stride; /* 0: second_max_pages */
  int64_t second_pool_pages;        /* pages that second_k and second_v hold */
  int32_t second_max_pages;         /* entries of second_page_table for a request */
  int32_t reserved3;
  /* spans: [query tokens, 2], of each query token the index in its request's context of the first token of its span,
   * and of the one behind the last; both 0: it is in none. A span contains its query tokens, may end beyond the
   * context, and does not overlap another one of its request. Aligned to 8 bytes. */
  const int32_t* spans;
  /* packed_kv: [batch + 1], where the rows of each request begin in k and v, [context_capacity, kv_heads, head_dim] by
   * k_stride_token and k_stride_head, and those of v. context_capacity counts all of their rows, context_lengths is
   * null, and k_stride_batch and v_stride_batch mean nothing. For self attention they may be q_offsets. */
  const int32_t* kv_offsets;
  /* LEANATTN_KV_NVFP4: fp8 e4m3, [batch, kv_heads, context, head_dim / 16], or [pages, kv_heads, page_size, ...], by
   * kv_scale_stride_*. Element x of a block is x * its block scale * k_scale. Base and strides are multiples of the
   * largest power of two that divides head_dim / 16, or of 16. LEANATTN_KV_CONTIGUOUS in pages of a multiple of 16
   * tokens: all but the token stride, which is head_dim / 16, are multiples of 16. 0 is dense, as kv_layout says.
   * append: those of new tokens are written. */
  const void* k_block_scales;
  const void* v_block_scales; /* likewise of V */
} leanattn_decode_args;

/* Everything is 0 but struct_size: dense strides, the usual scale, no feature. */
static inline void leanattn_decode_args_init(leanattn_decode_args* args) {
  memset(args, 0, sizeof *args);
  args->struct_size = sizeof *args;
}

/* Enqueues one decode step on `stream` and returns, without allocation, lock or synchronisation. It may be called while
 * the stream is being captured, and the graph stays right when context_lengths change between replays. A request of
 * length 0 gets zeros and an LSE of -inf. A workspace serves one launch at a time: keep one for each stream, and one
 * for each graph that may run beside others. With LEANATTN_DEBUG=1 in the environment of leanattn_engine_create, a
 * launch is refused if its workspace is still in use on another stream or not all zero, if a pointer is not device
 * memory, or if a length, a query offset or, without a selection, a page is out of its range. This takes a lock, two
 * small kernels and a wait for each.
 *
 * On sm_90 and newer, a plan of a problem with `pdl` makes dependent launches, unless `pdl` of its info is 0: they
 * carry the attribute programmatic stream serialization, so that the kernel may start before the kernels in front of it
 * in the stream have ended. The caller promises this contract, which docs/api.md has in the same words:
 *   - A kernel that may still be running must not write context_lengths, full_context_lengths, context_starts,
 *     q_offsets, page_table, tree_mask, spans, alibi_slopes, sink_logits, k_scale, v_scale, rope_table, or the rows of
 *     k and v of any token but each request's last q_len: this launch reads them before it executes
 * griddepcontrol.wait.
 *   - It may write q, k_new, v_new, o, lse, the workspace, and the rows of k and v of each request's last q_len tokens
 *     (of one query token: token index context_length - 1): this launch uses and writes them only after the wait.
 *   - The kernel right before may still be running. If that one was launched with the attribute, too, and executes
 *     griddepcontrol.launch_dependents before its own wait, as the kernels of this library do, then so may the one
 *     before it, and so on.
 *   - The kernel before does not have to do anything. A launch gains time only if it executes
 *     griddepcontrol.launch_dependents early and leaves room on the SMs.
 *   - A kernel after this one that is launched with the attribute must execute griddepcontrol.wait before it reads o or
 *     lse, and before it writes anything that this launch reads or writes. Until then it may not rely on the kernel
 *     before this one having ended. A kernel without the attribute, a copy or a memset has to do nothing.
 *   - Consecutive launches of one stream, dependent or not, may share a workspace, because the wait lasts until the
 *     launch before has ended and its writes are visible.
 *   - With a selection this launch reads nothing before the wait, so that the kernel right before may write all of the
 *     above.
 *
 * Errors: invalid_argument (names the argument and its value), workspace_corrupt and group_broken (an earlier launch of
 * the engine ended with a fault, see leanattn_engine_check), not_prepared (the ranks of a group over NCCL are still
 * connecting), launch_failed, context_lost. With LEANATTN_DEBUG group_broken also says that ranks over NCCL launched
 * different things with the launch before; leanattn_engine_check does not know of that. Nothing was enqueued then, but
 * where a launch over NCCL fails part of it may run, and o and lse are not to be used. */
LEANATTN_API leanattn_status leanattn_plan_launch(const leanattn_plan* plan, const leanattn_decode_args* args,
                                                  void* workspace, leanattn_stream stream) LEANATTN_NOEXCEPT;

/* ---- Groups: ranks that hold a part of every context each, and merge their results ---- */

/* One rank's membership of a group. It belongs to the engine of the rank's GPU. docs/groups.md says how it works, and
 * docs/how-to/several-gpus.md how it is used. */
typedef struct leanattn_group leanattn_group;

/* The bytes of the description of a rank, by which the others reach it. */
#define LEANATTN_GROUP_BLOB_BYTES 256

/* A rank and its group. All ranks give the same size and memory_bytes. */
typedef struct leanattn_group_options {
  size_t struct_size;
  int32_t rank;         /* 0 to size - 1 */
  int32_t size;         /* ranks: the context_parallel of the problems, 2 to 8 */
  int64_t memory_bytes; /* of device memory for what the others send to this rank; the largest leanattn_group_bytes of
                           the problems that are to be launched. Where there are peers and NCCL it is taken twice */
  int32_t peers; /* ranks that reach each other's memory and merge their results inside the decode kernel. 0: all of
                    them. 1: none, so that results are brought together by NCCL. A divisor of size between: rank r has
                    the peers r - r % peers and so on, such as the GPUs of one host, and NCCL brings their results
                    together. size / peers is at most LEANATTN_MERGE_PARTS */
  int32_t reserved;
  void* memory; /* memory_bytes of device memory of the caller's on the engine's GPU for what peers send, at a multiple
                   of 256 bytes, such as a symmetric allocation. It belongs to the group until leanattn_group_destroy,
                   and the caller frees it then. Null: the group allocates it */
} leanattn_group_options;

/* Everything is 0 but struct_size. Set rank, size and memory_bytes at least. */
static inline void leanattn_group_options_init(leanattn_group_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
}

/* The memory_bytes that a group needs for launches of this problem with up to `max_batch` requests. Errors:
 * invalid_argument (also a problem whose context_parallel is not above 1), unsupported. */
LEANATTN_API leanattn_status leanattn_group_bytes(const leanattn_problem* problem, int32_t max_batch,
                                                  int64_t* bytes) LEANATTN_NOEXCEPT;

/* Makes a rank's part of a group: allocates and zeroes its memory on the engine's GPU, and waits for that. The ranks of
 * a group may be engines of one process, of one process for each GPU, or of several processes on one GPU; two engines
 * of one GPU can stand in for two ranks. The group belongs to the caller until leanattn_group_destroy, which must come
 * before leanattn_engine_destroy. It is then connected: to its peers, where it has any, by leanattn_group_connect, and
 * over NCCL, unless all ranks are peers, by leanattn_group_connect_nccl. Errors: invalid_argument, unsupported (the
 * driver lacks a function), out_of_memory, context_lost. */
LEANATTN_API leanattn_status leanattn_group_create(leanattn_engine* engine, const leanattn_group_options* options,
                                                   leanattn_group** group) LEANATTN_NOEXCEPT;

/* Writes LEANATTN_GROUP_BLOB_BYTES that describe this rank to `blob`, to be sent to the processes of its peers by any
 * means. They hold no secrets beyond a CUDA IPC handle, which processes of the same user may open. Errors:
 * invalid_argument (also a rank without peers), launch_failed (the memory cannot be exported), context_lost. */
LEANATTN_API leanattn_status leanattn_group_export(const leanattn_group* group, void* blob) LEANATTN_NOEXCEPT;

/* Maps the memory of the peers. `blobs` has the blobs of all peers in the order of their ranks, its own included,
 * LEANATTN_GROUP_BLOB_BYTES each: of all ranks, unless the options had other peers. Called once, on each rank, before
 * its first launch; no rank waits for another. Errors: invalid_argument (a blob is damaged, of another group size,
 * memory_bytes or library, or in the wrong place), unsupported (a GPU cannot reach another one's memory, or CUDA IPC is
 * not allowed: make the group over NCCL on all ranks; or memory of the caller's is not of cuMemAlloc, which is all that
 * CUDA IPC exports), launch_failed, context_lost. */
LEANATTN_API leanattn_status leanattn_group_connect(leanattn_group* group, const void* blobs) LEANATTN_NOEXCEPT;

/* The same where the caller has mapped the memory that all peers were given in their options, by any means: symmetric
 * memory of PyTorch or NVSHMEM, or fabric handles between hosts that NVLink joins. memory[p] is where this rank's GPU
 * reaches the memory of peer p; for the rank itself it is the address in its options. The array is read by this call
 * alone, and the memory stays mapped until leanattn_group_destroy. The group maps nothing then. Errors: those of
 * leanattn_group_connect, also where a peer was given no memory. */
LEANATTN_API leanattn_status leanattn_group_connect_mapped(leanattn_group* group, const void* blobs,
                                                           void* const* memory) LEANATTN_NOEXCEPT;

/* The bytes of NCCL's unique id, by which the ranks of a communicator find each other. */
#define LEANATTN_NCCL_ID_BYTES 128

/* The same type as ncclComm_t of nccl.h. */
typedef struct ncclComm* leanattn_nccl_comm;

/* Writes a new unique id of NCCL to `id`, LEANATTN_NCCL_ID_BYTES. One rank makes it, and sends it to all ranks that
 * exchange over NCCL with it by any means: to all ranks without peers; with peers, to those with the same r % peers. An
 * id is good for one communicator. NCCL listens on a port of this process for it. Errors: invalid_argument, unsupported
 * (there is no NCCL 2.14 or newer), launch_failed. */
LEANATTN_API leanattn_status leanattn_nccl_unique_id(void* id) LEANATTN_NOEXCEPT;

/* The communicator by which a rank exchanges with others: one of the two. */
typedef struct leanattn_nccl_options {
  size_t struct_size;
  const void* unique_id;   /* LEANATTN_NCCL_ID_BYTES: the group makes a communicator of its own, and aborts it when it
                              breaks or ends. Copied */
  leanattn_nccl_comm comm; /* a communicator of the caller's: rank r of the group is its rank r / peers of size / peers,
                              on the engine's GPU. It is of the NCCL that this library has loaded, and stays the
                              caller's, who does not destroy it before the group. After group_broken the caller aborts
                              it (ncclCommAbort) before the group is connected again or destroyed, because these wait
                              for its kernels */
} leanattn_nccl_options;

/* Everything is 0 but struct_size. Set unique_id or comm. */
static inline void leanattn_nccl_options_init(leanattn_nccl_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
}

/* Connects a group whose ranks are not all peers over NCCL, whose library is loaded at run time (LEANATTN_NCCL_LIB).
 * Called on all ranks before their first plan. With a unique id it returns at once, and a thread of the group waits for
 * the other ranks; leanattn_engine_plan_group waits for that thread, each step at most for a bound
 * (LEANATTN_JOIN_BOUND_MS). With a communicator of the caller's the ranks exchange a few bytes and wait for each other,
 * so that ranks of one process call it from a thread each, and without a bound where the communicator is a blocking
 * one. No other use of that communicator may be in progress, then and from a launch of the group until the GPU has done
 * it, because a thread of the group asks the communicator for errors meanwhile.
 *
 * A call on a group that is connected replaces its communicator, which is aborted if it is the group's own. So after
 * group_broken on any rank all ranks connect again, with another id or communicator, once no launch and no replay of a
 * graph of the group follows; such graphs are captured anew. Where there are peers, leanattn_group_reset follows. After
 * an error the group is not connected. Errors: invalid_argument (all ranks are peers, not exactly one of the
 * two, a communicator of other ranks or another GPU), unsupported (there is no NCCL 2.14 or newer), launch_failed (with
 * the words of NCCL), group_broken, out_of_memory, context_lost. */
LEANATTN_API leanattn_status leanattn_group_connect_nccl(leanattn_group* group,
                                                         const leanattn_nccl_options* options) LEANATTN_NOEXCEPT;

/* Makes a group usable again after group_broken, or after a launch of any of its ranks was aborted: zeroes the memory
 * of this rank, waits for the stream, and forgets a fault of this group. All ranks must do so, none while a launch of
 * any rank runs, and none may launch before all have: put a barrier of all ranks before and after it. Where ranks also
 * exchange over NCCL, leanattn_group_connect_nccl comes first; where all do, it is enough. Errors: invalid_argument,
 * launch_failed, group_broken (its communicator does not work any more), context_lost. */
LEANATTN_API leanattn_status leanattn_group_reset(leanattn_group* group, leanattn_stream stream) LEANATTN_NOEXCEPT;

/* Frees a rank's part of a group and unmaps the others'. No launch of any rank may run or follow, and no graph of one
 * be replayed: put a barrier of all ranks before it. A communicator of its own is aborted. A fault of this group is
 * forgotten, so that the engine's other launches go on; ask leanattn_engine_check before. Null is allowed. In a child
 * process that was forked after the group was made, nothing is freed. */
LEANATTN_API void leanattn_group_destroy(leanattn_group* group) LEANATTN_NOEXCEPT;

/* leanattn_engine_plan for a problem with context_parallel, on a group of this engine that is connected. All ranks must
 * launch plans of the same problem, with the same batch and scale, in the same order. Kernels of a rank wait for those
 * of the others, so ranks of one process make all their plans before they launch any, because loading a kernel may wait
 * for the GPU. The plan is valid until leanattn_engine_destroy and may be launched until leanattn_group_destroy.
 * Over NCCL it waits until all ranks are connected, and has the kernel for the rank's part alone (or for that of its
 * peers). A launch then enqueues that kernel between a small one and the exchange with its merge. It takes a lock,
 * waits until NCCL has prepared the exchange (LEANATTN_WAIT_BOUND_MS at most), and is no dependent launch. Launch on a
 * stream that was made, not on CU_STREAM_PER_THREAD, and not between ncclGroupStart and ncclGroupEnd of the same
 * thread, where the exchange would come after the merge. Errors: those of leanattn_engine_plan, invalid_argument (a
 * group of another engine or size, not connected, or with too little memory), group_broken (over NCCL: a rank did not
 * come). */
LEANATTN_API leanattn_status leanattn_engine_plan_group(leanattn_engine* engine, const leanattn_problem* problem,
                                                        const leanattn_shape* shape, leanattn_group* group,
                                                        leanattn_stream stream,
                                                        const leanattn_plan** plan) LEANATTN_NOEXCEPT;

/* ---- Merging: from the results over disjoint pieces of a context to the result over all of it ---- */

/* The most parts that one call merges. */
#define LEANATTN_MERGE_PARTS 8

/* The arguments of one merge. All pointers are device pointers, and the memory stays the caller's. Strides count
 * elements. */
typedef struct leanattn_merge_args {
  size_t struct_size;
  const void* o[LEANATTN_MERGE_PARTS];    /* of each part: [rows, dim] by o_stride_row */
  const float* lse[LEANATTN_MERGE_PARTS]; /* of each part: [rows], natural logarithm; -inf: the part saw no token */
  void* out_o;                            /* [rows, dim] by out_stride_row; may be one of the parts */
  float* out_lse;                         /* [rows]; may be one of the parts, or null */
  int64_t o_stride_row, out_stride_row;   /* 0: dim */
  int64_t rows;                           /* such as batch * q_heads; 0: nothing is enqueued, pointers may be null */
  int32_t parts;                          /* 1 to LEANATTN_MERGE_PARTS */
  int32_t dim;                            /* even */
  int32_t dtype;                          /* leanattn_dtype */
  int32_t reserved;
} leanattn_merge_args;

/* Everything is 0 but struct_size: dense strides. */
static inline void leanattn_merge_args_init(leanattn_merge_args* args) {
  memset(args, 0, sizeof *args);
  args->struct_size = sizeof *args;
}

/* Enqueues a merge on `stream`, in fp32: O = sum of w_i O_i with w_i = exp(LSE_i - LSE) and LSE = log sum exp(LSE_i).
 * With it, requests that share a prefix read it once, and a context may be split over several GPUs. The first call of
 * an engine compiles and loads the kernel; later calls only enqueue. Errors: invalid_argument, those of
 * leanattn_engine_plan, launch_failed, context_lost. */
LEANATTN_API leanattn_status leanattn_engine_merge_partials(leanattn_engine* engine, const leanattn_merge_args* args,
                                                            leanattn_stream stream) LEANATTN_NOEXCEPT;

/* ---- Tuning: measuring on this GPU which kernel and grid are fastest for a shape ---- */

/* How far a tuning is. The library fills it. */
typedef struct leanattn_tune_progress {
  size_t struct_size;
  const char* phase;   /* "wait" for another tuning of the engine, "start", then "screen", "sweep", "refine", "race",
                          "confirm"; valid during the call */
  int32_t shape;       /* which of the call's shapes is tuned, from 0 */
  int32_t shape_count; /* shapes of the call */
  int32_t done;        /* candidates of the phase that are measured */
  int32_t total;       /* candidates of the phase; 0: not known */
  double best_us;      /* the shortest median so far, in microseconds; 0: none */
  double elapsed_s;    /* seconds since the tuning began */
} leanattn_tune_progress;

/* Called several times a second on the thread that waits for the tuning, also when nothing is new. Anything but 0 stops
 * the tuning. It must not throw. */
typedef int32_t (*leanattn_tune_callback)(const leanattn_tune_progress* progress, void* context);

/* The limits of a tuning. */
typedef struct leanattn_tune_options {
  size_t struct_size;
  double budget_s;       /* seconds for all shapes together; 0: no limit but shape_budget_s */
  double shape_budget_s; /* seconds for each shape, on average; 0: 5, or what budget_s allows where that is given */
  int64_t memory_bytes;  /* the most device memory for the K and V of test data; larger shapes are left out.
                            0: 80 % of what is free */
  const char* program; /* file of the leanattn program. Null: LEANATTN_PROGRAM, else beside the library, else in PATH */
  leanattn_tune_callback progress; /* may be null; leanattn_engine_autotune ignores it */
  void* progress_context;          /* for `progress`; the caller's */
  int32_t retune;                  /* not 0: also tunes shapes that have an exact answer which is not stale */
  int32_t reserved;
} leanattn_tune_options;

/* The defaults: 5 seconds a shape, no progress, only shapes without an exact answer. */
static inline void leanattn_tune_options_init(leanattn_tune_options* options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
}

/* What became of one shape. */
typedef struct leanattn_tuned_shape {
  size_t struct_size;
  int32_t status;       /* leanattn_status: LEANATTN_OK where a plan is exact now; LEANATTN_INTERRUPTED where the budget
                           ended, or the caller stopped, before the shape was measured; LEANATTN_OUT_OF_MEMORY where test
                           data did not fit; else why the tuning ended */
  int32_t provenance;   /* leanattn_provenance of a plan now */
  int32_t measured;     /* not 0: by this call. 0 beside LEANATTN_OK: the answer was exact before */
  int32_t finished;     /* not 0: the search was complete. 0: the budget cut it short, and the best so far is kept */
  double median_us;     /* of the winner, in microseconds; 0: none */
  double read_limit_us; /* of a kernel that only reads the same bytes; 0: not measured by this call */
  double default_us;    /* of the default configuration; 0: not measured by this call */
  int32_t candidates;   /* that this call tried */
  int32_t rejected;     /* of these: not compiled, or not launched */
  int32_t incorrect;    /* of these: gave wrong results, and were not timed */
  int32_t reserved;
} leanattn_tuned_shape;

/* An empty result, for leanattn_engine_tune to fill. */
static inline void leanattn_tuned_shape_init(leanattn_tuned_shape* result) {
  memset(result, 0, sizeof *result);
  result->struct_size = sizeof *result;
}

/* Finds the fastest kernel and grid for `shape_count` shapes of a problem, stores them in tuning.db, and has the engine
 * use them: plans that are made from then on are exact. Plans that were made before stay as they are. `options` may be
 * null. `results` may be null, or has room for `shape_count` results. The elements of `shapes` and of `results` have
 * the struct_size of the first. max_batch of a shape plays no part.
 *
 * The tuning runs in a child process, the leanattn program of the library's own version, and its workers. Each
 * candidate is compared with an FP64 oracle there before it is timed. So one that computes something else, hangs,
 * crashes or breaks its CUDA context does no harm to this process, where only kernels that have passed are ever
 * launched. The call makes no CUDA call itself and may be made during stream captures. It waits for the child, which
 * ends with its budget, is asked to stop 3 seconds after it, and is killed 5 seconds later; it also ends when this
 * process does. The engine's tunings run one after the other, and shapes that another one has answered meanwhile are
 * not tuned again.
 *
 * Both processes share the GPU and its memory. Tune while the GPU is idle, such as at a warm-up before graphs are
 * captured: what runs beside a tuning makes its times long and its winners doubtful.
 *
 * Errors: invalid_argument, unsupported (a program of another version; the child has other SMs than the engine),
 * cache_unavailable (the engine has no cache on disk that it may write), not_found (no program), interrupted (stopped
 * by `progress`), out_of_memory (no shape fitted), context_lost, internal (the program failed; the message says how),
 * and those of databases and devices. `results` are filled all the same once the child has run. */
LEANATTN_API leanattn_status leanattn_engine_tune(leanattn_engine* engine, const leanattn_problem* problem,
                                                  const leanattn_shape* shapes, int32_t shape_count,
                                                  const leanattn_tune_options* options,
                                                  leanattn_tuned_shape* results) LEANATTN_NOEXCEPT;

/* When a shape is tuned whose look-up has no exact answer, or a stale one. */
typedef enum leanattn_autotune_mode {
  LEANATTN_AUTOTUNE_OFF = 0,        /* when leanattn_engine_tune or the leanattn program is told to */
  LEANATTN_AUTOTUNE_BACKGROUND = 1, /* from its first plan on, while the caller goes on with the present answer */
  LEANATTN_AUTOTUNE_WAIT = 2        /* in its first plan, which waits for the tuning */
} leanattn_autotune_mode;

/* Switches tuning on first use on or off. It is off when an engine is made. `options` has the limits: budget_s, which
 * is needed, is for all first uses together from this call on, and shape_budget_s for each; null is allowed for
 * LEANATTN_AUTOTUNE_OFF. Plans that were made before are looked up anew once. The first tuning that fails ends it, and
 * leanattn_engine_warnings says why; plans never fail for it. No tuning is started by a plan whose stream is being
 * captured. LEANATTN_AUTOTUNE_OFF stops what is tuned in the background, and waits for it. What runs beside a tuning
 * disturbs its times, so LEANATTN_AUTOTUNE_BACKGROUND is for GPUs that are often idle. Errors: invalid_argument,
 * cache_unavailable, not_found (no program), context_lost. */
LEANATTN_API leanattn_status leanattn_engine_autotune(leanattn_engine* engine, leanattn_autotune_mode mode,
                                                      const leanattn_tune_options* options) LEANATTN_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif /* LEANATTN_LEANATTN_H_ */
