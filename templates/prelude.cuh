// prelude.cuh -- the types and PTX instructions that everything else is written with, without headers.
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define LEAN_DEVICE __device__ __forceinline__
#define LEAN_UNROLL _Pragma("unroll")

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

// What scores are measured from. The maximum of a row without any token yet is -inf; measured from 0, its weights are
// 2^-inf = 0, where a difference of two -inf would be NaN.
LEAN_DEVICE float reference_of(float max) { return max == kNegInf ? 0.0f : max; }

// With programmatic dependent launch everything before this call may run while the previous kernel of the stream does.
LEAN_DEVICE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// A barrier of the threads that hold results: the whole CTA but for producer warps, which never stop for one.
LEAN_DEVICE void sync_workers() {
  if constexpr (kProducerWarps == 0) {
    __syncthreads();
  } else {
    asm volatile("bar.sync %0, %1;" ::"n"(kFirstBarrier + 1), "n"(kWarps * 32) : "memory");
  }
}
// A barrier of all threads that serve this walk.
LEAN_DEVICE void sync_walkers() {
  if constexpr (kFewTokens == 0) {
    __syncthreads();
  } else {
    asm volatile("bar.sync %0, %1;" ::"n"(kFirstBarrier), "n"((kWarps + kProducerWarps) * 32) : "memory");
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

LEAN_DEVICE u32 load_shared_1(u32 address) {
  u32 r;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(r) : "r"(address));
  return r;
}

LEAN_DEVICE void store_shared_16(u32 address, const uint4& x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

LEAN_DEVICE void store_shared_zero_16(u32 address) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

LEAN_DEVICE void store_shared_zero_4(u32 address) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(0) : "memory");
}

// Loads of q and KV to registers. LEAN_LOAD is the instruction. In most launches nobody writes q or KV, and it is the
// non-coherent load. With programmatic dependent launch the previous kernel may still write them before
// wait_for_previous_kernel, and with append this kernel does: there it is a coherent load, which neither the compiler
// moves ahead of the writes nor an older copy in L1 answers.
template <class T>
LEAN_DEVICE T load_cached(const void* p) {
  T r;
  if constexpr (sizeof(T) == 16) {
    asm volatile(LEAN_LOAD ".v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p)
                 : "memory");
  } else {
    asm volatile(LEAN_LOAD ".u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
  }
  return r;
}

// Loads a T of KV if `wanted`, and leaves `r` as it is otherwise. KV is read once, so it is kept out of L1.
template <class T>
LEAN_DEVICE void load_kv_if(bool wanted, T& r, const void* p) {
  if constexpr (sizeof(T) == 16) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p " LEAN_LOAD
                 ".L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(r.x), "+r"(r.y), "+r"(r.z), "+r"(r.w)
                 : "l"(p), "r"((u32)wanted)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p " LEAN_LOAD ".L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
                 : "+r"(r.x), "+r"(r.y)
                 : "l"(p), "r"((u32)wanted)
                 : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p " LEAN_LOAD ".L1::no_allocate.u32 %0, [%1]; }"
                 : "+r"(r)
                 : "l"(p), "r"((u32)wanted)
                 : "memory");
  } else {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p " LEAN_LOAD ".L1::no_allocate.u16 %0, [%1]; }"
                 : "+h"(r)
                 : "l"(p), "r"((u32)wanted)
                 : "memory");
  }
}

// Whether this launch reads KV once. The copy engine's loads then leave L2 first (PTX ISA, "createpolicy"), ahead of
// the workspace, of q, of what another walk reads and of what other kernels left there. Where other row blocks, or
// requests that share pages, read KV again, it travels without a hint. So it does where V is read from K's rows by
// copies of its own.
constexpr bool kKvReadOnce = (kPageSize == 0 || kTakesFew) && kRowBlocks == 1 && (!kLatent || kProducerWarps > 0);
LEAN_DEVICE u64 evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A policy for stores to the workspace. Their lines leave L2 last, so that the next launch still finds them (PTX ISA,
// "createpolicy").
LEAN_DEVICE u64 evict_last() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Asks for a line of L2 that this launch writes and reads, and that should still be there in the next launch (PTX ISA,
// "prefetch").
LEAN_DEVICE void keep_in_l2(const void* p) { asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(p) : "memory"); }

// Copies 16 bytes to shared memory, or writes as many zeros (PTX ISA, "cp.async").
LEAN_DEVICE void copy_async_16(u32 destination, const char* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(valid ? 16 : 0)
               : "memory");
}

// The same with 8 bytes, and with 4. Unlike 16 they go by way of L1.
LEAN_DEVICE void copy_async_8(u32 destination, const char* source, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(destination), "l"(source), "r"(valid ? 8 : 0)
               : "memory");
}
LEAN_DEVICE void copy_async_4(u32 destination, const char* source, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(destination), "l"(source), "r"(valid ? 4 : 0)
               : "memory");
}

// mbarriers in shared memory. One completes a phase after `count` arrivals and the bytes that were expected.
LEAN_DEVICE void init_barrier(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
LEAN_DEVICE void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
LEAN_DEVICE void expect_bytes(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Whether the barrier has completed the phase of that parity. The thread may be suspended for a while before.
LEAN_DEVICE bool is_complete(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

// A cluster of two CTAs, each of which reaches the other's shared memory (PTX ISA, "Cluster of Cooperative Thread
// Arrays", "mapa"). Both have their data at the same addresses.
LEAN_DEVICE u32 cta_of_cluster() {
  u32 r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
LEAN_DEVICE u32 at_peer(u32 address) {
  u32 r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(cta_of_cluster() ^ 1));
  return r;
}
// The scope is not the cluster, because such a release would become a fence for the whole GPU. The arrival tells of
// reads by the matrix unit only, which are over.
LEAN_DEVICE void arrive_at_peer(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at_peer(barrier)) : "memory");
}
// The barrier of all threads of a cluster. Those that have ended are not waited for.
LEAN_DEVICE void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
LEAN_DEVICE void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// x * factor + y by the pipe that multiplies, which has time where others shift and mask. The factor counts in the
// grid's height, which is 1: of a power of two that the compiler knows it makes a shift (PTX ISA, "mad", "%nctaid").
LEAN_DEVICE u32 multiply_add(u32 x, u32 factor, u32 y) {
  u32 r, one;
  asm("mov.u32 %0, %%nctaid.y;" : "=r"(one));
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(factor * one), "r"(y));
  return r;
}

// (a | b) & mask in one instruction; from the expression the compiler may make two (PTX ISA, "lop3").
LEAN_DEVICE u32 masked_or(u32 a, u32 b, u32 mask) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xa8;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
  return r;
}

// The low or high 16-bit halves of two words, a's below b's.
LEAN_DEVICE u32 low_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
LEAN_DEVICE u32 high_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }

LEAN_DEVICE u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
LEAN_DEVICE u32 word(const uint2& v, int i) { return i == 0 ? v.x : v.y; }
