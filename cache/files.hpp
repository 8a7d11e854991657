// files.hpp -- the few file-system moves that must not race: a locked directory, a file trusted, a file put aside; and
// whole files read and written. Any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "cache/file_descriptor.hpp"
#include "cache/paths.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Locks of an open file description (flock, F_OFD_SETLK), given up on destruction. Closing the file would not do where
/// the process has forked meanwhile: the child has the same description. A copy that a child inherited gives nothing
/// up.
class DescriptionLock {
 public:
  DescriptionLock() = default;
  /// Of locks that `file` holds already.
  explicit DescriptionLock(FileDescriptor file);
  DescriptionLock(DescriptionLock&&) noexcept = default;
  DescriptionLock& operator=(DescriptionLock&& other) noexcept;
  ~DescriptionLock() { give_up(); }
  explicit operator bool() const { return static_cast<bool>(file_); }

 private:
  void give_up();
  FileDescriptor file_;
  int process_ = 0;
};

/// An advisory lock on a directory, for as long as the result lives: who holds it may create databases in it or put
/// damaged ones aside. Errors: database_busy after `timeout_ms`, cache_unavailable.
Result<DescriptionLock> lock_directory(const std::filesystem::path& directory, int timeout_ms);

enum class FileState { missing, usable };

/// Looks at a database file without opening it (closing a second descriptor of an open SQLite file would drop its
/// locks). Errors: cache_unavailable for anything but a regular file that belongs to us or root (or, to be read, to one
/// who may_be_read) and that nobody else may write.
Result<FileState> check_file(const std::filesystem::path& file, Access access = Access::write);

/// Opens a file for reading and writing that only we can use, making it (0600, whatever the umask) where it is missing.
/// Links are not followed. No descriptor, and errno, where that fails.
FileDescriptor open_private(const std::filesystem::path& file, int flags = 0);

/// Gives a damaged database a second name, FILE.corrupt-<timestamp>, under which it stays when another file takes its
/// own, and moves its -journal, -wal and -shm to that name, so that they are never played into the file that comes
/// after. Called again after a kill, it finds the name that was given before. Where the file system has no hard links
/// the file is renamed. Call with the directory locked. Returns the new name. Errors: cache_unavailable.
Result<std::filesystem::path> keep_aside(const std::filesystem::path& file);

/// Flushes a file or directory to the disk; best effort.
void sync_path(const std::filesystem::path& path);

/// The contents of a file that a user names: a regular file, or a pipe, whose end is waited for if it has a writer.
/// Errors: not_found (no such file), invalid_argument (a directory or a device, more than `most` bytes, not readable);
/// the message names the file and the reason.
Result<std::string> read_file(const std::filesystem::path& file, std::size_t most);

/// Makes `text` the contents of `file`. The text is written to a new file beside it, FILE.partial-<uuid>, and flushed
/// to the disk; then one rename puts it in place, and the directory is flushed. So readers, and whoever comes after a
/// kill or a power cut, find the old contents or the new, and never a part. An existing file keeps its permissions.
/// What killed writers left under such names is removed. Links are followed; what is no regular file (a terminal, a
/// pipe) is written to. Errors: invalid_argument (no such place, or it must not be written), internal (no room, a disk
/// that fails); the message names the file and the reason, and what was there stays.
Result<void> replace_file(const std::filesystem::path& file, std::string_view text);

/// "text (errno's words)".
std::string with_errno(const std::string& text, int error);

/// The error for what could not be opened. Where that is because descriptors have run out, the message says so, and the
/// hint what to do about it: the file itself is not at fault. `reason` is errno; 0 where it is not known, as of
/// libraries: then a file that can be opened now says that there are descriptors.
Error cannot_open(Error error, int reason = 0);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
