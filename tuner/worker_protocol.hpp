// worker_protocol.hpp -- what a tuning session and its worker processes say to each other: frames, and the messages in
// them. Plain data in and out, any thread; bytes from the other side are never trusted.
//
// A frame is 12 bytes of header (the magic "LAW1", the lengths of text and blob as 32-bit numbers in the host's byte
// order: both sides are one machine), JSON text, then the blob: a cubin, or nothing. The session asks, the worker
// answers each request with one reply.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/compiler.hpp"
#include "runtime/problem.hpp"
#include "tuner/tune.hpp"
#include "tuner/tune_backend.hpp"

namespace leanattn {
inline namespace v1 {

struct Frame {
  std::string text;
  std::vector<std::uint8_t> blob = {};
  bool operator==(const Frame&) const = default;
};

inline constexpr std::size_t kMostTextBytes = 4u << 20, kMostBlobBytes = 64u << 20;

/// The bytes of a frame within these limits.
std::string encode(const Frame& frame);

/// Frames out of a stream of bytes that arrive in any portions.
class FrameReader {
 public:
  void append(std::span<const char> bytes) { bytes_.append(bytes.data(), bytes.size()); }
  /// The next frame; nullopt until more bytes are there. Errors: internal (not a frame of ours, too large); the stream
  /// is of no use after that.
  Result<std::optional<Frame>> next();
  /// Whether a frame has begun that is not complete.
  bool torn() const { return !bytes_.empty(); }

 private:
  std::string bytes_;
};

/// Both sides must be of one build's protocol.
inline constexpr int kWorkerProtocolVersion = 1;

// Requests. Hello comes first, once; Open before those that need a device; Adopt before the first use of a kernel.
struct Hello {
  int version = kWorkerProtocolVersion;
  std::string cache_directory;  ///< of cubin.db; empty: memory only
  bool operator==(const Hello&) const = default;
};
struct CompileKernel {  // -> CompiledKernel
  KernelSpec spec;
  bool operator==(const CompileKernel&) const = default;
};
struct OpenDevice {  // -> Done
  int ordinal = 0;
  std::string uuid;  ///< what the session takes that ordinal to be
  DecodeProblem problem;
  L2Policy policy = L2Policy::cold;
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
using Request = std::variant<Hello, CompileKernel, OpenDevice, AdoptKernel, BeginShape, CheckConfig, TimeConfigs>;

// Replies, besides those named above.
struct Done {
  bool operator==(const Done&) const = default;
};
struct ReadTime {
  double us = 0;
  bool operator==(const ReadTime&) const = default;
};
using Reply = std::variant<Error, Done, CompiledKernel, ReadTime, CheckOutcome, RoundTimes>;

Frame to_frame(const Request& request);
Frame to_frame(const Reply& reply);
/// Errors: internal (not a message of this kind, or a value out of its domain; the text is quoted in part).
Result<Request> request_from(const Frame& frame);
Result<Reply> reply_from(const Frame& frame);

/// "check lean_sm90a_... G=132", for messages.
std::string describe(const Request& request);

}  // namespace v1
}  // namespace leanattn
