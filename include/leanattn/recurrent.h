/* recurrent.h -- the C ABI of layers that keep a recurrent state instead of KV (linear attention). Threads, errors and
 * struct_size are as in leanattn.h. docs/how-to/recurrent.md has the formulas. */
#ifndef LEANATTN_RECURRENT_H_
#define LEANATTN_RECURRENT_H_

#include "leanattn/leanattn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a token changes the state of its head. */
typedef enum leanattn_recurrence {
  LEANATTN_GATED_DELTA = 0, /* Qwen3-Next, Qwen3.5 */
  LEANATTN_KDA = 1,         /* Kimi Linear: a decay for each channel of K */
  LEANATTN_MAMBA2 = 2,      /* q, k and v are C, B and x */
  LEANATTN_LIGHTNING = 3,   /* also RetNet */
  LEANATTN_GLA = 4,
  LEANATTN_GDN2 = 5, /* Gated DeltaNet-2: kda with factors of channels, erase and write, in place of beta */
  LEANATTN_RWKV7 = 6 /* q is r; and what it has at erase is added at write */
} leanattn_recurrence;

/* Where the factors of a decay and the weights of updates come from. 0 is the usual form of the kind. */
typedef enum leanattn_gate_form {
  LEANATTN_GATES_USUAL = 0,    /* softplus; lightning: constant; gla: given; rwkv7: bounded */
  LEANATTN_GATES_GIVEN = 1,    /* a: fp32 logarithms of factors; b: fp32 weights */
  LEANATTN_GATES_SOFTPLUS = 2, /* -exp(a_log) softplus(a + dt_bias); beta is sigmoid(b), dt softplus(a + dt_bias) */
  LEANATTN_GATES_BOUNDED = 3,  /* lower_bound sigmoid(exp(a_log) (a + dt_bias)); beta is sigmoid(b) */
  LEANATTN_GATES_CONSTANT = 4  /* a_log: the logarithm of each head's factor */
} leanattn_gate_form;

/* What becomes of the output of a head. With a function f of z: o / sqrt(mean o^2 + output_eps) * norm_weight * f(z),
 * in fp32. Before sm_90 this needs a value_dim of 32, 64 or 128. */
typedef enum leanattn_output_gate {
  LEANATTN_OUTPUT_PLAIN = 0,
  LEANATTN_OUTPUT_SILU = 1,      /* Qwen3-Next, Qwen3.5 */
  LEANATTN_OUTPUT_SIGMOID = 2,   /* KDA */
  LEANATTN_OUTPUT_SILU_FIRST = 3 /* Mamba-2: x = o * silu(z), then x / sqrt(mean x^2 + output_eps) * norm_weight, with
                                    the mean over norm_heads heads, and norm_weight [v_heads, value_dim] */
} leanattn_output_gate;

/* Element type of the state in memory. Arithmetic is in fp32. */
typedef enum leanattn_state_format { LEANATTN_STATE_FP32 = 0, LEANATTN_STATE_BF16 = 1 } leanattn_state_format;

/* Bits of leanattn_recurrent_layer.flags. */
enum {
  LEANATTN_RECURRENT_NORMALISE = 1, /* q and k are L2-normalised: x / sqrt(sum x^2 + norm_eps) */
  LEANATTN_RECURRENT_RAGGED = 2,    /* each request has its own number of tokens, by token_offsets */
  LEANATTN_RECURRENT_SNAPSHOTS = 4, /* the state after each token is stored in a slot of its own */
  LEANATTN_RECURRENT_KEYS_FIRST = 8 /* states lie [slot_count, v_heads, key_dim, value_dim] */
};

/* What never changes in a model. */
typedef struct leanattn_recurrent_layer {
  size_t struct_size;
  int32_t recurrence; /* leanattn_recurrence */
  int32_t gates;      /* leanattn_gate_form */
  int32_t qk_heads;   /* heads of q and k */
  int32_t v_heads;    /* of v and of the state; a multiple of qk_heads */
  int32_t key_dim;    /* K: columns of a head's state; a multiple of 32 up to 256 */
  int32_t value_dim;  /* V: its rows; likewise */
  int32_t dtype;      /* leanattn_dtype of q, k, v, o, and of gates that are not given */
  int32_t state;      /* leanattn_state_format */
  int32_t tokens;     /* the most of a request in a step, 1 to 16; 0: 1 */
  int32_t flags;      /* LEANATTN_RECURRENT_* */
  int32_t output;     /* leanattn_output_gate */
  int32_t conv_width; /* tokens of the short convolution that q, k and v go through first, 2 to 4; 0: none */
  int32_t norm_heads; /* LEANATTN_OUTPUT_SILU_FIRST: neighbouring heads that are normalised together; 0: 1. Beyond 1
                         from sm_90 on, and as many CTAs of value_dim rows at most as a cluster has: 8, or 16 on sm_90
                         and sm_100 */
  int32_t ring; /* entries of a slot's ring, 2 * tokens to 16; 0: none. Not with snapshots, not for rwkv7, and with
                   a conv_width for one token only */
} leanattn_recurrent_layer;

