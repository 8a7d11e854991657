// frame.hpp -- Frame: the unit in which a tuning session and its workers write to each other. Plain data in and out;
// any thread. Bytes from the other side are never trusted.
//
// A frame is 12 bytes of header (the magic "LAW1", then the lengths of text and blob as 32-bit numbers in the host's
// byte order, since both sides are one machine), the text, then the blob.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

struct Frame {
  std::string text;                     ///< JSON
  std::vector<std::uint8_t> blob = {};  ///< a cubin, or nothing
  bool operator==(const Frame&) const = default;
};

inline constexpr std::size_t kMostTextBytes = 4u << 20, kMostBlobBytes = 64u << 20;

/// The bytes of a frame within these limits.
std::string encode(const Frame& frame);

/// Takes frames out of a stream of bytes that arrive in any portions.
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

}  // namespace v1
}  // namespace leanattn
