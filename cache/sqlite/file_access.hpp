// file_access.hpp -- a database file read and locked through SQLite's own file layer, without a connection. Closing any
// other descriptor of the file would drop the POSIX locks that SQLite holds on it for this process. Internal to cache/.
// One thread per object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

class FileAccess {
 public:
  /// Errors: cache_unavailable, out_of_memory.
  static Result<FileAccess> open(const std::filesystem::path& file, bool writable);

  FileAccess(FileAccess&& other) noexcept;
  FileAccess& operator=(FileAccess&& other) = delete;
  ~FileAccess();

  /// Keeps every process from changing the file. Errors: database_busy after `timeout_ms`, cache_unavailable.
  Result<void> lock_shared(int timeout_ms);
  /// Keeps every process from reading or changing the file through SQLite; needs `writable`. Errors: as lock_shared.
  Result<void> lock_exclusive(int timeout_ms);

  /// All bytes. Errors: cache_unavailable, out_of_memory.
  Result<std::vector<std::uint8_t>> read_all() const;
  /// At most `size` bytes from the start; fewer where the file is shorter. Errors: as read_all.
  Result<std::vector<std::uint8_t>> read_start(std::int64_t size) const;

 private:
  struct Handle;
  explicit FileAccess(std::unique_ptr<Handle> handle);
  Result<void> lock(int level, int timeout_ms);
  std::unique_ptr<Handle> handle_;
};

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
