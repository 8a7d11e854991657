// decode_wgmma.cuh -- the kernel.

extern "C" __global__ void __launch_bounds__(kThreads + 32 * kProducerWarps, kCtasPerSm)
    KERNEL_NAME(const __grid_constant__ LeanDecodeArgs args, const __grid_constant__ LeanTensorMap k_map,
                const __grid_constant__ LeanTensorMap v_map) {
  Walk walk;
  const bool any = enter_cta(args, k_map, v_map, walk);
  if (threadIdx.x >= kThreads) {
    if constexpr (kConsumerRegisters > 0) hand_over_registers();
    return produce_in_cta(args, k_map, v_map, any, walk);
  }
  if constexpr (kConsumerRegisters > 0) take_registers();
  attend_in_cta(args, any, walk);
}
