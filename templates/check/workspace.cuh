// check/workspace.cuh -- looks for what a launch before has left in a workspace, which is all zero between launches.
// LEANATTN_DEBUG=1 runs it. Host and device compile this file.
#if defined(__CUDACC__)
#define CHECK_WORKSPACE_HD __host__ __device__ __forceinline__
#else
#define CHECK_WORKSPACE_HD inline
#endif

constexpr unsigned long long kLeanAllZero = ~0ull;

// The first word that is not zero and that thread `first` of `step` threads finds.
CHECK_WORKSPACE_HD unsigned long long lean_find_nonzero(const unsigned* words, unsigned long long count,
                                                        unsigned long long first, unsigned long long step) {
  for (unsigned long long i = first; i < count; i += step) {
    if (words[i] != 0) return i;
  }
  return kLeanAllZero;
}

#if defined(__CUDACC__)
// Any grid. words: [count]. The caller sets `offender` to all ones before; it becomes the index of the first word that
// is not zero.
extern "C" __global__ void __launch_bounds__(256)
    lean_check_workspace(const unsigned* words, unsigned long long count, unsigned long long* offender) {
  const unsigned long long thread = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x,
                           threads = (unsigned long long)gridDim.x * blockDim.x,
                           found = lean_find_nonzero(words, count, thread, threads);
  if (found != kLeanAllZero) atomicMin(offender, found);
}
#endif
