// standalone/begin_exchange.cuh -- what a rank of a group over NCCL does before its decode kernel: it says that a
// launch has begun, and makes the masks of several query tokens. Compiled with standalone/merge_partials.cuh. Host and
// device share the argument block and the masks.

struct LeanBeginArgs {
  LeanExchangeProgress* progress;
  unsigned* launch;            // the number of launches of the rank, in device memory
  unsigned* tree_mask;         // [query tokens], or null: no masks are made
  const int* context_lengths;  // [batch], tokens of this rank; the rest is read with tree_mask only
  const int* full_lengths;     // [batch], of the whole contexts
  const int* context_starts;   // [batch], where this rank's contiguous part begins; or null: units in turn
  const int* q_offsets;        // [batch + 1], or null: each request has query_tokens
  int batch, query_tokens, context_capacity;
  int rank, ranks, unit;  // units in turn: of so many tokens
};
static_assert(sizeof(LeanBeginArgs) == 80, "host and device must agree on the argument block");

#if defined(__CUDACC__)
#define LEAN_HD __host__ __device__ __forceinline__
#elif !defined(LEAN_HD)
#define LEAN_HD inline
#endif

// Which of the last `count` tokens that the rank holds of a context query token `t` of `count` sees, where query tokens
// are the last `count` tokens of the whole context and see what is not behind them: bit j speaks of the rank's token
// length - count + j. All tokens before these lie before all query tokens, because a rank holds tokens in their order.
LEAN_HD unsigned lean_mask_of_part(const LeanBeginArgs& args, int length, int full_length, int start, int count,
                                   int t) {
  unsigned word = 0;
  for (int j = 0; j < count; j++) {
    const int token = length - count + j;
    if (token < 0) continue;
    const int position =
        args.unit == 0 ? start + token : (token / args.unit * args.ranks + args.rank) * args.unit + token % args.unit;
    if (position <= full_length - count + t) word |= 1u << j;
  }
  return word;
}

#if defined(__CUDACC__)
extern "C" __global__ void __launch_bounds__(128) begin_exchange(const __grid_constant__ LeanBeginArgs args) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const unsigned launch = *args.launch + 1;
    *args.launch = launch;
    *(volatile unsigned*)&args.progress->begun = launch;
  }
  if (args.tree_mask == nullptr) return;
  const int index = blockIdx.x * blockDim.x + threadIdx.x, request = index / args.query_tokens,
            t = index - request * args.query_tokens;
  if (request >= args.batch) return;
  const int first = args.q_offsets != nullptr ? args.q_offsets[request] : request * args.query_tokens;
  const int count =
      args.q_offsets != nullptr ? min(args.q_offsets[request + 1] - first, args.query_tokens) : args.query_tokens;
  if (t >= count) return;
  const int length = min(max(args.context_lengths[request], 0), args.context_capacity);
  const int start = args.context_starts != nullptr ? args.context_starts[request] : 0;
  args.tree_mask[first + t] = lean_mask_of_part(args, length, args.full_lengths[request], start, count, t);
}
#endif
