// prelude.cuh -- the few types and PTX instructions everything else is written with. No headers: NVRTC and nvcc compile
// it alike.
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define LEAN_DEVICE __device__ __forceinline__

constexpr float kNegInf = __builtin_bit_cast(float, 0xff800000u);
constexpr u32 kFullMask = 0xffffffffu;

LEAN_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

LEAN_DEVICE float sqrt_approx(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What maxima are measured from. Rows without any token yet have maximum -inf, and their weights 2^(-inf - 0) are 0;
// the difference of two -inf would be NaN.
LEAN_DEVICE float reference_of(float max) { return max == kNegInf ? 0.0f : max; }

// With programmatic dependent launch everything before this point may run while the previous kernel of the stream still
// does.
LEAN_DEVICE void wait_for_previous_kernel() {
  if constexpr (kPdl) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// A barrier of the threads that hold results: the whole CTA, or all but the producer warp, which never stops for one.
LEAN_DEVICE void sync_workers() {
  if constexpr (kProducerWarps == 0) {
    __syncthreads();
  } else {
    asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
  }
}

LEAN_DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

LEAN_DEVICE uint4 load_shared_16(u32 address) {
  uint4 r;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(address));
  return r;
}

LEAN_DEVICE uint2 load_shared_8(u32 address) {
  uint2 r;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "r"(address));
  return r;
}

LEAN_DEVICE u32 load_shared_4(u32 address) {
  u32 r;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(address));
  return r;
}

LEAN_DEVICE u32 load_shared_2(u32 address) {
  u32 r;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(r) : "r"(address));
  return r;
}

LEAN_DEVICE void store_shared_zero_16(u32 address) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

// Loads of q and KV. Nobody writes them during the launch, so they take the non-coherent path, and KV, which is read
// once, is kept out of L1. With programmatic dependent launch the previous kernel may still write them before
// wait_for_previous_kernel, and with append this one does: there they are coherent loads, which neither the compiler
// moves ahead of the writes nor an older copy in L1 answers.
constexpr bool kCoherentLoads = kPdl || kAppend;
LEAN_DEVICE void load_stream_16_if(bool wanted, uint4& r, const void* p) {
  if constexpr (kCoherentLoads) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; "
        "}"
        : "+r"(r.x), "+r"(r.y), "+r"(r.z), "+r"(r.w)
        : "l"(p), "r"((u32)wanted)
        : "memory");
  } else {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(r.x), "+r"(r.y), "+r"(r.z), "+r"(r.w)
        : "l"(p), "r"((u32)wanted));
  }
}

LEAN_DEVICE void load_stream_8_if(bool wanted, uint2& r, const void* p) {
  if constexpr (kCoherentLoads) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.relaxed.gpu.global.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
        : "+r"(r.x), "+r"(r.y)
        : "l"(p), "r"((u32)wanted)
        : "memory");
  } else {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
                 : "+r"(r.x), "+r"(r.y)
                 : "l"(p), "r"((u32)wanted));
  }
}

LEAN_DEVICE void load_stream_4_if(bool wanted, u32& r, const void* p) {
  if constexpr (kCoherentLoads) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.relaxed.gpu.global.L1::no_allocate.u32 %0, [%1]; }"
                 : "+r"(r)
                 : "l"(p), "r"((u32)wanted)
                 : "memory");
  } else {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.L1::no_allocate.u32 %0, [%1]; }"
                 : "+r"(r)
                 : "l"(p), "r"((u32)wanted));
  }
}

LEAN_DEVICE void load_stream_2_if(bool wanted, u32& r, const void* p) {
  if constexpr (kCoherentLoads) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.relaxed.gpu.global.L1::no_allocate.u16 %0, [%1]; }"
                 : "+r"(r)
                 : "l"(p), "r"((u32)wanted)
                 : "memory");
  } else {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.L1::no_allocate.u16 %0, [%1]; }"
                 : "+r"(r)
                 : "l"(p), "r"((u32)wanted));
  }
}

LEAN_DEVICE uint4 load_stream_16(const void* p) {
  uint4 r;
  if constexpr (kCoherentLoads) {
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p)
                 : "memory");
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p));
  }
  return r;
}

// KV that copy engines fetch leaves L2 first where it is read once (PTX ISA, "createpolicy"): before the workspace, q
// and whatever the kernels around this one left there. Where other row blocks, or requests that share pages, may read
// it again it travels without any hint; evict_normal is not the same, it costs pages 11 to 23 %. (Plain loads gain
// nothing by a policy, and cp.async with one is assembled by ptxas 13.0 to an illegal instruction where the destination
// is in part a uniform register.)
constexpr bool kKvReadOnce = kPageSize == 0 && kRowBlocks == 1;
LEAN_DEVICE u64 evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Asks for a line of L2 that this launch writes and reads, and that should still be there in the next.
LEAN_DEVICE void keep_in_l2(const void* p) { asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(p) : "memory"); }

LEAN_DEVICE uint4 load_query_16(const void* p) {
  uint4 r;
  if constexpr (kCoherentLoads) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p)
                 : "memory");
  } else {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  }
  return r;
}

LEAN_DEVICE u32 load_query_4(const void* p) {
  u32 r;
  if constexpr (kCoherentLoads) {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
  } else {
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(p));
  }
  return r;
}

// Low or high 16-bit halves of two words, as one word: {lo: from a, hi: from b}.
LEAN_DEVICE u32 low_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
LEAN_DEVICE u32 high_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }

LEAN_DEVICE u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
LEAN_DEVICE u32 word(const uint2& v, int i) { return i == 0 ? v.x : v.y; }
