// kv/gatherers.cuh -- what the producer's warps that copy rows one by one have in common, whatever they copy.

// Arrives at the barrier once the copies that this thread has issued are there.
LEAN_DEVICE void arrive_with_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
