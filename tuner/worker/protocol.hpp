// protocol.hpp -- the messages between a tuning session and its worker processes. Plain data in and out; any thread.
// A message from the other side is never trusted. The session asks, and the worker answers each request with one reply.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/cuda/compiler.hpp"
#include "runtime/problem.hpp"
#include "tuner/backend/backend.hpp"
#include "tuner/worker/frame.hpp"

namespace leanattn {
inline namespace v1 {

/// Both sides must have the same version.
inline constexpr int kWorkerProtocolVersion = 5;

// The requests. Hello comes first, and once. OpenDevice comes before those that need a device, and AdoptKernel before
// the first use of a kernel. An arrow names the reply.
struct Hello {
  int version = kWorkerProtocolVersion;
  std::string cache_directory;  ///< where cubin.db is; empty: kernels are kept in memory only
  bool operator==(const Hello&) const = default;
};
struct CompileKernel {  // -> CompiledKernel
  KernelSpec spec;
  bool operator==(const CompileKernel&) const = default;
};
struct OpenDevice {  // -> Done
  int ordinal = 0;
  std::string uuid;  ///< of the device that the session means by this ordinal
  DecodeProblem problem;
  L2Policy policy = L2Policy::cold;
  std::int64_t memory_bytes = 0;       ///< the most for K and V; 0: most of what is free
  std::vector<int> rank_devices = {};  ///< of a problem of a group: the CUDA ordinal of each rank's GPU
  StepRequests requests = {};          ///< of the only shape that is begun, where they are known
  bool operator==(const OpenDevice&) const = default;
};
struct AdoptKernel {  // -> Done
  KernelSpec spec;
  CompiledKernel kernel;
};
struct BeginShape {  // -> ReadTime
  Shape shape;
  bool operator==(const BeginShape&) const = default;
};
struct CheckConfig {  // -> CheckOutcome
  Config config;
  bool operator==(const CheckConfig&) const = default;
};
struct TimeConfigs {  // -> RoundTimes
  std::vector<Config> configs;
  bool operator==(const TimeConfigs&) const = default;
};
using WorkerRequest = std::variant<Hello, CompileKernel, OpenDevice, AdoptKernel, BeginShape, CheckConfig, TimeConfigs>;

// The replies that are not declared elsewhere.
struct Done {
  bool operator==(const Done&) const = default;
};
struct ReadTime {
  double us = 0;
  bool operator==(const ReadTime&) const = default;
};
using WorkerReply = std::variant<Error, Done, CompiledKernel, ReadTime, CheckOutcome, RoundTimes>;

Frame to_frame(const WorkerRequest& request);
Frame to_frame(const WorkerReply& reply);
/// Errors: internal (not a message of this kind, or a value out of its domain; the text is quoted in part).
Result<WorkerRequest> request_from(const Frame& frame);
Result<WorkerReply> reply_from(const Frame& frame);

/// "check lean_sm90a_... G=132", for messages.
std::string describe(const WorkerRequest& request);

}  // namespace v1
}  // namespace leanattn
