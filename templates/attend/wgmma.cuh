// attend/wgmma.cuh -- warpgroup matrix instructions (PTX ISA, "wgmma.mma_async", sm_90a), m64nNk16 with fp32
// accumulation: of columns 8 * tile ... 8 * tile + 7, warp w and lane (g, c) hold rows 16 w + g and 16 w + g + 8,
// columns 2c and 2c + 1. The instructions themselves stand behind this module.
// ---
// The generator writes them, because their text names N / 2 results.

extern __shared__ unsigned char dynamic_shared[];
// Where that of this walk begins: swizzle atoms start at multiples of 1024.
LEAN_DEVICE unsigned char* walk_shared() {
  if constexpr (kFewTokens > 0) return dynamic_shared + kSharedBefore + (-shared_address(dynamic_shared) & 1023);
  return dynamic_shared + (-shared_address(dynamic_shared) & 1023);
}

constexpr int kWarpgroups = kWarps / 4;
constexpr bool kAllTakeSteps = kRowsAreSplit || kColumnsAreSplit;             // otherwise warpgroups take steps in turn
constexpr int kPartProducers = kRowsAreSplit && !kGathers ? kStageParts : 1;  // warps that request one part each
constexpr int kStageReaders = kAllTakeSteps ? kWarps : 4;  // the warps that say when a stage, or a part of it, is free

// Hands registers of the producer's warpgroups to the others, to which the launch gives too few (PTX ISA, "setmaxnreg",
// which only whole warpgroups can do). A launch gives each thread a multiple of 8.
LEAN_DEVICE void hand_over_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
}
LEAN_DEVICE void take_registers() {
  constexpr int kThreadsOfCta = 32 * (kWarps + kProducerWarps);
  static_assert(kConsumerRegisters * 32 * kWarps + kProducerRegisters * 32 * kProducerWarps <=
                    65536 / kThreadsOfCta / kCtasPerSm / 8 * 8 * kThreadsOfCta,
                "warps trade the registers that the CTA has");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
}

// What an operand's descriptor says beside its address (PTX ISA, "Matrix descriptor": leading and stride byte offset).
// A swizzled operand is made of atoms of eight rows of 128 bytes, kStride bytes from one to the next, and is one atom
// wide in the other dimension. Any other is made of atoms of eight rows of 16 bytes, kStride bytes from one to the
// next, and kLeading bytes along the 16 inner elements.
template <int kLeading, int kStride, bool kSwizzled>
LEAN_DEVICE u64 matrix_descriptor(u32 address) {
  return (address & 0x3ffff) >> 4 | (u64)(kLeading / 16) << 16 | (u64)(kStride / 16) << 32 |
         (kSwizzled ? 1ull << 62 : 0ull);  // 1: 128-byte swizzle
}

// The descriptor of an operand that lies `bytes` behind. Its low word counts addresses in units of 16 bytes, so one
// addition makes it: what stands between two matrix instructions must take less time than the first of them.
LEAN_DEVICE u64 operand_behind(u64 descriptor, int bytes) {
  return descriptor >> 32 << 32 | (u32)descriptor + (u32)(bytes / 16);
}

// Keeps the compiler from moving writes of accumulators behind this point, or reads of them in front of it.
template <int kA>
LEAN_DEVICE void pin(float (&accumulators)[kA][4]) {
#pragma unroll
  for (int a = 0; a < kA; a++)
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+f"(accumulators[a][i]));
}
template <int kA, int kB>
LEAN_DEVICE void pin(float (&accumulators)[kA][kB][4]) {
#pragma unroll
  for (int a = 0; a < kA; a++) pin(accumulators[a]);
}
// What was written before, to pinned registers and to shared memory, is visible to the wgmmas after this.
LEAN_DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LEAN_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all but the last kPending groups are done.
template <int kPending>
LEAN_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <class Accumulators>
LEAN_DEVICE void wgmma_end(Accumulators& accumulators) {
  wgmma_commit();
  wgmma_wait<0>();
  pin(accumulators);
}
// Makes what this thread stored in shared memory visible to the matrix unit and the copy engine, after the next
// barrier.
LEAN_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barrier 1 is sync_workers', and barrier 2 that of the ring's start.
LEAN_DEVICE void sync_warpgroup(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(kFirstBarrier + 3 + warpgroup) : "memory");
}
