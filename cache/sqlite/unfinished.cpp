#include "cache/sqlite/unfinished.hpp"

#include <SQLiteCpp/Backup.h>
#include <SQLiteCpp/SQLiteCpp.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cache/environment_variable.hpp"
#include "cache/files.hpp"
#include "cache/sqlite/file_access.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Removed with its contents on destruction.
class PrivateDirectory {
 public:
  PrivateDirectory() {
    std::error_code error;
    const std::string named = environment_variable("TMPDIR");
    std::string pattern = (named.starts_with('/') ? named : "/tmp") + "/leanattn-read-XXXXXX";
    if (::mkdtemp(pattern.data()) != nullptr && ::chmod(pattern.c_str(), 0700) == 0) path_ = pattern;
  }
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  ~PrivateDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The bytes of a journal; empty where there is none. A journal is never locked, so any descriptor may read it.
Bytes read_plain(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  Bytes bytes(stream ? static_cast<std::size_t>(stream.tellg()) : 0);
  stream.seekg(0);
  stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return stream ? bytes : Bytes();
}

bool write_plain(const std::filesystem::path& file, const Bytes& bytes) {
  if (!open_private(file, O_EXCL)) return false;
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  return static_cast<bool>(stream);
}

bool same_start(const Bytes& a, const Bytes& b) {
  constexpr std::size_t kWalHeader = 32;
  return a.size() >= kWalHeader && b.size() >= kWalHeader && std::equal(a.begin(), a.begin() + kWalHeader, b.begin());
}

struct Snapshot {
  Bytes database, journal, wal;
};

/// A database and its journal as they were at one moment. A shared lock keeps a rollback journal and what it belongs to
/// from changing. Checkpoints of a write-ahead log do not heed that lock: they copy pages of the log into the database,
/// where the log that is read afterwards covers them, unless it has been started anew meanwhile, which its header
/// tells.
Result<Snapshot> take_snapshot(const std::filesystem::path& file, int timeout_ms) {
  auto access = FileAccess::open(file, false);
  if (!access) return tl::unexpected(access.error());
  if (auto locked = access->lock_shared(timeout_ms); !locked) return tl::unexpected(locked.error());
  const std::filesystem::path journal = file.string() + "-journal", wal = file.string() + "-wal";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const Bytes before = read_plain(wal);
    auto database = access->read_all();
    if (!database) return tl::unexpected(database.error());
    Snapshot snapshot{*std::move(database), read_plain(journal), read_plain(wal)};
    if ((before.empty() && snapshot.wal.empty()) || same_start(before, snapshot.wal)) return snapshot;
    if (std::chrono::steady_clock::now() >= deadline)
      return fail(ErrorCode::database_busy, file.string() + " does not stop changing", "try again later");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

bool has_journal(const std::filesystem::path& file) {
  for (const char* suffix : {"-journal", "-wal"}) {
    struct stat status {};
    if (::stat((file.string() + suffix).c_str(), &status) == 0 && status.st_size > 0) return true;
  }
  return false;
}

bool may_finish_in_place(const std::filesystem::path& file) {
  const auto state = check_file(file);
  if (!state || *state != FileState::usable) return false;
  const std::filesystem::path directory = file.has_parent_path() ? file.parent_path() : ".";
  return ::faccessat(AT_FDCWD, file.c_str(), W_OK, AT_EACCESS) == 0 &&
         ::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

Result<std::unique_ptr<SQLite::Database>> read_past_journal(const std::filesystem::path& file, int timeout_ms) {
  const auto unreadable = [&](const std::string& why) {
    return fail(
        ErrorCode::cache_unavailable,
        file.string() + " was left in the middle of a change by a process that ended, and cannot be read: " + why,
        "its owner can mend it: any command that opens it for writing, such as leanattn db rebuild --db " +
            (file.has_parent_path() ? file.parent_path().string() : "."));
  };
  const auto snapshot = take_snapshot(file, timeout_ms);
  if (!snapshot) {
    if (snapshot.error().code == ErrorCode::cache_unavailable) return unreadable(snapshot.error().message);
    return tl::unexpected(snapshot.error());
  }
  const PrivateDirectory directory;
  if (directory.path().empty()) return unreadable(with_errno("there is no temporary directory for a copy", errno));
  const std::filesystem::path copy = directory.path() / "copy.db";
  const bool copied = write_plain(copy, snapshot->database) &&
                      (snapshot->journal.empty() || write_plain(copy.string() + "-journal", snapshot->journal)) &&
                      (snapshot->wal.empty() || write_plain(copy.string() + "-wal", snapshot->wal));
  if (!copied) return unreadable("no copy fits into " + directory.path().string());
  SQLite::Database recovered(copy.string(), SQLite::OPEN_READWRITE);
  auto memory = std::make_unique<SQLite::Database>(":memory:",
                                                   SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE | SQLITE_OPEN_NOMUTEX);
  SQLite::Backup(*memory, recovered).executeStep();
  return memory;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
