// standalone/begin_exchange.cuh -- what a rank of a group over NCCL does before its decode kernel: it says that a
// launch has begun. Compiled with standalone/merge_partials.cuh. Host and device share the argument block.

struct LeanBeginArgs {
  LeanExchangeProgress* progress;
  unsigned* launch;  // the number of launches of the rank, in device memory
};
static_assert(sizeof(LeanBeginArgs) == 16, "host and device must agree on the argument block");

#if defined(__CUDACC__)
extern "C" __global__ void __launch_bounds__(32) begin_exchange(const __grid_constant__ LeanBeginArgs args) {
  if (threadIdx.x != 0) return;
  const unsigned launch = *args.launch + 1;
  *args.launch = launch;
  *(volatile unsigned*)&args.progress->begun = launch;
}
#endif
