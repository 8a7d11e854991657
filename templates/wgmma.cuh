// wgmma.cuh -- what goes with warpgroup matrix instructions (PTX ISA, "wgmma.mma_async", sm_90a). Their shape is
// m64nNk16 with fp32 accumulation: of columns 8 * tile ... 8 * tile + 7, warp w and lane (g, c) of the warpgroup hold
// rows 16 w + g and 16 w + g + 8, columns 2c and 2c + 1. The text of the instructions, which names N / 2 results, is
// among the constants above.

constexpr int kWarpgroups = kWarps / 4;
// Else each warpgroup holds all rows of the output tile, and they take steps in turn.
constexpr bool kRowsAreSplit = kRows > 64;

// What an operand's descriptor says beside its address (PTX ISA, "Matrix descriptor": leading and stride byte offset).
// kSwizzled: atoms of eight rows of 128 bytes, `kStride` bytes from one to the next; the other dimension is one atom
// wide. Else: atoms of eight rows of 16 bytes; `kLeading` bytes from one to the next along the 16 inner elements.
template <int kLeading, int kStride, bool kSwizzled>
LEAN_DEVICE u64 matrix_descriptor(u32 address) {
  constexpr u64 kFixed =
      (u64)(kLeading / 16) << 16 | (u64)(kStride / 16) << 32 | (kSwizzled ? 1ull << 62 : 0ull);  // 1: 128-byte swizzle
  return kFixed | (address & 0x3ffff) >> 4;
}

// The compiler may move neither writes of accumulators behind this point nor reads of them in front of it.
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

// Barriers 1 and 2 are taken (sync_workers, and the start of the ring).
LEAN_DEVICE void sync_warpgroup(int warpgroup) { asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 3) : "memory"); }
