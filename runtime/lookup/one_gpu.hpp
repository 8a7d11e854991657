// one_gpu.hpp -- refuses problems of groups where one GPU is measured by itself. Pure functions; any thread.
#pragma once

#include <string>

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// Errors: unsupported, where the problem has context_parallel. what: what cannot be done, such as "tuning".
inline Result<void> one_gpu_only(const DecodeProblem& problem, const char* what) {
  if (!has_part_of_context(problem.features)) return {};
  return fail(
      ErrorCode::unsupported,
      std::string(what) + " of a problem with context_parallel " + std::to_string(ranks_of_context(problem.features)),
      "Leave context_parallel out, and give the contexts of one rank; `leanattn tune` with a --device for each rank "
      "tunes the group itself.");
}

}  // namespace v1
}  // namespace leanattn
