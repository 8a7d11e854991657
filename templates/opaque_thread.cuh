// opaque_thread.cuh -- the index of a thread as something that the compiler does not know. Where registers are few, it
// must not keep in them, from step to step, all that follows from the index and is soon made again.

struct ThreadIndex {
  u32 x;
};
LEAN_DEVICE ThreadIndex thread_index() {
  ThreadIndex thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread.x));
  __builtin_assume(thread.x < 1024);
  return thread;
}
#define threadIdx thread_index()
