// begin.cuh -- opens a part of a test in which modules of kernels are compiled for the host; end.cuh closes it. Between
// the two, CUDA's keywords mean something, and warnings that such code has are off. Modules follow each other with
// empty lines between them, because clang-format sorts what has none.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wunknown-warning-option"
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wkeyword-macro"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wundefined-inline"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define __device__ inline
#define __global__ inline
#define __launch_bounds__(threads)
#define __forceinline__
#define __noinline__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
// The host has no PTX. `asm(...)` and `asm volatile(...)` become calls that say what was to be executed.
#define asm leanattn_ptx
#define leanattn_ptx(...) leanattn_ptx(#__VA_ARGS__)
#define volatile(...) (#__VA_ARGS__)
#define LEAN_LOAD "ld.global.nc"
// What reads a second cache is there, and kSecondCache says whether it runs.
#define LEAN_SECOND_CACHE
