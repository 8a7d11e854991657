// database.hpp -- how a database of ours is created, opened, hardened, migrated, checked and put aside. Internal to
// cache/, but for what `doctor` says of the journal. Any thread; what is returned belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "leanattn/error.hpp"

namespace SQLite {
class Database;
class Exception;
}  // namespace SQLite

namespace leanattn {
inline namespace v1 {
namespace detail {

/// What a kind of database looks like. `migrations[i]` takes user_version i to i + 1 and is never edited once released.
struct Schema {
  const char* file_name;         ///< "tuning.db"
  std::uint32_t application_id;  ///< the header field that marks the file as ours
  std::span<const char* const> migrations;
  bool precious;  ///< synchronous=FULL and integrity_check when opened for writing; else NORMAL and damage is found row
                  ///< by row

  int version() const { return static_cast<int>(migrations.size()); }
};

/// Circumstances that decide how a file is opened; tests make their own.
struct OpenPolicy {
  int busy_timeout_ms = 10000;  ///< how long to wait for other processes' locks
  bool network_filesystem = false;
  int sqlite_version = 0;    ///< as sqlite3_libversion_number()
  bool check_fully = false;  ///< integrity_check when opened for writing, whatever the schema and size
};

/// For this directory, this process and the linked SQLite. LEANATTN_BUSY_TIMEOUT_MS overrides `busy_timeout_ms`.
OpenPolicy open_policy(const std::filesystem::path& directory, int busy_timeout_ms);

/// SQLite before 3.51.3 is reported to damage WAL databases when several connections checkpoint at once, and WAL's
/// shared memory does not work across hosts at all.
bool may_use_wal(const OpenPolicy& policy);

/// SQLite's error as ours: database_busy, database_corrupt, cache_unavailable (full, read-only, I/O), out_of_memory,
/// internal.
Error to_error(const SQLite::Exception& exception, const std::string& file);

/// The exception in flight as an Error about `file`; only inside a catch block.
Error current_exception_error(const std::string& file);

/// Runs `body`, which returns a Result; exceptions of SQLite and of allocation become an Error about `file`.
template <class Body>
auto guarded(const std::string& file, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return tl::unexpected(current_exception_error(file));
  }
}

/// A database for writing, and what had to be put aside to get one.
struct OpenedDatabase {
  std::unique_ptr<SQLite::Database> database;
  std::filesystem::path file;
  std::filesystem::path put_aside;  ///< empty unless a damaged file was moved away
  std::string damage;               ///< why it was
};

/// Opens directory/schema.file_name for writing, creating, migrating or replacing it as needed. `directory` must be
/// free of symbolic links and safe (cache_directory says so). Errors: database_newer (the file is not touched),
/// database_busy, cache_unavailable.
Result<OpenedDatabase> open_read_write(const Schema& schema, const std::filesystem::path& directory,
                                       const OpenPolicy& policy);

/// Opens a file anywhere without ever changing it, on read-only media too. One of an older version is migrated in a
/// copy in memory. Errors: not_found, database_newer, database_corrupt, database_busy, cache_unavailable.
Result<std::unique_ptr<SQLite::Database>> open_read_only(const Schema& schema, const std::filesystem::path& file,
                                                         const OpenPolicy& policy);

/// Opens a damaged file as it is, ignoring locks and journals, to read what can be read. Errors: database_corrupt.
Result<std::unique_ptr<SQLite::Database>> open_damaged(const std::filesystem::path& file);

/// An empty database in memory. Errors: out_of_memory, internal.
Result<std::unique_ptr<SQLite::Database>> open_memory(const Schema& schema);

/// integrity_check, foreign_key_check, application_id, version and schema: one line per finding, at most `limit`.
std::vector<std::string> find_damage(SQLite::Database& database, const Schema& schema, int limit);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
