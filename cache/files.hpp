// files.hpp -- the few file-system moves that must not race: a locked directory, a file trusted, a file put aside. Any
// thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Closes on destruction.
class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor = -1) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

/// An advisory lock on a directory, for as long as the result lives: who holds it may create databases in it or put
/// damaged ones aside. Errors: database_busy after `timeout_ms`, cache_unavailable.
Result<FileDescriptor> lock_directory(const std::filesystem::path& directory, int timeout_ms);

enum class FileState { missing, usable };

/// Looks at a database file without opening it (closing a second descriptor of an open SQLite file would drop its
/// locks). Errors: cache_unavailable for anything but a regular file that belongs to us or root and that nobody else
/// may write.
Result<FileState> check_file(const std::filesystem::path& file);

/// Renames `file` and its -journal, -wal and -shm to file.corrupt-<timestamp>; the journal goes first, so that no newer
/// database of that name can ever be rolled back with it. Call with the directory locked. Returns the new name. Errors:
/// cache_unavailable.
Result<std::filesystem::path> put_aside(const std::filesystem::path& file);

/// Flushes a file or directory to the disk; best effort.
void sync_path(const std::filesystem::path& path);

/// Makes `text` the contents of `file` by way of a new file beside it, so that readers, and who comes after a kill,
/// find the old contents or the new. Links are followed; what is no regular file (a terminal, a pipe) is written to.
/// Errors: invalid_argument (cannot be written; what was there stays).
Result<void> replace_file(const std::filesystem::path& file, std::string_view text);

/// "text (errno's words)".
std::string with_errno(std::string text, int error);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
