#include "cache/queue_turn.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

// The file holds the number of the last ticket. Whoever queues holds a lock on the byte that its ticket numbers, of the
// open file description (fcntl(2), F_OFD_SETLK), and has its turn when nobody holds a smaller one.
constexpr std::int64_t kDrawing = std::int64_t{1} << 62;  ///< locked while a ticket is drawn
constexpr std::int64_t kLargestTicket = std::int64_t{1} << 61;

struct flock lock_of(short type, std::int64_t start, std::int64_t length) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(start);
  lock.l_len = static_cast<off_t>(length);
  return lock;
}

/// Asks until `ask` says 0, or it fails for another reason than others' locks, or time is up. Returns the last errno.
template <class Ask>
int ask_until(std::chrono::steady_clock::time_point deadline, Ask&& ask) {
  for (;;) {
    const int error = ask();
    if (error == 0 || (error != EAGAIN && error != EACCES && error != EINTR)) return error;
    if (std::chrono::steady_clock::now() >= deadline) return EAGAIN;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

int try_lock(const FileDescriptor& file, std::int64_t byte) {
  struct flock lock = lock_of(F_WRLCK, byte, 1);
  return ::fcntl(file.get(), F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

int draw(const FileDescriptor& file, std::int64_t& ticket) {
  std::int64_t last = 0;
  if (::pread(file.get(), &last, sizeof last, 0) != sizeof last || last < 0 || last >= kLargestTicket) last = 0;
  // Where the number was lost, tickets above it may still be held.
  for (ticket = last + 1; try_lock(file, ticket) != 0; ++ticket) {
    if (errno != EAGAIN && errno != EACCES) return errno;
  }
  return ::pwrite(file.get(), &ticket, sizeof ticket, 0) == sizeof ticket ? 0 : EIO;
}

}  // namespace

Result<QueueTurn> QueueTurn::wait(const std::filesystem::path& file, int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  FileDescriptor queue = open_private(file);
  if (!queue) return fail(ErrorCode::cache_unavailable, with_errno("cannot open " + file.string(), errno));
  std::int64_t ticket = 0;
  int error = ask_until(deadline, [&] { return try_lock(queue, kDrawing); });
  if (error == 0) {
    error = draw(queue, ticket);
    struct flock done = lock_of(F_UNLCK, kDrawing, 1);
    ::fcntl(queue.get(), F_OFD_SETLK, &done);
  }
  if (error == 0 && ticket > 1) {
    error = ask_until(deadline, [&] {
      struct flock ahead = lock_of(F_WRLCK, 1, ticket - 1);
      if (::fcntl(queue.get(), F_OFD_GETLK, &ahead) != 0) return errno;
      return ahead.l_type == F_UNLCK ? 0 : EAGAIN;
    });
  }
  if (error == 0) return QueueTurn(std::move(queue));
  if (error == EAGAIN || error == EACCES || error == EINTR) {
    return fail(ErrorCode::database_busy, "other commands have kept " + file.parent_path().string() + " for too long",
                "try again when they have finished; LEANATTN_BUSY_TIMEOUT_MS says how long to wait");
  }
  return fail(ErrorCode::cache_unavailable, with_errno("cannot lock " + file.string(), error));
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
