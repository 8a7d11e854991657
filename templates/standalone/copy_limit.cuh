// standalone/copy_limit.cuh -- an array is read and written in place. No kernel that must read and write the same bytes
// can take less time. This is a source of its own, not part of any other kernel.

typedef long long i64;

__device__ __forceinline__ uint4 read_in_place_16(const uint4* p) {
  uint4 r;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(p)
               : "memory");
  return r;
}

// Each thread has kLoads 16-byte loads on their way before it writes. A CTA takes a run of neighbouring chunks, and the
// next one a grid further on. `copies`: the bytes go to so many arrays behind each other, the first of which is `data`.
template <int kLoads>
__device__ __forceinline__ void copy_in_place(uint4* data, i64 chunks, int copies) {
  const i64 run = (i64)blockDim.x * kLoads;
  for (i64 first = blockIdx.x * run; first < chunks; first += gridDim.x * run) {
    uint4 words[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; i++) {
      const i64 chunk = first + i * blockDim.x + threadIdx.x;
      if (chunk < chunks) words[i] = read_in_place_16(data + chunk);
    }
    for (int copy = 0; copy < copies; copy++) {
#pragma unroll
      for (int i = 0; i < kLoads; i++) {
        const i64 chunk = first + i * blockDim.x + threadIdx.x;
        if (chunk < chunks) data[copy * chunks + chunk] = words[i];
      }
    }
  }
}

// data: [copies, chunks] of 16 bytes each.
extern "C" __global__ void __launch_bounds__(512) copy_limit_4(uint4* data, i64 chunks, int copies) {
  copy_in_place<4>(data, chunks, copies);
}
extern "C" __global__ void __launch_bounds__(512) copy_limit_8(uint4* data, i64 chunks, int copies) {
  copy_in_place<8>(data, chunks, copies);
}
