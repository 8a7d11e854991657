// attend/bf16.cuh -- bf16 elements.
// ---
// Packing, and the matrix instruction with fp32 accumulation (PTX ISA, "mma.m16n8k16").
struct Bf16 {
  // lo goes to bits 0 to 15 and hi to bits 16 to 31, each rounded to nearest even.
  LEAN_DEVICE static u32 pack(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
  LEAN_DEVICE static float2 unpack(u32 x) {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
  }
};

// C[16 x 8] += A[16 x 16] B[16 x 8]. Lane (g = lane / 4, c = lane % 4) holds
//   a0: (g, 2c..2c+1)  a1: (g+8, 2c..2c+1)  a2: (g, 2c+8..2c+9)  a3: (g+8, 2c+8..2c+9)
//   b0: (2c..2c+1, g)  b1: (2c+8..2c+9, g)      C: (g, 2c) (g, 2c+1) (g+8, 2c) (g+8, 2c+1)
LEAN_DEVICE void mma(Bf16, float (&acc)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
      "%2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
