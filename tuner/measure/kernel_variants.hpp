// kernel_variants.hpp -- emitted kernels from which a piece is taken out, or into which clock stamps are put. They show
// where the time of a launch goes; their results are of no use. Pure functions; any thread; no GPU.
#pragma once

#include <string_view>

#include "generator/generator.hpp"

namespace leanattn {
inline namespace v1 {

/// The kernel, which now ends once its partials are stored. Nothing is merged across CTAs, so output tiles that several
/// CTAs share are not written, and the workspace is not left zeroed as the next launch expects it. Errors: internal
/// (the templates no longer have the code that is to be taken out).
Result<EmittedKernel> without_merging(EmittedKernel kernel);

/// The moments at which thread 0 of a CTA takes a stamp, in this order. In a CTA with several segments, the stamps of
/// the last segment stay, except for `placed` and, where a ring is filled ahead, `requested`: these are the first
/// segment's.
enum class Moment : int {
  started,    ///< the thread is at its first instruction
  placed,     ///< it knows the CTA's range of the line
  requested,  ///< it has asked for the KV that fits into the ring or registers; tensor: the producer is about to
  streamed,   ///< its warp has attended to its last KV
  gathered,   ///< the states of all warps are in shared memory; with roles: the results are complete in registers
  finished,   ///< the partial or result is stored; with tickets the last CTA has merged, too
  done,       ///< nothing is left to do
};
inline constexpr int kMoments = 7;
std::string_view to_string(Moment moment);

/// A stamp, as it lies in memory.
struct Stamp {
  unsigned clock;  ///< cycles of the CTA's SM, modulo 2^32; each SM counts its own
  unsigned timer;  ///< nanoseconds of the GPU (PTX ISA, "%globaltimer"), modulo 2^32; an H200's timer ticks every 32
};

/// The kernel with stamps: CTA c writes its stamp of moment m to args.lse, which is taken as Stamp[grid][kMoments]. The
/// kernel must have been emitted without LSE, so that it does not use that argument. Errors: invalid_argument (it has
/// LSE), internal as above.
Result<EmittedKernel> with_stamps(EmittedKernel kernel);

}  // namespace v1
}  // namespace leanattn
