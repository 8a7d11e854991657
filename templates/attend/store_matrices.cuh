// attend/store_matrices.cuh -- results of matrix instructions, as 16-bit elements, go to shared memory.

// Stores four 8 x 8 matrices of 16-bit elements to shared memory, of which lane (g, c) has elements 2c and 2c + 1 of
// row g. address: that of row lane % 8 of matrix lane / 8 (PTX ISA, "stmatrix"). To be called by a whole warp.
LEAN_DEVICE void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
#else
  const u32 words[4] = {a, b, c, d};
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 row = __shfl_sync(kFullMask, address, i * 8 + lane / 4);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(row + (u32)(lane % 4 * 4)), "r"(words[i]) : "memory");
  }
#endif
}