/* Everything is 0 but struct_size. Set the heads and dims at least. */
static inline void leanattn_recurrent_layer_init(leanattn_recurrent_layer* layer) {
  memset(layer, 0, sizeof *layer);
  layer->struct_size = sizeof *layer;
}

/* The short convolution of the channels of q (qk_heads * key_dim), of k, or of v (v_heads * value_dim): a channel of a
 * token becomes silu(bias + sum of weight * input) over its last conv_width tokens. The state has the inputs before
 * those of the step, the newest last: conv_width - 1 of them, and with snapshots tokens - 1 more, of which the next
 * step begins at number accepted - 1. It is changed in place, or goes to out_slots; with snapshots it lies in entry 0
 * of a request's slots. Parts of packed arrays are pointers to their first channels. */
typedef struct leanattn_short_conv {
  const void* weight;                                /* [channels, conv_width], in dtype, the newest token's last */
  const void* bias;                                  /* [channels], in dtype; or null */
  void* state;                                       /* [slot_count, channels, tokens] by the strides, in dtype */
  int64_t slot_stride, channel_stride, token_stride; /* in elements; 0: dense */
} leanattn_short_conv;

/* The arguments of one step. All pointers are device pointers, and the memory stays the caller's. Strides count
 * elements, from token to token, and 0 is the dense one. q, k and v may be parts of one row, such as the output of the
 * short convolution. Rows of q and k begin at multiples of 16 bytes, unless they go through the convolution here. */
