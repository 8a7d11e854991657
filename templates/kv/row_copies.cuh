// kv/row_copies.cuh -- tools for copying and converting rows of bytes: 16-byte copies, a barrier for each warp's
// copies, and values of bytes.

// Where rows wait in the stages, what the producer has beside the ring: the scales of each stage's rows, if they have
// some, and a barrier for each of its warps, which completes once the copies of its 32 lanes are there.
struct RowBuffers {
  __align__(8) StoredScale scales[kStages][kRowGroup > 0 ? kStepTokens : 1][kScalesOfRow];
  u64 arrived[kGatherWarps][kStages];
};
LEAN_DEVICE RowBuffers& row_buffers() {
  __shared__ __align__(16) RowBuffers buffers;
  return buffers;
}
LEAN_DEVICE u32 arrived_barrier(u32 stage) { return shared_address(&row_buffers().arrived[gather_warp()][stage]); }

// Where rows wait in a buffer: the barrier of this warp's, which completes once they are there.
LEAN_DEVICE u32 row_barrier() {
  __shared__ __align__(8) u64 barriers[kGatherWarps];
  return shared_address(&barriers[gather_warp()]);
}
// To be called by one lane.
LEAN_DEVICE void init_row_barrier() {
  init_barrier(row_barrier(), 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Copies a row as it is, or other bytes that are a multiple of 16.
template <int kBytes = kRowBytes>
LEAN_DEVICE void copy_row(u32 destination, const char* row, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(row), "n"(kBytes), "r"(barrier)
      : "memory");
}

// Whether the barrier has completed the phase of that parity by now, in the eyes of the whole warp (PTX ISA,
// "mbarrier.test_wait").
LEAN_DEVICE bool is_complete_now(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return __all_sync(kFullMask, done != 0);
}

// Makes what this warp's lanes have stored in shared memory visible to the copy engine, and to the matrix unit of those
// that wait for arrive_for_warp.
LEAN_DEVICE void publish_rows() {
  fence_async_proxy();
  __syncwarp();
}

// Says of parts of a stage, by the barriers of its first part on, that this warp's rows are there, which are published.
// Each barrier counts 33 arrivals of a warp, as where each of its lanes arrives with its copies and one of them once
// more.
static_assert(kGatherArrivals == kGatherWarps * 33, "so many arrivals make a part of a stage full");
template <int kFirst, int kEnd>
LEAN_DEVICE void arrive_for_warp(u32 barriers) {
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int part = kFirst; part < kEnd; part++)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 33;" ::"r"(barriers + (u32)(part * 8)) : "memory");
  }
}

// Two fp8 e4m3 values, the low bytes of a word, times their scale, as bf16 (PTX ISA, "cvt"). fp16 has every e4m3 value.
LEAN_DEVICE u32 scaled_pair(u32 bytes, float scale) {
  u32 halves;
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo; }" : "=r"(halves) : "r"(bytes));
  float x, y;
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }"
      : "=f"(x), "=f"(y)
      : "r"(halves));
  if constexpr (kRowPlane == 0) return Element::pack(x * scale, y * scale);
  // A power of two multiplies both at once, as exactly.
  u32 product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(Element::pack(x, y)), "r"(Element::pack(scale, scale)));
  return product;
}

// Two bytes, the low ones of a word, as operands of the matrix instructions. Where their columns have no scale of their
// own the conversion is exact, and the scale of the cache multiplies scores and results later.
LEAN_DEVICE u32 operands_of_two(u32 bytes, float scale) {
  if constexpr (kRowGroup > 0) {
    return scaled_pair(bytes, scale);
  } else {
    return expand_pair(bytes, 0);
  }
}

// Eight neighbouring columns, the bytes of two words.
LEAN_DEVICE uint4 operands_of_eight(u32 low, u32 high, float scale) {
  return make_uint4(operands_of_two(low, scale), operands_of_two(low >> 16, scale), operands_of_two(high, scale),
                    operands_of_two(high >> 16, scale));
}

// Two values as fp8 e4m3, rounded to nearest and limited to +-448; the low bytes of a word (PTX ISA, "cvt").
LEAN_DEVICE u32 e4m3_pair(float low, float high) {
  unsigned short y;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
  return y;
}

// Stores 16 bytes where they are at this address in the other CTA, and says so at its barrier (PTX ISA, "st.async").
LEAN_DEVICE void store_at_peer_16(u32 address, const uint4& x, u32 barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   at_peer(address)),
               "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(at_peer(barrier))
               : "memory");
}
// Expects bytes of the other CTA in the phase at hand, which does not complete before this thread arrives.
LEAN_DEVICE void expect_from_peer(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
