#include "cache/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <thread>
#include <vector>

#include "cache/digest.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

DescriptionLock::DescriptionLock(FileDescriptor file) : file_(std::move(file)), process_(::getpid()) {}

DescriptionLock& DescriptionLock::operator=(DescriptionLock&& other) noexcept {
  if (this != &other) {
    give_up();
    file_ = std::move(other.file_);
    process_ = other.process_;
  }
  return *this;
}

void DescriptionLock::give_up() {
  if (!file_ || process_ != ::getpid()) return;
  struct flock all {};
  all.l_type = F_UNLCK;
  all.l_whence = SEEK_SET;
  ::fcntl(file_.get(), F_OFD_SETLK, &all);
  ::flock(file_.get(), LOCK_UN);
}

namespace {

constexpr std::string_view kPartial = ".partial-";

Result<void> not_written(const std::filesystem::path& file, int error) {
  // A disk that is full or broken says nothing against the file's name.
  const bool of_disk = error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO;
  return fail(of_disk ? ErrorCode::internal : ErrorCode::invalid_argument,
              with_errno(file.string() + ": cannot be written", error),
              of_disk ? "Make room, or write somewhere else." : "");
}

bool write_all(const FileDescriptor& descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

Result<void> write_in_place(const std::filesystem::path& file, std::string_view text) {
  const FileDescriptor descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666));
  if (!descriptor || !write_all(descriptor, text)) return not_written(file, errno);
  return {};
}

/// Removes what writers of `file` left that were killed. A living one holds a lock on its file.
void remove_left_overs(const std::filesystem::path& file) {
  const std::string prefix = file.filename().string() + std::string(kPartial);
  const std::filesystem::path directory = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code error;
  std::vector<std::filesystem::path> found;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(prefix)) found.push_back(entry->path());
  }
  for (const auto& path : found) {
    const FileDescriptor left(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (left && ::flock(left.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  }
}

/// A new, locked file beside `file`, and its name.
struct Partial {
  FileDescriptor descriptor;
  std::filesystem::path path;
};
Partial create_partial(const std::filesystem::path& file) {
  for (;;) {
    Partial partial{FileDescriptor(), file.string() + std::string(kPartial) + make_uuid()};
    partial.descriptor =
        FileDescriptor(::open(partial.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!partial.descriptor) return partial;
    // Another process that cleans up may have taken it for a left-over before it was locked.
    struct stat status {};
    const bool ours = ::flock(partial.descriptor.get(), LOCK_EX | LOCK_NB) == 0 &&
                      ::fstat(partial.descriptor.get(), &status) == 0 && status.st_nlink > 0;
    if (ours || errno == ENOLCK || errno == ENOTSUP) return partial;
    ::unlink(partial.path.c_str());
  }
}

}  // namespace

Result<std::string> read_file(const std::filesystem::path& file, std::size_t most) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::invalid_argument, file.string() + ": " + why);
  };
  const auto not_read = [&](int error) {
    return fail(error == ENOENT ? ErrorCode::not_found : ErrorCode::invalid_argument,
                with_errno(file.string() + ": cannot be read", error));
  };
  // Opening a FIFO would otherwise wait for a writer.
  const FileDescriptor descriptor(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  struct stat status {};
  if (!descriptor || ::fstat(descriptor.get(), &status) != 0) return not_read(errno);
  if (S_ISDIR(status.st_mode)) return refuse("this is a directory, not a file");
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) return refuse("this is a device, not a file");
  ::fcntl(descriptor.get(), F_SETFL, 0);
  std::string text;
  char part[1 << 16];
  for (ssize_t got = 0; (got = ::read(descriptor.get(), part, sizeof part)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return not_read(errno);
    if (text.size() + static_cast<std::size_t>(got) > most)
      return refuse("this is larger than " + std::to_string(most >> 20) + " MiB");
    text.append(part, static_cast<std::size_t>(got));
  }
  return text;
}

Result<void> replace_file(const std::filesystem::path& file, std::string_view text) {
  std::error_code unknown;
  const std::filesystem::path target = std::filesystem::weakly_canonical(file, unknown);
  struct stat status {};
  const bool exists = !unknown && ::stat(target.c_str(), &status) == 0;
  if (unknown || (exists && !S_ISREG(status.st_mode))) return write_in_place(file, text);
  // A rename would replace what must not be written.
  if (exists && ::access(target.c_str(), W_OK) != 0) return not_written(file, errno);
  remove_left_overs(target);
  const Partial partial = create_partial(target);
  if (!partial.descriptor) return not_written(file, errno);
  if (exists) static_cast<void>(::fchmod(partial.descriptor.get(), status.st_mode & 07777));
  if (!write_all(partial.descriptor, text) || ::fsync(partial.descriptor.get()) != 0 ||
      ::rename(partial.path.c_str(), target.c_str()) != 0) {
    const int error = errno;
    ::unlink(partial.path.c_str());
    return not_written(file, error);
  }
  sync_path(target.has_parent_path() ? target.parent_path() : std::filesystem::path("."));
  return {};
}

