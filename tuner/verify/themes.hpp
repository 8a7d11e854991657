// themes.hpp -- the themes of a verify run: shapes and orders of launches that break decode kernels. One thread, with
// the runner's context current.
#pragma once

#include <memory>
#include <vector>

#include "tuner/verify/runner.hpp"

namespace leanattn {
inline namespace v1 {

/// Loads the kernels that the themes run on, the next `count` that `queue` hands out, in a group of its own. A kernel
/// that does not compile or load is a failure of that group and is left out of the list. Errors: context_lost,
/// out_of_memory, nvrtc_missing.
Result<std::vector<std::unique_ptr<LoadedKernel>>> load_representatives(VerifyRunner& runner, std::size_t count,
                                                                        CompileQueue& queue);
/// Runs every theme on every kernel, each theme in a group of its own; if quick, on one with each fix-up, and shorter.
/// Errors: context_lost, out_of_memory.
Result<void> verify_themes(VerifyRunner& runner, const std::vector<std::unique_ptr<LoadedKernel>>& kernels);

/// The themes with CUDA graphs, which the GPU tests run as well. Errors: context_lost, out_of_memory.
/// One captured launch is replayed 1000 times, if quick 100. Before each replay, other context lengths are copied to
/// the device.
Result<void> verify_graph_replays(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel);
/// Launches follow each other in one graph on one workspace.
Result<void> verify_back_to_back(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel);
/// The kernel right in front of a launch produces q and the newest tokens, and does so late, in a stream and in a
/// graph. Only kernels with pdl are checked, because all others wait for the kernel in front of them anyway.
Result<void> verify_dependent_chain(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel);

}  // namespace v1
}  // namespace leanattn
