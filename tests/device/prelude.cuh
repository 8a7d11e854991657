// prelude.cuh -- templates/prelude.cuh for a kernel whose constants stand in front. The host's functions take the place
// of those that are PTX instructions (instructions.hpp), so these stay in a namespace.

// What the generator works out from other constants.
constexpr int kQueryRows = kGroup * kQLen, kRows = (kQueryRows + kRowBlocks - 1) / kRowBlocks;
constexpr bool kRowsSeeAlike = kWindow == 0 && (kSelectionBlock > 0 || kQLen == 1 || kQueryMask == 2);

namespace of_gpu {
#include "templates/prelude.cuh"
}  // namespace of_gpu
using of_gpu::kFullMask, of_gpu::kNegInf, of_gpu::kKvReadOnce, of_gpu::reference_of, of_gpu::sync_workers,
    of_gpu::sync_walkers, of_gpu::low_halves, of_gpu::high_halves, of_gpu::word, of_gpu::evict_first;
