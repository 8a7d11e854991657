// database.hpp -- how a database of ours is created, opened, hardened, migrated, checked and put aside. Internal to
// cache/, but for what `doctor` says of the journal. Any thread; what is returned belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/sqlite/errors.hpp"
#include "leanattn/error.hpp"

namespace SQLite {
class Database;
}  // namespace SQLite

namespace leanattn {
inline namespace v1 {
namespace detail {

/// What a kind of database looks like. `migrations[i]` takes user_version i to i + 1 and is never edited once released.
struct Schema {
  const char* file_name;         ///< "tuning.db"
  std::uint32_t application_id;  ///< the header field that marks the file as ours
  std::span<const char* const> migrations;
  /// What the SQL of the migrations cannot do, run after it on a database that had version `from`; may be null. Throws
  /// SQLite::Exception.
  void (*finish_migration)(SQLite::Database& database, int from) = nullptr;
  /// Texts, blobs and rows of more bytes are refused before they are read (SQLITE_LIMIT_LENGTH).
  int longest_value = 16 << 20;
  bool precious = true;  ///< synchronous=EXTRA and integrity_check when opened for writing; else NORMAL and damage is
                         ///< found row by row

  int version() const { return static_cast<int>(migrations.size()); }
};

/// Circumstances that decide how a file is opened; tests make their own.
struct OpenPolicy {
  int busy_timeout_ms = 10000;  ///< how long to wait for other processes' locks
  bool network_filesystem = false;
  int sqlite_version = 0;         ///< as sqlite3_libversion_number()
  int queue_timeout_ms = 600000;  ///< how long maintenance waits for maintenance by other processes
  bool check_fully = false;       ///< integrity_check when opened for writing, whatever the schema and size
  bool immutable = false;  ///< for reading: nobody changes the file, so no lock is taken and no journal looked for
};

/// For this directory, this process and the linked SQLite. LEANATTN_BUSY_TIMEOUT_MS overrides both times.
OpenPolicy open_policy(const std::filesystem::path& directory, int busy_timeout_ms);

/// SQLite before 3.51.3 is reported to damage WAL databases when several connections checkpoint at once, and WAL's
/// shared memory does not work across hosts at all.
bool may_use_wal(const OpenPolicy& policy);

/// A database for writing, and what had to be put aside to get one.
struct OpenedDatabase {
  std::unique_ptr<SQLite::Database> database;
  std::filesystem::path file;
  std::filesystem::path put_aside;  ///< empty unless a damaged file was moved away
  std::string damage;               ///< why it was
};

/// Copies what can still be read of a damaged database into a new one, whose transaction the caller owns. May throw
/// SQLite::Exception. An error, or an exception, leaves the damaged file where it is.
using Salvage = std::function<Result<void>(SQLite::Database& damaged, SQLite::Database& fresh)>;

/// Opens directory/schema.file_name for writing, creating or migrating it as needed. A file that is proven to be
/// damaged is replaced in one step by a new one with what `salvage` (which may be empty) makes of it; a process that is
/// killed meanwhile leaves either of the two, and the next one to open it begins again. `directory` must be free of
/// symbolic links and safe (cache_directory says so). Errors: database_newer (the file is not touched), database_busy,
/// cache_unavailable, out_of_memory, what `salvage` returns.
Result<OpenedDatabase> open_read_write(const Schema& schema, const std::filesystem::path& directory,
                                       const OpenPolicy& policy, const Salvage& salvage = {});

/// Opens a file anywhere for reading, on read-only media too. A transaction that another process left unfinished is
/// rolled back where this process may do so, and otherwise in a copy in memory; nothing else changes the file. A file
/// of an older version is migrated in a copy in memory. Errors: not_found, database_newer, database_corrupt,
/// database_busy, cache_unavailable, out_of_memory.
Result<std::unique_ptr<SQLite::Database>> open_read_only(const Schema& schema, const std::filesystem::path& file,
                                                         const OpenPolicy& policy);

/// Opens a damaged file as it is, ignoring locks and journals, to read what can be read. Errors: database_corrupt,
/// out_of_memory.
Result<std::unique_ptr<SQLite::Database>> open_damaged(const Schema& schema, const std::filesystem::path& file);

/// Rolls back what a rollback that failed itself, for lack of memory, has left open.
void end_transaction(SQLite::Database& database);

/// Whether another file has taken the name of the one that is open: it was replaced, and what is written to it is lost.
bool has_moved(SQLite::Database& database);

/// The user_version of what is open: 0 where a file has been emptied meanwhile. Throws SQLite::Exception.
int version_of(SQLite::Database& database);

/// An empty database in memory. Errors: out_of_memory, internal.
Result<std::unique_ptr<SQLite::Database>> open_memory(const Schema& schema);

/// integrity_check and foreign_key_check: one line per finding, at most `limit`. Throws SQLite::Exception where the
/// file could not be read for another reason than its contents.
std::vector<std::string> find_file_damage(SQLite::Database& database, int limit);

/// The same, after application_id, version and schema. Throws as find_file_damage.
std::vector<std::string> find_damage(SQLite::Database& database, const Schema& schema, int limit);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
