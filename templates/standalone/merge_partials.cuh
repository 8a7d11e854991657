// standalone/merge_partials.cuh -- makes the result over a whole context of results over disjoint pieces of it, each O
// with its LSE (LeanAttention, section 3: softmax re-scaling is associative). This is a source of its own, not part of
// any decode kernel. Host and device share the argument block.

#define LEAN_MERGE_PARTS 8

// How far a rank of a group over NCCL is, in page-locked host memory, where the host looks for launches that wait in
// vain.
struct LeanExchangeProgress {
  unsigned begun, ended;  // the number of the last launch that has begun, and of the last that has got all parts
};

// Strides count elements. A row is a query token of a query head.
struct LeanMergeArgs {
  const void* o[LEAN_MERGE_PARTS];          // parts: [tokens, heads, dim] by o_stride_*, 16-bit
  const float* lse[LEAN_MERGE_PARTS];       // parts: [tokens, heads] by lse_stride_token, natural log
  void* out_o;                              // [tokens, heads, dim] by out_stride_*; may be one of the parts
  float* out_lse;                           // [tokens, heads] by out_lse_stride_token, or null; may be one of the parts
  long long o_stride_token, o_stride_head;  // even
  long long lse_stride_token, out_lse_stride_token;
  long long out_stride_batch, out_stride_token, out_stride_head;  // even
  const float* sink_logits;           // [heads]: counted once in each row's denominator; or null
  const int* token_count;             // tokens from *token_count on are left out; or null: none is
  LeanExchangeProgress* progress;     // in which the launch says that all parts are there; or null
  const unsigned* launch;             // with progress: the launch's number
  int tokens, heads, request_tokens;  // tokens of a request, from which out_stride_batch leads to the next
  int parts;
  int dim;  // even
  int reserved;
};
static_assert(sizeof(LeanMergeArgs) == 256, "host and device must agree on the argument block");

#if defined(__CUDACC__)
struct MergeBf16 {
  static __device__ __forceinline__ float2 unpack(unsigned x) {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
  }
  static __device__ __forceinline__ unsigned pack(float lo, float hi) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
};
struct MergeFp16 {
  static __device__ __forceinline__ float2 unpack(unsigned x) {
    float2 r;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }"
        : "=f"(r.x), "=f"(r.y)
        : "r"(x));
    return r;
  }
  static __device__ __forceinline__ unsigned pack(float lo, float hi) {
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
};

// A warp takes a row. A part without tokens, whose LSE is -inf, counts for nothing, whatever its O holds. A row of such
// parts alone is 0, with an LSE of -inf or its sink logit. Parts are added up in their order.
template <class Element>
__device__ __forceinline__ void merge_rows(const LeanMergeArgs& args) {
  if (args.progress != nullptr && blockIdx.x == 0 && threadIdx.x == 0)
    *(volatile unsigned*)&args.progress->ended = *args.launch;
  const float infinity = __int_as_float(0x7f800000);
  const unsigned row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, token = row / (unsigned)args.heads,
                 head = row - token * (unsigned)args.heads;
  if (token >= (unsigned)args.tokens) return;
  if (args.token_count != nullptr && (int)token >= *args.token_count) return;
  float lse[LEAN_MERGE_PARTS], weight[LEAN_MERGE_PARTS];
  const float sink = args.sink_logits != nullptr ? args.sink_logits[head] : -infinity;
  float most = sink, sum = 0;
#pragma unroll
  for (int part = 0; part < LEAN_MERGE_PARTS; part++) {
    lse[part] = part < args.parts ? args.lse[part][token * args.lse_stride_token + head] : -infinity;
    most = fmaxf(most, lse[part]);
  }
#pragma unroll
  for (int part = 0; part < LEAN_MERGE_PARTS; part++) {
    weight[part] = lse[part] == -infinity ? 0.0f : expf(lse[part] - most);
    sum += weight[part];
  }
  if (sink != -infinity) sum += expf(sink - most);
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  const long long from = token * args.o_stride_token + head * args.o_stride_head;
  const unsigned request = token / (unsigned)args.request_tokens,
                 token_in_request = token - request * (unsigned)args.request_tokens;
  const long long to =
      request * args.out_stride_batch + token_in_request * args.out_stride_token + head * args.out_stride_head;
  for (int pair = threadIdx.x % 32; pair < args.dim / 2; pair += 32) {
    float2 o = make_float2(0, 0);
#pragma unroll
    for (int part = 0; part < LEAN_MERGE_PARTS; part++) {
      if (weight[part] == 0.0f) continue;
      const float2 x = Element::unpack(((const unsigned*)args.o[part])[from / 2 + pair]);
      o.x = fmaf(x.x, weight[part], o.x), o.y = fmaf(x.y, weight[part], o.y);
    }
    ((unsigned*)args.out_o)[to / 2 + pair] = Element::pack(o.x * inverse, o.y * inverse);
  }
  __syncwarp();  // all of the row's LSE are read before one may be overwritten
  if (threadIdx.x % 32 == 0 && args.out_lse != nullptr)
    args.out_lse[token * args.out_lse_stride_token + head] = sum == 0.0f ? -infinity : most + logf(sum);
}

extern "C" __global__ void __launch_bounds__(128) merge_partials_bf16(const __grid_constant__ LeanMergeArgs args) {
  merge_rows<MergeBf16>(args);
}
extern "C" __global__ void __launch_bounds__(128) merge_partials_fp16(const __grid_constant__ LeanMergeArgs args) {
  merge_rows<MergeFp16>(args);
}
#endif
