#include "cache/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <system_error>
#include <thread>

#include "cache/digest.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<void> replace_file(const std::filesystem::path& file, std::string_view text) {
  std::error_code unknown, failed;
  const std::filesystem::path target = std::filesystem::weakly_canonical(file, unknown);
  const bool in_place =
      unknown || (std::filesystem::exists(target, unknown) && !std::filesystem::is_regular_file(target));
  std::filesystem::path written = in_place ? file : target;
  if (!in_place) written += ".partial";
  std::ofstream stream(written, std::ios::binary);
  stream << text;
  stream.close();
  if (stream && !in_place) std::filesystem::rename(written, target, failed);
  if (stream && !failed) return {};
  if (!in_place) std::filesystem::remove(written, unknown);
  return fail(ErrorCode::invalid_argument, file.string() + ": cannot be written");
}

std::string with_errno(std::string text, int error) {
  return text + " (" + std::generic_category().message(error) + ")";
}

Result<FileDescriptor> lock_directory(const std::filesystem::path& directory, int timeout_ms) {
  FileDescriptor descriptor(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) {
    return fail(ErrorCode::cache_unavailable,
                with_errno("cannot open the cache directory " + directory.string(), errno));
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (::flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      return fail(ErrorCode::cache_unavailable,
                  with_errno("cannot lock the cache directory " + directory.string(), errno));
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::database_busy,
                  "another process has kept the cache directory " + directory.string() + " locked",
                  "try again when it has finished, or set LEANATTN_CACHE_DIR to another directory");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return descriptor;
}

Result<FileState> check_file(const std::filesystem::path& file) {
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0) {
    if (errno == ENOENT) return FileState::missing;
    return fail(ErrorCode::cache_unavailable, with_errno("cannot look at " + file.string(), errno));
  }
  const std::string hint = "remove it, or set LEANATTN_CACHE_DIR to another directory";
  if (S_ISLNK(status.st_mode)) return fail(ErrorCode::cache_unavailable, file.string() + " is a symbolic link", hint);
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::cache_unavailable, file.string() + " is not a regular file", hint);
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return fail(ErrorCode::cache_unavailable,
                file.string() + " belongs to another user (uid " + std::to_string(status.st_uid) + ")", hint);
  }
  if ((status.st_mode & 022) != 0) {
    char mode[32];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(status.st_mode & 07777));
    return fail(ErrorCode::cache_unavailable, file.string() + " is writable by others (mode " + mode + ")",
                "chmod 600 " + file.string());
  }
  return FileState::usable;
}

Result<std::filesystem::path> put_aside(const std::filesystem::path& file) {
  std::string stamp;
  for (const char c : utc_timestamp()) {
    if (c != '-' && c != ':' && c != '.') stamp += c;
  }
  std::filesystem::path target = file.string() + ".corrupt-" + stamp;
  struct stat status {};
  for (int attempt = 1; ::lstat(target.c_str(), &status) == 0; ++attempt) {
    target = file.string() + ".corrupt-" + stamp + "-" + std::to_string(attempt);
  }
  for (const char* suffix : {"-journal", "-wal", "-shm", ""}) {
    const std::string from = file.string() + suffix;
    if (::rename(from.c_str(), (target.string() + suffix).c_str()) != 0 && errno != ENOENT) {
      return fail(ErrorCode::cache_unavailable, with_errno("cannot move the damaged " + from + " aside", errno),
                  "remove it by hand, or set LEANATTN_CACHE_DIR to another directory");
    }
  }
  sync_path(file.parent_path());
  return target;
}

void sync_path(const std::filesystem::path& path) {
  const FileDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor) ::fsync(descriptor.get());
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