typedef struct leanattn_recurrent_args {
  size_t struct_size;
  const void* q; /* [tokens, qk_heads, key_dim] by q_stride */
  const void* k; /* [tokens, qk_heads, key_dim] by k_stride */
  const void* v; /* [tokens, v_heads, value_dim] by v_stride */
  const void* a; /* gates by a_stride: [tokens, v_heads], but kda, gla, gdn2 and rwkv7 [tokens, v_heads, key_dim]; fp32
                    if they are given, else dtype; constant gates: null */
  const void* b; /* likewise [tokens, v_heads] by b_stride: what beta is made of, or beta; mamba2 with
                    given gates: dt. Otherwise null */
  const float* a_log;       /* [v_heads]; given gates: null */
  const float* dt_bias;     /* as one token of a; or null: zeros */
  const float* skip;        /* [v_heads]: D of mamba2. Otherwise null */
  const void* z;            /* gated output: [tokens, v_heads, value_dim] by z_stride, in dtype. Otherwise null */
  const float* norm_weight; /* gated output: [value_dim], or [v_heads, value_dim]. Otherwise null */
  void* state;              /* [slot_count, v_heads, value_dim, key_dim] by state_stride, aligned to 16 bytes; with
                               LEANATTN_RECURRENT_KEYS_FIRST [slot_count, v_heads, key_dim, value_dim] */
  void* o;                  /* [tokens, v_heads, value_dim] by o_stride; zeros of a request with a null slot */
  const int32_t* slots;     /* [batch] by slots_stride: each request's slot, where its state is read and written;
                               with snapshots [batch, tokens]: where the state after each token goes. A slot below
                               first_slot, or not below slot_count, is a null slot: neither read nor written */
  const int32_t* out_slots; /* as slots, by out_slots_stride: where states go instead; or null */
  const int32_t* accepted;  /* snapshots: [batch], tokens of the request's step before that were accepted, from 1 on:
                               its state is read from entry accepted - 1 of its slots; or null: 1 each */
  const int32_t* token_offsets; /* ragged: [batch + 1], where each request's tokens begin; they do not fall */
  int64_t q_stride, k_stride, v_stride, a_stride, b_stride, o_stride, z_stride;
  int64_t state_stride;                   /* from slot to slot, a multiple of 16 bytes */
  int32_t batch;                          /* requests, up to 65535; 0: nothing is enqueued, pointers may be null */
  int32_t slot_count;                     /* slots of the pool */
  int32_t first_slot;                     /* 1 where slot 0 is a null slot, else 0 */
  int32_t slots_stride, out_slots_stride; /* from request to request */
  float scale;       /* of q; 0: 1 / sqrt(key_dim) for gated_delta, kda, gla and gdn2, 1 for others */
  float norm_eps;    /* 0: 1e-6 */
  float lower_bound; /* of bounded gates; 0: -5 */
  float output_eps;  /* of a gated output; 0: 1e-6 */
  int32_t reserved;
  leanattn_short_conv q_conv, k_conv, v_conv; /* of layers with a conv_width */
  const void* erase; /* gdn2: [tokens, v_heads, key_dim] by erase_stride, in dtype: what the state has at k times
                        sigmoid of it, or it itself with given gates, is taken out. rwkv7: vectors at which the state is
                        read before it decays. Otherwise null */
  const void* write; /* gdn2: [tokens, v_heads, value_dim] by write_stride: v is multiplied with the same of it. rwkv7:
                        [tokens, v_heads, key_dim], where what was read is added. Otherwise null */
  int64_t erase_stride, write_stride;
  uint32_t* readers;         /* the same: [batch, qk_heads], all zero before the first launch, as each launch leaves it;
                                launches that may run at the same time have memory of their own */
  const int32_t* ring_spans; /* layers with a ring: [batch, 2], aligned to 8 bytes: the first entry of the ring of each
                                request's slot that counts, from 0 on, and how many do, ring - tokens at most. A launch
                                only reads them; docs/how-to/recurrent.md says what they are in the next step */
  float* ring_u;             /* [slot_count, ring, v_heads, value_dim] by ring_u_stride: what tokens added at k */
  float* ring_k;             /* [slot_count, ring, qk_heads, key_dim] by ring_k_stride. Both are aligned to 16 bytes */
  float* ring_w; /* [slot_count, ring, v_heads] by ring_w_stride, or [.., key_dim] with a decay for each channel of K,
                    then aligned to 16 bytes: factors of the decay */
  int64_t ring_u_stride, ring_k_stride, ring_w_stride; /* from slot to slot */
} leanattn_recurrent_args;

/* Everything is 0 but struct_size. */
static inline void leanattn_recurrent_args_init(leanattn_recurrent_args* args) {
  memset(args, 0, sizeof *args);
  args->struct_size = sizeof *args;
}

/* A plan: a loaded kernel for one layer and about so many requests. */
typedef struct leanattn_recurrent_plan leanattn_recurrent_plan;

/* Finds the kernel for steps of about `batch` requests, which decides how fast a launch is, never whether it is right:
 * the tuned one of this batch or of one near, else by a rule. Compiles and loads it the first time, and takes a lock.
 * The plan belongs to the engine, and is valid until leanattn_engine_destroy. Errors: invalid_argument, unsupported,
 * not_prepared (the kernel is not loaded, and the stream is being captured), nvrtc_missing, compile_failed,
 * kernel_rejected, load_failed, out_of_memory, context_lost.
 */
LEANATTN_API leanattn_status leanattn_engine_recurrent_plan(leanattn_engine* engine,
                                                            const leanattn_recurrent_layer* layer, int32_t batch,
                                                            leanattn_stream stream,
                                                            const leanattn_recurrent_plan** plan) LEANATTN_NOEXCEPT;

/* Enqueues one step and returns. It allocates nothing and waits for nothing, takes any batch, and may be captured: a
 * replay reads slots, accepted, token_offsets and ring_spans anew. Two requests of a step must not write the same slot,
 * nor one read what another writes. Errors: invalid_argument (names the argument and its value), launch_failed,
 * context_lost.
 */
LEANATTN_API leanattn_status leanattn_recurrent_plan_launch(const leanattn_recurrent_plan* plan,
                                                            const leanattn_recurrent_args* args,
                                                            leanattn_stream stream) LEANATTN_NOEXCEPT;

/* The name of a plan's kernel. Valid as long as the plan. Null for null. */
LEANATTN_API const char* leanattn_recurrent_plan_kernel(const leanattn_recurrent_plan* plan) LEANATTN_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif /* LEANATTN_RECURRENT_H_ */
