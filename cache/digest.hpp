// digest.hpp -- SHA-256 over unambiguously separated fields, random uuids, UTC timestamps. Any thread; no shared state.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace leanattn {
inline namespace v1 {
namespace detail {

using Digest = std::array<std::uint8_t, 32>;

/// Feeds fields one after the other. Texts are preceded by their length, so no two field lists give the same bytes.
class Sha256 {
 public:
  Sha256();
  Sha256& text(std::string_view value);
  Sha256& number(std::int64_t value);
  Sha256& real(double value);  ///< by bit pattern; -0 counts as 0
  Digest finish();             ///< ends the object's use

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  void bytes(const void* data, std::size_t size);
  void flush();
  std::unique_ptr<evp_md_ctx_st, Free> context_;
  std::array<std::uint8_t, 1024> pending_;  ///< dozens of short fields are one update of the context
  std::size_t pending_size_ = 0;
};

std::string hex(const Digest& digest);

/// A random (version 4) uuid, 36 lower-case characters.
std::string make_uuid();

/// A day from now: later stamps come from a clock that was wrong, and say nothing about when something happened.
std::string latest_credible_timestamp();

/// "2026-11-21T09:30:00.123Z": sorts as text in time order.
std::string utc_timestamp(std::chrono::system_clock::time_point when = std::chrono::system_clock::now());

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
