// standalone/merge_partials.cuh -- makes the result over a whole context of results over disjoint pieces of it, each O
// with its LSE (LeanAttention, section 3: softmax re-scaling is associative). This is a source of its own, not part of
// any decode kernel. Host and device share the argument block.

#define LEAN_MERGE_PARTS 8

struct LeanMergeArgs {
  const void* o[LEAN_MERGE_PARTS];         // parts: [rows, dim], 16-bit
  const float* lse[LEAN_MERGE_PARTS];      // parts: [rows], natural log
  void* out_o;                             // [rows, dim]; may be one of the parts
  float* out_lse;                          // [rows], or null; may be one of the parts
  long long o_stride_row, out_stride_row;  // elements
  long long rows;
  int parts;
  int dim;  // even
};
static_assert(sizeof(LeanMergeArgs) == 176, "host and device must agree on the argument block");

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
// parts alone is 0 and -inf.
template <class Element>
__device__ __forceinline__ void merge_rows(const LeanMergeArgs& args) {
  const float infinity = __int_as_float(0x7f800000);
  const long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= args.rows) return;
  float lse[LEAN_MERGE_PARTS], weight[LEAN_MERGE_PARTS], most = -infinity, sum = 0;
#pragma unroll
  for (int part = 0; part < LEAN_MERGE_PARTS; part++) {
    lse[part] = part < args.parts ? args.lse[part][row] : -infinity;
    most = fmaxf(most, lse[part]);
  }
#pragma unroll
  for (int part = 0; part < LEAN_MERGE_PARTS; part++) {
    weight[part] = lse[part] == -infinity ? 0.0f : expf(lse[part] - most);
    sum += weight[part];
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (int pair = threadIdx.x % 32; pair < args.dim / 2; pair += 32) {
    float2 o = make_float2(0, 0);
#pragma unroll
    for (int part = 0; part < LEAN_MERGE_PARTS; part++) {
      if (weight[part] == 0.0f) continue;
      const float2 x = Element::unpack(((const unsigned*)args.o[part])[(row * args.o_stride_row) / 2 + pair]);
      o.x = fmaf(x.x, weight[part], o.x), o.y = fmaf(x.y, weight[part], o.y);
    }
    ((unsigned*)args.out_o)[(row * args.out_stride_row) / 2 + pair] = Element::pack(o.x * inverse, o.y * inverse);
  }
  __syncwarp();  // all of the row's LSE are read before one may be overwritten
  if (threadIdx.x % 32 == 0 && args.out_lse != nullptr) args.out_lse[row] = sum == 0.0f ? -infinity : most + logf(sum);
}

extern "C" __global__ void __launch_bounds__(128) merge_partials_bf16(const __grid_constant__ LeanMergeArgs args) {
  merge_rows<MergeBf16>(args);
}
extern "C" __global__ void __launch_bounds__(128) merge_partials_fp16(const __grid_constant__ LeanMergeArgs args) {
  merge_rows<MergeFp16>(args);
}
#endif
