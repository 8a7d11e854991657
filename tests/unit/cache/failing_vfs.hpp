// failing_vfs.hpp -- a disk that fails on request: SQLite's file layer with the n-th change or read refused, or the
// process ended at it. While a FailingVfs lives, every database that this process opens goes through it. One at a time;
// one thread.
#pragma once

#include <sqlite3.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

namespace leanattn::cache_test {

class FailingVfs {
 public:
  /// `read_error` counts reads and refuses them; the others count changes. `death` ends the process at once, with
  /// kDeathStatus, as a kill does.
  enum class Kind { full, io_error, read_error, death };
  static constexpr int kDeathStatus = 77;

  FailingVfs() : below_(sqlite3_vfs_find(nullptr)), vfs_(*below_) {
    if (instance_ != nullptr) throw std::logic_error("one FailingVfs at a time");
    instance_ = this;
    vfs_.zName = "failing";
    vfs_.szOsFile = static_cast<int>(sizeof(File)) + below_->szOsFile;
    vfs_.pNext = nullptr;
    vfs_.xOpen = [](sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
      return instance_->open(name, file, flags, out_flags);
    };
    vfs_.xDelete = [](sqlite3_vfs*, const char* name, int sync) {
      if (instance_->refuses()) return SQLITE_IOERR_DELETE;
      return instance_->below_->xDelete(instance_->below_, name, sync);
    };
    sqlite3_vfs_register(&vfs_, 1);
  }
  FailingVfs(const FailingVfs&) = delete;
  FailingVfs& operator=(const FailingVfs&) = delete;
  ~FailingVfs() {
    sqlite3_vfs_unregister(&vfs_);
    sqlite3_vfs_register(below_, 1);
    instance_ = nullptr;
  }

  /// Counts a change that the process makes to its files past SQLite.
  static void count_change() {
    if (instance_ != nullptr) instance_->refuses();
  }

  /// Of the changes (or reads) from now on, the n-th (from 1) is refused; with `lasting`, so are all that follow.
  /// Otherwise, `repeats` in a row are.
  void arm(int n, Kind kind, bool lasting, int repeats = 1) {
    countdown_ = n, kind_ = kind, lasting_ = lasting, refusals_ = 0, repeats_ = repeats;
  }
  void disarm() { countdown_ = 0, lasting_ = false; }
  /// How many changes have been refused since arm().
  int refusals() const { return refusals_; }

 private:
  struct File : sqlite3_file {
    sqlite3_file* below() { return reinterpret_cast<sqlite3_file*>(this + 1); }
  };
  static File& file_of(sqlite3_file* file) { return *static_cast<File*>(file); }

  bool refuses(bool reads = false) {
    if (reads != (kind_ == Kind::read_error) || countdown_ == 0 || (--countdown_ > 0)) return false;
    ++refusals_;
    countdown_ = lasting_ || refusals_ < repeats_ ? 1 : 0;
    if (kind_ == Kind::death) ::_exit(kDeathStatus);
    return true;
  }
  int error(int io_error) const { return kind_ == Kind::full ? SQLITE_FULL : io_error; }

  int open(const char* name, sqlite3_file* file, int flags, int* out_flags) {
    file->pMethods = nullptr;
    if ((flags & SQLITE_OPEN_CREATE) != 0 && refuses()) return SQLITE_CANTOPEN;
    const int result = below_->xOpen(below_, name, file_of(file).below(), flags, out_flags);
    if (result == SQLITE_OK) file->pMethods = &methods();
    return result;
  }

  static inline FailingVfs* instance_ = nullptr;
  // Version 1: no shared memory, so no WAL.
  static const sqlite3_io_methods& methods() {
    static const sqlite3_io_methods methods = {
        .iVersion = 1,
        .xClose = [](sqlite3_file* f) { return file_of(f).below()->pMethods->xClose(file_of(f).below()); },
        .xRead =
            [](sqlite3_file* f, void* to, int bytes, sqlite3_int64 at) {
              if (instance_->refuses(true)) return SQLITE_IOERR_READ;
              return file_of(f).below()->pMethods->xRead(file_of(f).below(), to, bytes, at);
            },
        .xWrite =
            [](sqlite3_file* f, const void* from, int bytes, sqlite3_int64 at) {
              sqlite3_file* const below = file_of(f).below();
              if (!instance_->refuses()) return below->pMethods->xWrite(below, from, bytes, at);
              // A disk that fills up takes a part of it.
              below->pMethods->xWrite(below, from, bytes / 2, at);
              return instance_->error(SQLITE_IOERR_WRITE);
            },
        .xTruncate =
            [](sqlite3_file* f, sqlite3_int64 size) {
              if (instance_->refuses()) return SQLITE_IOERR_TRUNCATE;
              return file_of(f).below()->pMethods->xTruncate(file_of(f).below(), size);
            },
        .xSync =
            [](sqlite3_file* f, int flags) {
              if (instance_->refuses()) return instance_->error(SQLITE_IOERR_FSYNC);
              return file_of(f).below()->pMethods->xSync(file_of(f).below(), flags);
            },
        .xFileSize =
            [](sqlite3_file* f, sqlite3_int64* size) {
              return file_of(f).below()->pMethods->xFileSize(file_of(f).below(), size);
            },
        .xLock = [](sqlite3_file* f,
                    int level) { return file_of(f).below()->pMethods->xLock(file_of(f).below(), level); },
        .xUnlock = [](sqlite3_file* f,
                      int level) { return file_of(f).below()->pMethods->xUnlock(file_of(f).below(), level); },
        .xCheckReservedLock =
            [](sqlite3_file* f, int* held) {
              return file_of(f).below()->pMethods->xCheckReservedLock(file_of(f).below(), held);
            },
        .xFileControl =
            [](sqlite3_file* f, int what, void* with) {
              return file_of(f).below()->pMethods->xFileControl(file_of(f).below(), what, with);
            },
        .xSectorSize = [](sqlite3_file* f) { return file_of(f).below()->pMethods->xSectorSize(file_of(f).below()); },
        .xDeviceCharacteristics =
            [](sqlite3_file* f) { return file_of(f).below()->pMethods->xDeviceCharacteristics(file_of(f).below()); },
        .xShmMap = nullptr,
        .xShmLock = nullptr,
        .xShmBarrier = nullptr,
        .xShmUnmap = nullptr,
        .xFetch = nullptr,
        .xUnfetch = nullptr,
    };
    return methods;
  }

  sqlite3_vfs* below_;
  sqlite3_vfs vfs_;
  int countdown_ = 0;
  Kind kind_ = Kind::full;
  bool lasting_ = false;
  int refusals_ = 0;
  int repeats_ = 1;
};

}  // namespace leanattn::cache_test
