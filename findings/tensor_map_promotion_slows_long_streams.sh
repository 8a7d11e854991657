#!/usr/bin/env bash
# Needs a Hopper GPU (sm_90), and takes nvcc 13.0 from PATH or else from NVIDIA's wheels.
#
# One would guess: CU_TENSOR_MAP_L2_PROMOTION_L2_256B helps whoever streams whole rows through tensor copies, and at worst changes nothing, since
# every byte is read anyway.
# What happens: a stream of a gigabyte takes longer with it, 258 us instead of 238 on an H200. One of 16 MB took 12.4 us instead of 11.9.
# Why it matters: examples set it once for all sizes. It has to be timed with the bytes that a launch reads.
source "$(dirname "$0")/common.bash"
need_gpu 90
need_nvcc
cat >"$work/stream.cu" <<'CUDA'
#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#define OK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { std::printf("%s\n", cudaGetErrorString(e)); return 2; } } while (0)

constexpr int kColumns = 64, kRows = 64, kBox = kColumns * kRows * 2, kStages = 12;  // boxes of bf16, 128 bytes wide

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// CTA c reads its contiguous part of the boxes of a [tokens, 2 * 64] tensor, the two halves of a row one after the other.
__global__ void __launch_bounds__(32) read_all(const __grid_constant__ CUtensorMap map, int boxes, unsigned* out) {
  extern __shared__ char dynamic[];
  char* const ring = dynamic + (-at(dynamic) & 1023);
  __shared__ std::uint64_t full[kStages];
  if (threadIdx.x != 0) return;
  for (auto& barrier : full) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at(&barrier)));
  asm volatile("fence.mbarrier_init.release.cluster;");
  const int begin = (long long)boxes * blockIdx.x / gridDim.x, end = (long long)boxes * (blockIdx.x + 1) / gridDim.x;
  const auto copy = [&](int box, int stage) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(&full[stage])), "r"(kBox) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(at(ring + stage * kBox)), "l"(&map),
                 "r"(box % 2 * kColumns), "r"(box / 2 * kRows), "r"(at(&full[stage])) : "memory");
  };
  unsigned sum = 0, parity = 0;
  int stage = 0;
  for (int s = 0; s < kStages && begin + s < end; ++s) copy(begin + s, s);
  for (int box = begin; box < end; ++box) {
    unsigned done = 0;
    while (!done)
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(&full[stage])), "r"(parity) : "memory");
    sum += *(volatile unsigned*)(ring + stage * kBox);
    if (box + kStages < end) copy(box + kStages, stage);
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  if (sum == 1) *out = sum;
}

int main() {
  cudaDeviceProp device;
  OK(cudaGetDeviceProperties(&device, 0));
  void* entry;
  cudaDriverEntryPointQueryResult found;
  OK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
  const auto encode = (decltype(&cuTensorMapEncodeTiled))entry;
  char* in;
  unsigned* out;
  const long long total = 2ll << 30;
  OK(cudaMalloc(&in, total));
  OK(cudaMalloc(&out, 4));
  OK(cudaMemset(in, 0, total));
  const int shared = kStages * kBox + 1024;
  OK(cudaFuncSetAttribute(read_all, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  cudaEvent_t begin, end;
  OK(cudaEventCreate(&begin));
  OK(cudaEventCreate(&end));
  double ratio[2];
  for (int size = 0; size < 2; ++size) {
    const long long bytes = size == 0 ? 16ll << 20 : 1ll << 30, copies = total / bytes;
    std::vector<float> times[2];
    for (int round = 0; round < 83; ++round)
      for (int i = 0; i < 2; ++i) {
        const int promoted = (i + round) % 2;
        CUtensorMap map;
        const cuuint64_t dims[] = {2 * kColumns, (cuuint64_t)bytes / (4 * kColumns)}, strides[] = {4 * kColumns};
        const cuuint32_t box[] = {kColumns, kRows}, ones[] = {1, 1};
        if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, in + (2 * round + i) % copies * bytes, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, promoted ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) return 2;
        OK(cudaEventRecord(begin));
        read_all<<<2 * device.multiProcessorCount, 32, shared>>>(map, (int)(bytes / kBox), out);
        OK(cudaEventRecord(end));
        OK(cudaEventSynchronize(end));
        float ms;
        OK(cudaEventElapsedTime(&ms, begin, end));
        if (round >= 3) times[promoted].push_back(1000 * ms);
      }
    for (auto& t : times) std::sort(t.begin(), t.end());
    const float plain = times[0][times[0].size() / 2], promoted = times[1][times[1].size() / 2];
    ratio[size] = promoted / plain;
    std::printf("%s, %lld MB: %.1f us without promotion, %.1f us with promotion to 256 bytes (%.2f)\n", device.name, bytes >> 20, plain, promoted, promoted / plain);
  }
  return ratio[1] > 1.03 ? 0 : 1;
}
CUDA
"$nvcc" -std=c++17 -O2 -gencode=arch=compute_90a,code=sm_90a -o "$work/stream" "$work/stream.cu"
"$work/stream" || changed "promotion to 256 bytes costs long streams nothing here"
