// crash_vfs.hpp -- a disk that loses power: SQLite's file layer that, at a chosen change, takes back any of the changes
// that were never flushed, whole or by sectors and in any order, and ends the process. One at a time; one thread.
#pragma once

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace leanattn::cache_test {

class CrashVfs {
 public:
  static constexpr int kCrashStatus = 78;

  /// The n-th change from now on (from 1) is the last.
  CrashVfs(int n, std::uint64_t seed) : below_(sqlite3_vfs_find(nullptr)), vfs_(*below_), countdown_(n), random_(seed) {
    if (instance_ != nullptr) throw std::logic_error("one CrashVfs at a time");
    instance_ = this;
    vfs_.zName = "crash";
    vfs_.szOsFile = static_cast<int>(sizeof(File)) + below_->szOsFile;
    vfs_.pNext = nullptr;
    vfs_.xOpen = [](sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
      return instance_->open(name, file, flags, out_flags);
    };
    vfs_.xDelete = [](sqlite3_vfs*, const char* name, int sync) { return instance_->remove(name, sync); };
    sqlite3_vfs_register(&vfs_, 1);
  }
  CrashVfs(const CrashVfs&) = delete;
  CrashVfs& operator=(const CrashVfs&) = delete;
  ~CrashVfs() {
    sqlite3_vfs_unregister(&vfs_);
    sqlite3_vfs_register(below_, 1);
    instance_ = nullptr;
  }

 private:
  static constexpr std::int64_t kSector = 512;

  /// What brings a file back to what it was before one change.
  struct Undo {
    std::int64_t at = 0;
    std::vector<char> before;  ///< of the bytes that were there
    std::int64_t size_before = 0;
    bool resizes = false;
  };
  struct Unflushed {
    std::vector<Undo> changes;
    bool deleted = false;
    std::vector<char> contents;  ///< of a file whose deletion was not flushed
  };

  struct File : sqlite3_file {
    char name[512];
    sqlite3_file* below() { return reinterpret_cast<sqlite3_file*>(this + 1); }
  };
  static File& file_of(sqlite3_file* file) { return *static_cast<File*>(file); }

  /// Of a journal, which is never locked: closing another descriptor of a database would drop SQLite's locks on it.
  static std::vector<char> read_plain(const std::string& name) {
    std::ifstream stream(name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  static std::int64_t size_of(sqlite3_file* file) {
    sqlite3_int64 size = 0;
    file_of(file).below()->pMethods->xFileSize(file_of(file).below(), &size);
    return size;
  }

  bool chance() { return random_() % 2 == 0; }

  void count() {
    if (--countdown_ == 0) crash();
  }

  [[noreturn]] void crash() {
    for (auto& [name, file] : unflushed_) {
      if (file.deleted && chance()) {
        const int made = ::open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        static_cast<void>(!::pwrite(made, file.contents.data(), file.contents.size(), 0));
        continue;  // a file of that name that was made since is not in the directory
      }
      const int descriptor = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
      if (descriptor < 0) continue;
      for (auto change = file.changes.rbegin(); change != file.changes.rend(); ++change) undo(descriptor, *change);
    }
    ::_exit(kCrashStatus);
  }

  /// All of it, none, or each of its sectors by chance.
  void undo(int descriptor, const Undo& change) {
    const auto whole = random_() % 3;
    if (whole == 0) return;
    if (change.resizes && (whole == 1 || chance())) static_cast<void>(!::ftruncate(descriptor, change.size_before));
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(change.before.size()); at += kSector) {
      if (whole == 2 && chance()) continue;
      const auto bytes = std::min<std::int64_t>(kSector, static_cast<std::int64_t>(change.before.size()) - at);
      static_cast<void>(
          !::pwrite(descriptor, change.before.data() + at, static_cast<std::size_t>(bytes), change.at + at));
    }
  }

  void note(sqlite3_file* file, std::int64_t at, std::int64_t bytes, bool resizes) {
    const std::string name = file_of(file).name;
    if (name.empty()) return;
    const std::int64_t size = size_of(file);
    std::vector<char> before(static_cast<std::size_t>(std::max<std::int64_t>(std::min(bytes, size - at), 0)));
    if (!before.empty())
      file_of(file).below()->pMethods->xRead(file_of(file).below(), before.data(), static_cast<int>(before.size()), at);
    unflushed_[name].changes.push_back({at, std::move(before), size, resizes});
  }

  int open(const char* name, sqlite3_file* file, int flags, int* out_flags) {
    file->pMethods = nullptr;
    File& ours = file_of(file);
    std::snprintf(ours.name, sizeof ours.name, "%s", name == nullptr ? "" : name);
    const int result = below_->xOpen(below_, name, ours.below(), flags, out_flags);
    if (result == SQLITE_OK) file->pMethods = &methods();
    return result;
  }

  int remove(const char* name, int sync) {
    count();
    Unflushed removed{.changes = {}, .deleted = true, .contents = read_plain(name)};
    const int result = below_->xDelete(below_, name, sync);
    unflushed_.erase(name);
    if (sync == 0 && result == SQLITE_OK) unflushed_[name] = std::move(removed);
    return result;
  }

  static inline CrashVfs* instance_ = nullptr;
  static const sqlite3_io_methods& methods() {
    static const sqlite3_io_methods methods = {
        .iVersion = 1,
        .xClose = [](sqlite3_file* f) { return file_of(f).below()->pMethods->xClose(file_of(f).below()); },
        .xRead =
            [](sqlite3_file* f, void* to, int bytes, sqlite3_int64 at) {
              return file_of(f).below()->pMethods->xRead(file_of(f).below(), to, bytes, at);
            },
        .xWrite =
            [](sqlite3_file* f, const void* from, int bytes, sqlite3_int64 at) {
              instance_->note(f, at, bytes, at + bytes > size_of(f));
              const int result = file_of(f).below()->pMethods->xWrite(file_of(f).below(), from, bytes, at);
              instance_->count();
              return result;
            },
        .xTruncate =
            [](sqlite3_file* f, sqlite3_int64 size) {
              const std::int64_t before = size_of(f);
              instance_->note(f, size, std::max<std::int64_t>(before - size, 0), true);
              const int result = file_of(f).below()->pMethods->xTruncate(file_of(f).below(), size);
              instance_->count();
              return result;
            },
        .xSync =
            [](sqlite3_file* f, int flags) {
              instance_->count();
              instance_->unflushed_.erase(file_of(f).name);
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
        .xSectorSize = [](sqlite3_file*) { return static_cast<int>(kSector); },
        // None of the promises that SQLite would otherwise build on (atomic or ordered writes, powersafe overwrite).
        .xDeviceCharacteristics = [](sqlite3_file*) { return 0; },
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
  int countdown_;
  std::mt19937_64 random_;
  std::map<std::string, Unflushed> unflushed_;
};

}  // namespace leanattn::cache_test
