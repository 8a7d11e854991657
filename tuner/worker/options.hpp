// options.hpp -- WorkerOptions: how a session runs its worker processes. Plain data; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tuner/backend/backend.hpp"
#include "tuner/worker/call_limit.hpp"

namespace leanattn {
inline namespace v1 {

struct WorkerOptions {
  /// The program to start and its arguments. It serves the protocol on descriptor kWorkerDescriptor.
  std::vector<std::string> command = {};
  std::string cache_directory = {};  ///< where cubin.db is; empty: kernels are kept in memory only
  std::int64_t memory_bytes = 0;     ///< the most for the K and V of the test data; 0: most of what is free
  StepRequests requests = {};        ///< TuneRequest::requests
  /// The limit of a check and of a round, instead of the one below.
  std::optional<std::chrono::milliseconds> candidate_limit = {};
  /// The limit of every call that candidate_limit is not for.
  CallLimit limit = default_call_limit;
};

/// How long this call may take under these options.
inline std::chrono::milliseconds limit_of(const WorkerOptions& options, const WorkerCall& call) {
  const bool of_candidate = call.kind == WorkerCall::Kind::check || call.kind == WorkerCall::Kind::time;
  return of_candidate && options.candidate_limit ? *options.candidate_limit : options.limit(call);
}

}  // namespace v1
}  // namespace leanattn
