// wgmma.cuh -- warpgroup matrix instructions on operands in shared memory (PTX ISA, "wgmma.mma_async", sm_90a). Shapes
// are m64n8k16 with fp32 accumulation: the accumulator of a warpgroup's warp w, lane (g, c) holds rows 16 w + g and 16
// w + g + 8, columns 2c and 2c + 1.

// What an operand's descriptor says beside its address. Matrices here are one swizzle atom of 8 rows wide in their
// strided dimension, so one stride, between atoms along the other dimension, describes them (PTX ISA, "Matrix
// descriptor": leading and stride byte offset).
template <int kAtomStride, bool kSwizzled>
LEAN_DEVICE u64 matrix_descriptor(u32 address) {
  constexpr u64 kStride = kAtomStride / 16;
  constexpr u64 kFixed = kStride << 16 | kStride << 32 | (kSwizzled ? 1ull << 62 : 0ull);  // 1: 128-byte swizzle
  return kFixed | (address & 0x3ffff) >> 4;
}

// D[64 x 8] = A[64 x 16] B[16 x 8] + (accumulate ? D : 0). Transposed: the operand's rows (A: tokens or dims, B: query
// rows) are adjacent in shared memory instead of its 16 inner elements.
template <bool kTransposeA, bool kTransposeB>
LEAN_DEVICE void wgmma(float (&d)[4], u64 a, u64 b, bool accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32." LEAN_ELEMENT "." LEAN_ELEMENT
      " {%0, %1, %2, %3}, %4, %5, p, 1, 1, %7, %8; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b), "r"((u32)accumulate), "n"((int)kTransposeA), "n"((int)kTransposeB));
}

// The compiler may move neither writes of accumulators behind this point nor reads of them in front of it.
template <int kA, int kB>
LEAN_DEVICE void pin(float (&accumulators)[kA][kB][4]) {
#pragma unroll
  for (int a = 0; a < kA; a++)
#pragma unroll
    for (int b = 0; b < kB; b++)
#pragma unroll
      for (int i = 0; i < 4; i++) asm volatile("" : "+f"(accumulators[a][b][i]));
}
// Registers (pinned ones) and shared memory written before are visible to the wgmmas after.
LEAN_DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
template <class Accumulators>
LEAN_DEVICE void wgmma_end(Accumulators& accumulators) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  pin(accumulators);
}
// Shared memory written by this thread's stores is visible to the matrix unit and the copy engine after the next
// barrier.
LEAN_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
