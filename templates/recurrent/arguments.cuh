// recurrent/arguments.cuh -- LeanRecurrentArgs: the argument block of a step of a recurrent state, by value.
// ---
// Host and device compile this file.

// All pointers are device pointers. Strides count elements. The tokens of a request follow each other; those of all
// requests are the rows of q, k, v, o and of the gates. A slot below first_slot, or not below slot_count, is a null
// slot: it is neither read nor written.

// The short convolution of the channels of q, of k, or of v. Strides count elements.
struct LeanShortConv {
  const void* weight;  // [channels, width], the newest token's last
  const void* bias;    // [channels]; or null
  void* state;         // [slots, channels, tokens] by the strides, the newest token last
  long long slot_stride, channel_stride, token_stride;
};

struct LeanRecurrentArgs {
  const int* slots;          // [batch, slots_stride]: where states begin: entry 0, or accepted - 1
  const int* accepted;       // [batch]: tokens of the step before that were accepted, at least 1; or null: entry 0
  const int* token_offsets;  // [batch + 1]: the first token of each request; null: each has as many as there can be
  const void* q;             // [tokens, qk heads, K] by q_stride
  const void* k;             // [tokens, qk heads, K] by k_stride
  const void* v;             // [tokens, v heads, V] by v_stride
  const void* a;             // gates by a_stride: [tokens, v heads], or [tokens, v heads, K] with one for each channel
  const void* b;             // what updates are weighed with, by b_stride: [tokens, v heads]; or null
  const float* a_log;        // [v heads]: of gates that are worked out here
  const float* dt_bias;      // as one token of a: added to it; or null
  const float* skip;         // [v heads]: D; or null
  const void* z;             // [tokens, v heads, V] by z_stride: what the output is gated with; or null
  const float* norm_weight;  // [V]: of the output's norm, or [v heads, V]; or null
  char* state;               // [slots, v heads, V, K], or [.., K, V], by state_stride; 16-byte aligned
  void* o;                   // [tokens, v heads, V] by o_stride
  const int* out_slots;      // as slots: where states go; or null: back to where they were, or to slots with snapshots
  long long q_stride, k_stride, v_stride, a_stride, b_stride, o_stride, z_stride;  // from token to token
  long long state_stride;              // from slot to slot, in elements of the state
  int slots_stride, out_slots_stride;  // from request to request
  int slot_count, first_slot;
  float scale;        // of q
  float norm_eps;     // of the L2 norm of q and k
  float lower_bound;  // of the gates' logarithms, where they are bounded
  float output_eps;   // of the output's norm
#if !defined(__CUDACC__) || defined(LEAN_LONG_ARGUMENTS)

  // Other kernels have a shorter argument block, of which the driver copies no more.
  const void* erase;  // kinds with erasures of their own, by erase_stride: [tokens, v heads, K]
  const void* write;  // the same, by write_stride: [tokens, v heads, V] or [.., K]
  long long erase_stride, write_stride;
  LeanShortConv conv[3];  // of q, k and v, which hold what goes into it; its state lies in entry 0 of a request's slots
  unsigned* readers;      // [batch, qk heads]: CTAs that have read a state of q and k; all zero between launches
  const int* ring_spans;  // [batch, 2]: the first entry of a request's ring that counts, and how many do; or null
  float* ring_u;          // [slots, ring, v heads, V] by ring_u_stride: what was added at k
  float* ring_k;          // [slots, ring, qk heads, K] by ring_k_stride
  float* ring_w;          // [slots, ring, v heads], or [.., K], by ring_w_stride: factors of the decay
  long long ring_u_stride, ring_k_stride, ring_w_stride;  // from slot to slot
#endif
};
#if !defined(__CUDACC__) || defined(LEAN_LONG_ARGUMENTS)
static_assert(sizeof(LeanRecurrentArgs) == 464, "host and device must agree on the argument block");
#else
static_assert(sizeof(LeanRecurrentArgs) == 224, "host and device must agree on the argument block");
#endif
