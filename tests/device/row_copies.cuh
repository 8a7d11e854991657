// row_copies.cuh -- how rows of bytes travel and become operands, for a kernel whose constants and ring stand in front.
// Each CTA has buffers of its own, and what is PTX is the host's.
#include "templates/kv/row_scales.cuh"
namespace of_gpu {
#include "templates/kv/row_copies.cuh"
}  // namespace of_gpu
using of_gpu::RowBuffers, of_gpu::publish_rows;

inline RowBuffers& row_buffers() { return shared_object<RowBuffers>(); }
inline u32 arrived_barrier(u32 stage) { return shared_address(&row_buffers().arrived[gather_warp()][stage]); }

struct RowBarriers {
  u64 of_warp[kGatherWarps];
};
inline u32 row_barrier() { return shared_address(&shared_object<RowBarriers>().of_warp[gather_warp()]); }
inline void init_row_barrier() { init_barrier(row_barrier(), 1); }
template <int kBytes = kRowBytes>
void copy_row(u32 destination, const char* row, u32 barrier) {
  copy_bulk(destination, row, kBytes, barrier);
}

template <int kFirst, int kEnd>
void arrive_for_warp(u32 barriers) {
  for (int part = kFirst; part < kEnd && threadIdx.x % 32 == 0; part++) arrive(barriers + (u32)(part * 8), 33);
}
inline u32 operands_of_two(u32 bytes, float scale) {
  return kRowGroup > 0 ? scaled_pair(bytes, scale) : expand_pair(bytes, 0);
}
inline uint4 operands_of_eight(u32 low, u32 high, float scale) {
  return {operands_of_two(low, scale), operands_of_two(low >> 16, scale), operands_of_two(high, scale),
          operands_of_two(high >> 16, scale)};
}
