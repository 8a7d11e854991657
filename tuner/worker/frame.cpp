#include "tuner/worker/frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr char kMagic[4] = {'L', 'A', 'W', '1'};
constexpr std::size_t kHeaderBytes = 12;

}  // namespace

std::string encode(const Frame& frame) {
  assert(frame.text.size() <= kMostTextBytes && frame.blob.size() <= kMostBlobBytes);
  const std::uint32_t lengths[] = {static_cast<std::uint32_t>(frame.text.size()),
                                   static_cast<std::uint32_t>(frame.blob.size())};
  std::string bytes(kMagic, sizeof(kMagic));
  bytes.append(reinterpret_cast<const char*>(lengths), sizeof(lengths));
  bytes += frame.text;
  bytes.append(reinterpret_cast<const char*>(frame.blob.data()), frame.blob.size());
  return bytes;
}

Result<std::optional<Frame>> FrameReader::next() {
  // The magic is judged as soon as its first byte is there: after a stray line of text, the rest of a frame never
  // comes.
  if (bytes_.compare(0, std::min(bytes_.size(), sizeof(kMagic)), kMagic, std::min(bytes_.size(), sizeof(kMagic))) != 0)
    return fail(ErrorCode::internal, "bytes that are no frame");
  if (bytes_.size() < kHeaderBytes) return std::optional<Frame>();
  std::uint32_t lengths[2];
  std::memcpy(lengths, bytes_.data() + sizeof(kMagic), sizeof(lengths));
  if (lengths[0] > kMostTextBytes || lengths[1] > kMostBlobBytes)
    return fail(ErrorCode::internal, fmt::format("a frame of {} + {} bytes", lengths[0], lengths[1]));
  const std::size_t text = lengths[0], blob = lengths[1];
  if (bytes_.size() < kHeaderBytes + text + blob) return std::optional<Frame>();
  const auto begin = bytes_.begin() + kHeaderBytes;
  Frame frame{std::string(begin, begin + static_cast<std::ptrdiff_t>(text)),
              std::vector<std::uint8_t>(begin + static_cast<std::ptrdiff_t>(text),
                                        begin + static_cast<std::ptrdiff_t>(text + blob))};
  bytes_.erase(0, kHeaderBytes + text + blob);
  return std::optional<Frame>(std::move(frame));
}

}  // namespace v1
}  // namespace leanattn