std::string with_errno(const std::string& text, int error) {
  return text + " (" + std::generic_category().message(error) + ")";
}

Error cannot_open(Error error, int reason) {
  if (reason == 0 && !FileDescriptor(::open("/", O_PATH | O_CLOEXEC))) reason = errno;
  if (reason != EMFILE && reason != ENFILE) return error;
  const std::string words = std::generic_category().message(reason);
  if (error.message.find(words) == std::string::npos) error.message += " (" + words + ")";
  error.hint = reason == EMFILE ? "Raise the limit of open files (ulimit -n), or close some."
                                : "The system has no file to open left: see /proc/sys/fs/file-max.";
  return error;
}

Result<DescriptionLock> lock_directory(const std::filesystem::path& directory, int timeout_ms) {
  FileDescriptor descriptor(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) {
    return tl::unexpected(cannot_open({ErrorCode::cache_unavailable,
                                       with_errno("cannot open the cache directory " + directory.string(), errno),
                                       {},
                                       {}}));
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
  return DescriptionLock(std::move(descriptor));
}

FileDescriptor open_private(const std::filesystem::path& file, int flags) {
  constexpr mode_t kMode = S_IRUSR | S_IWUSR;
  FileDescriptor opened(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, kMode));
  struct stat status {};
  // Without its owner's permissions, a file that was just made could be opened this once.
  const bool whole = !opened || ::fstat(opened.get(), &status) != 0 || (status.st_mode & kMode) == kMode ||
                     ::fchmod(opened.get(), kMode) == 0;
  return whole ? std::move(opened) : FileDescriptor();
}

Result<FileState> check_file(const std::filesystem::path& file, Access access) {
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0) {
    if (errno == ENOENT) return FileState::missing;
    return fail(ErrorCode::cache_unavailable, with_errno("cannot look at " + file.string(), errno));
  }
  const std::string hint = "remove it, or set LEANATTN_CACHE_DIR to another directory";
  if (S_ISLNK(status.st_mode)) return fail(ErrorCode::cache_unavailable, file.string() + " is a symbolic link", hint);
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::cache_unavailable, file.string() + " is not a regular file", hint);
  if (status.st_uid != ::geteuid() && status.st_uid != 0 && !(access == Access::read && may_be_read(status.st_uid))) {
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

namespace {

/// The name of `file` that an earlier call, which was killed, gave it; empty without one.
std::filesystem::path name_given_before(const std::filesystem::path& file, const struct stat& status) {
  if (status.st_nlink < 2) return {};
  const std::string prefix = file.filename().string() + ".corrupt-";
  std::error_code error;
  for (std::filesystem::directory_iterator entry(file.parent_path(), error), end; !error && entry != end;
       entry.increment(error)) {
    struct stat other {};
    if (entry->path().filename().string().starts_with(prefix) && ::lstat(entry->path().c_str(), &other) == 0 &&
        other.st_dev == status.st_dev && other.st_ino == status.st_ino)
      return entry->path();
  }
  return {};
}

/// Not taken yet, nor by a journal.
std::filesystem::path new_name(const std::filesystem::path& file) {
  std::string stamp;
  for (const char c : utc_timestamp()) {
    if (c != '-' && c != ':' && c != '.') stamp += c;
  }
  std::filesystem::path target = file.string() + ".corrupt-" + stamp;
  const auto taken = [&] {
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
      struct stat status {};
      if (::lstat((target.string() + suffix).c_str(), &status) == 0) return true;
    }
    return false;
  };
  for (int attempt = 1; taken(); ++attempt)
    target = file.string() + ".corrupt-" + stamp + "-" + std::to_string(attempt);
  return target;
}

}  // namespace

Result<std::filesystem::path> keep_aside(const std::filesystem::path& file) {
  const auto failed = [](const std::string& from, int error) {
    return fail(ErrorCode::cache_unavailable, with_errno("cannot move the damaged " + from + " aside", error),
                "remove it by hand, or set LEANATTN_CACHE_DIR to another directory");
  };
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0) return failed(file.string(), errno);
  std::filesystem::path target = name_given_before(file, status);
  bool linked = !target.empty();
  if (!linked) {
    target = new_name(file);
    linked = ::link(file.c_str(), target.c_str()) == 0;
  }
  for (const char* suffix : {"-journal", "-wal", "-shm"}) {
    const std::string from = file.string() + suffix;
    if (::rename(from.c_str(), (target.string() + suffix).c_str()) != 0 && errno != ENOENT) return failed(from, errno);
  }
  if (!linked && ::rename(file.c_str(), target.c_str()) != 0) return failed(file.string(), errno);
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
