#!/usr/bin/env bash
# Needs a Hopper GPU (sm_90), and takes nvcc 13.0 from PATH or else from NVIDIA's wheels.
#
# One would guess: a tensor copy (cp.async.bulk.tensor, tile mode, no swizzle, no interleave) may begin at any element. Its coordinates are signed
# integers without a stated granularity, may even be negative, and only the base, the strides and the box's inner extent must be multiples of 16 bytes.
# What happens: where the innermost coordinate is no multiple of 16 bytes, the kernel ends with "an illegal instruction was encountered", whatever the
# element type and the swizzle are. cuTensorMapEncodeTiled cannot know. Coordinates of the other dimensions are free.
# Why it matters: rows that are packed at multiples of 8 bytes (136 bytes of K, scale, V, scale) cannot be addressed as columns of a tensor. Copies must
# begin up to 8 bytes in front of the row, and the error names neither the copy nor a reason.
source "$(dirname "$0")/common.bash"
need_gpu 90
need_nvcc
cat >"$work/begin.cu" <<'CUDA'
#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define OK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { std::printf("%s\n", cudaGetErrorName(e)); return 0; } } while (0)

constexpr int kColumns = 16, kRows = 8, kBox = kColumns * kRows;  // elements of 8 bytes

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__global__ void copy(const __grid_constant__ CUtensorMap map, int column, int row, std::uint64_t* out) {
  __shared__ __align__(128) std::uint64_t box[kBox];
  __shared__ std::uint64_t full;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at(&full)));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(&full)), "r"(kBox * 8) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(at(box)), "l"(&map),
                 "r"(column), "r"(row), "r"(at(&full)) : "memory");
  }
  __syncthreads();
  for (unsigned done = 0; done == 0;)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(&full)) : "memory");
  out[threadIdx.x] = box[threadIdx.x];
}

int main(int, char** argv) {
  const int column = std::atoi(argv[1]), row = std::atoi(argv[2]), width = 136, height = 64;
  std::vector<std::uint64_t> data(width * height), found(kBox);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = i;
  std::uint64_t *memory, *out;
  OK(cudaMalloc(&memory, data.size() * 8));
  OK(cudaMalloc(&out, kBox * 8));
  OK(cudaMemcpy(memory, data.data(), data.size() * 8, cudaMemcpyHostToDevice));
  CUtensorMap map;
  const cuuint64_t sizes[] = {width, height}, strides[] = {width * 8};
  const cuuint32_t box[] = {kColumns, kRows}, every[] = {1, 1};
  if (cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 2, memory, sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                             CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
    return 2;
  copy<<<1, kBox>>>(map, column, row, out);
  OK(cudaDeviceSynchronize());
  OK(cudaMemcpy(found.data(), out, kBox * 8, cudaMemcpyDeviceToHost));
  for (int i = 0; i < kBox; ++i)
    if (found[i] != data[(row + i / kColumns) * width + column + i % kColumns]) return 3;
  std::printf("copied\n");
}
CUDA
"$nvcc" -arch=sm_90a -o "$work/begin" "$work/begin.cu" -lcuda
run() { echo -n "column $1, row $2: " && "$work/begin" "$1" "$2"; }
{ run 16 3; run 18 5; run 17 3; run 119 0; } | tee "$work/out"
[[ $(grep -c ': copied$' "$work/out") -eq 2 && $(grep -c 'IllegalInstruction' "$work/out") -eq 2 ]] ||
  changed "a copy that begins at an odd element of 8 bytes succeeds"
