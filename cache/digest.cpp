#include "cache/digest.hpp"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <random>

namespace leanattn {
inline namespace v1 {
namespace detail {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

namespace {

/// A SHA-256 that has read nothing yet. Copies of it need not look for the algorithm, which takes longer than to hash a
/// trial. Null without SHA-256.
const EVP_MD_CTX* fresh_context() {
  static const EVP_MD_CTX* const fresh = []() -> EVP_MD_CTX* {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    if (context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1) return context;
    EVP_MD_CTX_free(context);
    return nullptr;
  }();
  return fresh;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  // Without SHA-256 (a FIPS provider that failed its self-test) nothing here can be trusted; only memory can run out
  // otherwise.
  const EVP_MD_CTX* fresh = fresh_context();
  if (!context_ || fresh == nullptr || EVP_MD_CTX_copy_ex(context_.get(), fresh) != 1) throw std::bad_alloc();
}

void Sha256::bytes(const void* data, std::size_t size) {
  if (size > pending_.size() - pending_size_) flush();
  if (size > pending_.size()) {
    if (EVP_DigestUpdate(context_.get(), data, size) != 1) throw std::bad_alloc();
    return;
  }
  if (size > 0) std::memcpy(pending_.data() + pending_size_, data, size);
  pending_size_ += size;
}

void Sha256::flush() {
  if (EVP_DigestUpdate(context_.get(), pending_.data(), pending_size_) != 1) throw std::bad_alloc();
  pending_size_ = 0;
}

Sha256& Sha256::text(std::string_view value) {
  number(static_cast<std::int64_t>(value.size()));
  bytes(value.data(), value.size());
  return *this;
}

Sha256& Sha256::number(std::int64_t value) {
  std::array<std::uint8_t, 8> little_endian{};
  auto bits = static_cast<std::uint64_t>(value);
  for (auto& byte : little_endian) {
    byte = static_cast<std::uint8_t>(bits & 0xff);
    bits >>= 8;
  }
  bytes(little_endian.data(), little_endian.size());
  return *this;
}

Sha256& Sha256::real(double value) { return number(std::bit_cast<std::int64_t>(value + 0.0)); }

Digest Sha256::finish() {
  flush();
  Digest digest{};
  unsigned size = 0;
  if (EVP_DigestFinal_ex(context_.get(), digest.data(), &size) != 1) throw std::bad_alloc();
  return digest;
}

std::string hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(digest.size() * 2);
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string make_uuid() {
  std::array<std::uint8_t, 16> random{};
  if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1) {
    std::random_device device;
    for (auto& byte : random) byte = static_cast<std::uint8_t>(device());
  }
  random[6] = static_cast<std::uint8_t>((random[6] & 0x0f) | 0x40);
  random[8] = static_cast<std::uint8_t>((random[8] & 0x3f) | 0x80);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < random.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[random[i] >> 4];
    text += kDigits[random[i] & 15];
  }
  return text;
}

std::string latest_credible_timestamp() {
  return utc_timestamp(std::chrono::system_clock::now() + std::chrono::hours(24));
}

std::string utc_timestamp(std::chrono::system_clock::time_point when) {
  const auto since_epoch = std::chrono::floor<std::chrono::milliseconds>(when.time_since_epoch());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  const std::time_t time = static_cast<std::time_t>(seconds.count());
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[96];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, static_cast<int>((since_epoch - seconds).count()));
  return text;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
