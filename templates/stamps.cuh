// stamps.cuh -- at what time a CTA reaches each moment of its work, for measurements (bench/phases). Host and device
// compile this file.

// The moments at which a thread of a CTA takes a stamp, in this order. In a CTA with several segments, the stamps of
// the last segment stay, except for kPlaced and, where a ring is filled ahead, kRequested: these are the first
// segment's.
enum LeanMoment {
  kStarted,    // the thread is at its first instruction
  kPlaced,     // it knows the CTA's range of the line
  kRequested,  // it has asked for the KV that fits into the ring or registers; tensor: the producer is about to
  kStreamed,   // its warp has attended to its last KV
  kGathered,   // the states of all warps are in shared memory; with roles: the results are complete in registers
  kFinished,   // the partial or result is stored; with tickets the last CTA has merged, too
  kDone,       // nothing is left to do
  kMoments
};

struct LeanStamp {
  unsigned clock;  // cycles of the CTA's SM, modulo 2^32; each SM counts its own
  unsigned timer;  // nanoseconds of the GPU (PTX ISA, "%globaltimer"), modulo 2^32; an H200's timer ticks every 32
};

#if defined(__CUDACC__)
// Stamps lie where the LSE would, which such kernels do not write: [grid, kMoments].
LEAN_DEVICE void stamp(const LeanDecodeArgs& args, LeanMoment moment, u32 thread = 0) {
  if (threadIdx.x != thread) return;
  LeanStamp* const to = (LeanStamp*)args.lse + blockIdx.x * kMoments + moment;
  asm volatile(
      "{ .reg .u32 c, t; mov.u32 c, %%clock; mov.u32 t, %%globaltimer_lo; st.global.v2.u32 [%0], {c, t}; }" ::"l"(to)
      : "memory");
}
#endif
