#include "cache/cubin/compile_turn.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace leanattn {
inline namespace v1 {
namespace {

/// One byte of the lock file stands for a key: its first 60 bits, since offsets are signed. Keys are SHA-256 in hex;
/// two that fall on one byte would only wait for each other. The three bits above count how often the turn was handed
/// on.
std::uint64_t number_of(std::string_view key) {
  constexpr std::size_t kDigits = 15;
  std::uint64_t value = 0;
  std::from_chars(key.data(), key.data() + std::min(kDigits, key.size()), value, 16);
  return value;
}
constexpr int kGenerationAt = 60;
constexpr std::uint64_t kGenerations = 8;

/// Who took a turn: written at the start of the lock file by whoever holds it, for those who wait. A hint and no more:
/// another key's holder may write over it, and a process of another PID namespace is not found.
struct Holder {
  std::uint64_t turn = 0;     ///< the locked byte
  std::int64_t process = 0;   ///< its id
  std::uint64_t started = 0;  ///< when, in clock ticks since boot: ids are used again
};
constexpr std::uint64_t kKeys = 128;  ///< that have places of their own
off_t place_of(std::uint64_t turn) {
  return static_cast<off_t>((turn % kKeys * kGenerations + (turn >> kGenerationAt)) * sizeof(Holder));
}

struct ProcessState {
  char state = 0;  ///< 'T' and 't' are stopped
  std::uint64_t started = 0;
};

/// From /proc/<id>/stat, whose second field, in parentheses, may hold anything. nullopt: there is no such process.
std::optional<ProcessState> look_at_process(std::int64_t id) {
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end + 1));
  ProcessState found;
  fields >> found.state;
  std::string skipped;
  for (int i = 0; i < 18; ++i) fields >> skipped;  // to the 22nd field
  fields >> found.started;
  return fields ? std::optional(found) : std::nullopt;
}

void sign(const FileDescriptor& file, std::uint64_t turn) {
  const auto self = look_at_process(::getpid());
  if (!self) return;
  const Holder holder{turn, ::getpid(), self->started};
  static_cast<void>(!::pwrite(file.get(), &holder, sizeof holder, place_of(turn)));
}

bool holder_is_stopped(const FileDescriptor& file, std::uint64_t turn) {
  Holder holder;
  if (::pread(file.get(), &holder, sizeof holder, place_of(turn)) != sizeof holder || holder.turn != turn) return false;
  const auto found = look_at_process(holder.process);
  return found && found->started == holder.started && (found->state == 'T' || found->state == 't');
}

}  // namespace

CompileTurn CompileTurn::wait(const std::filesystem::path& directory, std::string_view key,
                              std::chrono::milliseconds patience) {
  CompileTurn turn;
  FileDescriptor file = detail::open_private(directory / "cubin.lock");
  if (!file) return turn;
  // Asked again and again, because a wait in the kernel has no end when the holder was stopped.
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::chrono::milliseconds pause{1};
  constexpr std::chrono::milliseconds kLongestPause{16};
  for (std::uint64_t generation = 0; generation < kGenerations;) {
    const std::uint64_t byte = number_of(key) | generation << kGenerationAt;
    // Locks of the open file description: they exclude threads as well, and no other close() of the file drops them.
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(byte);
    lock.l_len = 1;
    if (::fcntl(file.get(), F_OFD_SETLK, &lock) == 0) {
      sign(file, byte);
      turn.lock_ = detail::DescriptionLock(std::move(file));
      return turn;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EACCES) return turn;
    if (holder_is_stopped(file, byte)) {
      ++generation;
      continue;
    }
    if (std::chrono::steady_clock::now() >= deadline) return turn;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return turn;
}

}  // namespace v1
}  // namespace leanattn
