// recurrent_plan.hpp -- the part of `verify` about operation `recurrent`: which kernels it checks, and the checks. Only
// the checks need a GPU.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "generator/recurrent/recurrent_spec.hpp"
#include "tuner/verify/verify.hpp"

namespace leanattn {
inline namespace v1 {

/// Every kind with every form of its gates and type of state, each with several sizes, tokens a step and tunables; if
/// quick, with one. One more of each has a ring, where kinds may have one. Those whose name contains the filter. A pure
/// function of architecture and options; any thread.
std::vector<RecurrentSpec> recurrent_plan(Arch arch, const VerifyOptions& options);

/// Checks the kernels with null slots, other slots for the new states, padding and nothing of that. One group for each
/// kind. group_done and cancel may be null. The GPU's context is current. Errors: nvrtc_missing, out_of_memory,
/// context_lost.
Result<std::vector<VerifyGroup>> verify_recurrent(std::span<const RecurrentSpec> specs, const VerifyOptions& options,
                                                  const VerifySink& group_done, const std::atomic<bool>* cancel);

}  // namespace v1
}  // namespace leanattn
