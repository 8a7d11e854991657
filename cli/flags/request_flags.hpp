// request_flags.hpp -- RequestFlags: the lengths of the requests of a ragged batch, and their query tokens. Main
// thread.
#pragma once

#include <array>
#include <string>

#include "cli/flags/shape_flags.hpp"
#include "runtime/problem.hpp"
#include "tuner/backend/backend.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace leanattn {
inline namespace v1 {

/// The text of every flag as typed. It is empty for flags that were not given.
struct RequestFlags {
  std::string lengths, query_lengths;
};

/// Registers --lengths and --q-lens, which are given instead of the batches and contexts of add_shape_flags(). `flags`
/// must live until the program has been parsed and run.
std::array<CLI::Option*, 2> add_request_flags(CLI::App& command, RequestFlags& flags);

/// The requests that --lengths and --q-lens name; --lengths must be given. Errors: invalid_argument, naming the flag
/// and its value.
Result<StepRequests> parse_requests(const DecodeProblem& problem, const RequestFlags& flags);
/// With --lengths, leaves the workload the shape of that step alone. Returns the requests of the step; without the
/// flag none. Errors: invalid_argument, naming the flag and its value; those of validate().
Result<StepRequests> resolve_requests(const RequestFlags& flags, Workload& workload);

}  // namespace v1
}  // namespace leanattn
