#include "cache/sqlite/file_access.hpp"

#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <new>
#include <string>
#include <thread>

namespace leanattn {
inline namespace v1 {
namespace detail {

struct FileAccess::Handle {
  sqlite3_vfs* vfs = nullptr;
  std::string name;
  sqlite3_filename file_name = nullptr;   ///< SQLite's file layer takes names of this form only
  std::vector<std::max_align_t> storage;  ///< what the file layer keeps of an open file
  sqlite3_file* file() { return reinterpret_cast<sqlite3_file*>(storage.data()); }

  ~Handle() {
    if (!storage.empty() && file()->pMethods != nullptr) {
      file()->pMethods->xUnlock(file(), SQLITE_LOCK_NONE);
      file()->pMethods->xClose(file());
    }
    sqlite3_free_filename(file_name);
  }
};

namespace {

tl::unexpected<Error> failed(const std::string& file, const char* what, int result) {
  if ((result & 0xff) == SQLITE_NOMEM) return fail(ErrorCode::out_of_memory, file + ": out of memory");
  return fail(ErrorCode::cache_unavailable, file + " cannot be " + what + ": " + sqlite3_errstr(result));
}

}  // namespace

FileAccess::FileAccess(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
FileAccess::FileAccess(FileAccess&& other) noexcept = default;
FileAccess::~FileAccess() = default;

Result<FileAccess> FileAccess::open(const std::filesystem::path& file, bool writable) {
  auto handle = std::make_unique<Handle>();
  handle->name = file.string();
  handle->vfs = sqlite3_vfs_find(nullptr);
  if (handle->vfs == nullptr) return failed(handle->name, "opened", SQLITE_ERROR);
  handle->file_name = sqlite3_create_filename(handle->name.c_str(), "", "", 0, nullptr);
  if (handle->file_name == nullptr) return failed(handle->name, "opened", SQLITE_NOMEM);
  const auto bytes = static_cast<std::size_t>(handle->vfs->szOsFile);
  handle->storage.resize(bytes / sizeof(std::max_align_t) + 1);
  const int access = writable ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
  int granted = 0;
  const int result = handle->vfs->xOpen(handle->vfs, handle->file_name, handle->file(),
                                        access | SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_NOFOLLOW, &granted);
  if (result != SQLITE_OK) return failed(handle->name, "opened", result);
  if (writable && (granted & SQLITE_OPEN_READWRITE) == 0) return failed(handle->name, "opened", SQLITE_READONLY);
  return FileAccess(std::move(handle));
}

Result<void> FileAccess::lock(int level, int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const int result = handle_->file()->pMethods->xLock(handle_->file(), level);
    if (result == SQLITE_OK) return {};
    if ((result & 0xff) != SQLITE_BUSY) return failed(handle_->name, "locked", result);
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::database_busy, handle_->name + " is locked by another process for too long",
                  "try again when it has finished");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<void> FileAccess::lock_shared(int timeout_ms) { return lock(SQLITE_LOCK_SHARED, timeout_ms); }

Result<void> FileAccess::lock_exclusive(int timeout_ms) {
  for (const int level : {SQLITE_LOCK_SHARED, SQLITE_LOCK_RESERVED, SQLITE_LOCK_EXCLUSIVE}) {
    if (auto locked = lock(level, timeout_ms); !locked) return locked;
  }
  return {};
}

Result<std::vector<std::uint8_t>> FileAccess::read_all() const {
  return read_start(std::numeric_limits<std::int64_t>::max());
}

Result<std::vector<std::uint8_t>> FileAccess::read_start(std::int64_t size) const {
  sqlite3_int64 length = 0;
  const sqlite3_io_methods& methods = *handle_->file()->pMethods;
  if (const int result = methods.xFileSize(handle_->file(), &length); result != SQLITE_OK)
    return failed(handle_->name, "read", result);
  try {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(std::min<std::int64_t>(length, size)));
    constexpr std::size_t kPiece = std::size_t{1} << 20;  // one call takes an int
    for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
      const auto piece = static_cast<int>(std::min(kPiece, bytes.size() - at));
      const int result = methods.xRead(handle_->file(), bytes.data() + at, piece, static_cast<sqlite3_int64>(at));
      if (result != SQLITE_OK) return failed(handle_->name, "read", result);
    }
    return bytes;
  } catch (const std::bad_alloc&) {
    return failed(handle_->name, "read", SQLITE_NOMEM);
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
