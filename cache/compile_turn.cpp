#include "cache/compile_turn.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <thread>
#include <utility>

namespace leanattn {
inline namespace v1 {
namespace {

/// One byte of the lock file stands for a key: its first 60 bits, since offsets are signed. Keys are SHA-256 in hex;
/// two that fall on one byte would only wait for each other.
off_t byte_of(std::string_view key) {
  constexpr std::size_t kDigits = 15;
  std::uint64_t value = 0;
  std::from_chars(key.data(), key.data() + std::min(kDigits, key.size()), value, 16);
  return static_cast<off_t>(value);
}

}  // namespace

CompileTurn CompileTurn::wait(const std::filesystem::path& directory, std::string_view key,
                              std::chrono::milliseconds patience) {
  CompileTurn turn;
  detail::FileDescriptor file(
      ::open((directory / "cubin.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!file) return turn;
  // Locks of the open file description: they exclude threads as well, and no other close() of the file drops them.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte_of(key);
  lock.l_len = 1;
  // Asked again and again, because a wait in the kernel has no end when the holder was stopped.
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::chrono::milliseconds pause{1};
  constexpr std::chrono::milliseconds kLongestPause{16};
  while (::fcntl(file.get(), F_OFD_SETLK, &lock) != 0) {
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != EACCES) || std::chrono::steady_clock::now() >= deadline) return turn;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  turn.lock_ = std::move(file);
  return turn;
}

}  // namespace v1
}  // namespace leanattn
