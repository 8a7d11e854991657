// kv_tensor.cuh -- load path "tensor": one producer warp moves whole steps with two tensor copies each (K and V; PTX
// ISA, "cp.async.bulk.tensor") into a ring that all warpgroups share; 128-byte swizzled, as the matrix unit reads them.
// It walks the line by itself, so the stream does not pause at the end of a segment.
//
// A stage is K then V, each kPanels panels of [kStepTokens][64 dims]. Both tensor maps have five dimensions: 64 dims,
// tokens, panels, KV heads, requests; tokens past the capacity arrive as zeros, those between context and capacity as
// whatever memory holds.

constexpr int kPanels = kHeadDim / 64;
constexpr int kPanelBytes = kStepTokens * 128;
constexpr int kOperandBytes = kPanels * kPanelBytes;
constexpr int kStageBytes = 2 * kOperandBytes;

struct alignas(64) LeanTensorMap {
  unsigned char opaque[128];
};  // CUtensorMap

struct KvRing {
  u32 stages;  // shared memory, 1024-byte aligned
  u32 full;    // mbarriers, one per stage: bytes have arrived
  u32 empty;   // one per stage: its readers are done
};

// A position in the ring: stage and the parity its barriers complete with.
struct RingPosition {
  u32 stage = 0, parity = 0;
  LEAN_DEVICE void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

LEAN_DEVICE void init_barrier(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
LEAN_DEVICE void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
LEAN_DEVICE void wait_barrier(u32 barrier, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
}

LEAN_DEVICE KvRing kv_ring(u32 stages) {
  __shared__ __align__(8) u64 barriers[2 * kStages];
  return {stages, shared_address(barriers), shared_address(barriers + kStages)};
}

// By one thread.
LEAN_DEVICE void init_ring(const KvRing& ring) {
#pragma unroll
  for (int s = 0; s < kStages; s++) {
    init_barrier(ring.full + (u32)(s * 8), 1);
    init_barrier(ring.empty + (u32)(s * 8), 4);  // the warps of the warpgroup that reads it
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

LEAN_DEVICE void prefetch_map(const LeanTensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

LEAN_DEVICE void copy_step(u32 destination, const LeanTensorMap& map, int token, int kv_head, int request,
                           u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %2, %4, "
      "%5}], [%6];" ::"r"(destination),
      "l"(&map), "r"(0), "r"(token), "r"(kv_head), "r"(request), "r"(barrier)
      : "memory");
}

// First token of a segment and the end of its tokens.
LEAN_DEVICE int first_token(const Segment& s) { return (int)(s.tile_begin * (u32)kTile); }
LEAN_DEVICE int end_token(const Segment& s) {
  return s.tile_end == s.tiles ? s.context_length : (int)(s.tile_end * (u32)kTile);
}

// The producer: requests every step of this CTA's range, as stages become free. By one thread.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap& k_map, const LeanTensorMap& v_map,
                         const KvRing& ring, Walk& walk) {
  RingPosition at;
  u32 filled = 0;
  do {
    const Segment& s = walk.segment;
    const int end = end_token(s);
#pragma unroll 1
    for (int token = first_token(s); token < end; token += kStepTokens) {
      const u32 full = ring.full + at.stage * 8, stage = ring.stages + at.stage * kStageBytes;
      if (filled == kStages) {
        wait_barrier(ring.empty + at.stage * 8, at.parity ^ 1);
      } else {
        filled++;
      }
      if (kPdl && token + kStepTokens >= s.context_length)
        wait_for_previous_kernel();  // the newest tokens may come from it
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(kStageBytes) : "memory");
      copy_step(stage, k_map, token, s.kv_head, s.request, full);
      copy_step(stage + kOperandBytes, v_map, token, s.kv_head, s.request, full);
      at.next();
    }
  } while (next_segment(args, walk));
}
