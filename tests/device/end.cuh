// end.cuh -- closes what begin.cuh has opened.
#undef LEAN_SECOND_CACHE
#undef LEAN_LOAD
#undef LEAN_DEVICE
#undef volatile
#undef leanattn_ptx
#undef asm
#undef __align__
#undef __shared__
#undef __noinline__
#undef __forceinline__
#undef __launch_bounds__
#undef __global__
#undef __device__
#pragma GCC diagnostic pop
