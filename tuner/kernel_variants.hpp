// kernel_variants.hpp -- emitted kernels with a piece taken out or clock stamps put in: for measuring where the time of
// a launch goes, never for answers. Pure functions; any thread; no GPU.
#pragma once

#include <string_view>

#include "generator/generator.hpp"

namespace leanattn {
inline namespace v1 {

/// The kernel, ending once its partials are stored: nothing is merged across CTAs, so output tiles that several CTAs
/// share stay unwritten, and so does what the next launch expects of a workspace (zeros). Errors: internal (the
/// templates no longer have what is to be taken out).
Result<EmittedKernel> without_merging(EmittedKernel kernel);

/// What thread 0 of a stamped CTA passes, in this order. Of a CTA with several segments the last one's count, except
/// for `placed` and, where a ring is filled ahead, `requested`, which are the first one's.
enum class Moment : int {
  started,    ///< its first instruction
  placed,     ///< knows its range of the line
  requested,  ///< has asked for the KV that fits the ring or registers; load path tensor: its producer warp is about to
  streamed,   ///< its warp has attended to its last KV
  gathered,   ///< the states of all warps are in shared memory
  finished,   ///< its partial or result is stored (fix-up ticket: by the last CTA, merged as well)
  done,       ///< nothing left to do
};
inline constexpr int kMoments = 7;
std::string_view to_string(Moment moment);

/// One stamp, as it lies in memory.
struct Stamp {
  unsigned clock;  ///< cycles of the CTA's SM, modulo 2^32; SMs do not agree on them
  unsigned timer;  ///< nanoseconds of the GPU's timer (PTX ISA, "%globaltimer"), modulo 2^32; an H200's ticks every 32
};

/// The kernel with stamps: CTA c writes its Stamp of moment m to args.lse, taken as Stamp[grid][kMoments]. For kernels
/// emitted without LSE, which do not use that argument. Errors: invalid_argument (with LSE), internal as above.
Result<EmittedKernel> with_stamps(EmittedKernel kernel);

}  // namespace v1
}  // namespace leanattn
