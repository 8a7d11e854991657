// decode_mixed.cuh -- the kernel. A CTA has two walks at a time. That of `many` has the requests with many query
// tokens, which the matrix unit limits; that of `few` has the others, which memory limits. Each has its own line,
// warps, ring and workspace, and neither waits for the other.

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args, const __grid_constant__ many::LeanTensorMap k_map,
                const __grid_constant__ many::LeanTensorMap v_map, const __grid_constant__ few::LeanTensorMap few_k_map,
                const __grid_constant__ few::LeanTensorMap few_v_map) {
  // The shuffle tells the compiler that `warp` is uniform.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  many::Walk walk;
  few::Walk few_walk;
  const bool any = warp < kWarpsOfMany ? many::enter_cta(args, k_map, v_map, walk)
                                       : few::enter_cta(args, few_k_map, few_v_map, few_walk);
  // Registers are handed over by whole warpgroups (PTX ISA, "setmaxnreg").
  if (warp < many::kWarps) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kManyRegisters));
    many::attend_in_cta(args, any, walk);
  } else if (warp < kFirstFewWarp) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRequestRegisters));
    if (warp < kWarpsOfMany)
      many::produce_in_cta(args, k_map, v_map, any, walk);
    else
      few::produce_in_cta(args, few_k_map, few_v_map, any, few_walk);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFewRegisters));
    few::attend_in_cta(args, any, few_walk);
  }
}
