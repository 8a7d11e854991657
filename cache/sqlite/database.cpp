#include "cache/sqlite/database.hpp"

#include <SQLiteCpp/Backup.h>
#include <SQLiteCpp/SQLiteCpp.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "cache/environment_variable.hpp"
#include "cache/files.hpp"
#include "cache/paths.hpp"
#include "cache/sqlite/file_access.hpp"
#include "cache/sqlite/identity.hpp"
#include "cache/sqlite/unfinished.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr std::int64_t kCheckedOnOpenBytes = 32 << 20;  ///< above this, integrity_check is left to `leanattn db check`
constexpr std::int64_t kSmallestDatabase = 512;         ///< SQLite's smallest page

/// Older ones cannot read STRICT tables and call them damage.
Result<void> check_library() {
  if (sqlite3_libversion_number() >= 3037000) return {};
  return fail(ErrorCode::cache_unavailable, std::string("SQLite ") + sqlite3_libversion() + " is too old for the cache",
              "link SQLite 3.37 or newer");
}

/// Waits for another connection's lock, `waits` times so far. SQLite's own waits grow to a tenth of a second, so that
/// who has waited longest asks least often, and starves where many write. These stay short.
int wait_for_lock(void* timeout_ms, int waits) {
  using Clock = std::chrono::steady_clock;
  thread_local Clock::time_point began;
  thread_local std::minstd_rand random(std::random_device{}());
  const Clock::time_point now = Clock::now();
  if (waits == 0) began = now;
  if (now - began >= std::chrono::milliseconds(reinterpret_cast<std::intptr_t>(timeout_ms))) return 0;
  std::this_thread::sleep_for(std::chrono::microseconds(1000 + random() % 4000));
  return 1;
}

void be_patient(SQLite::Database& database, const OpenPolicy& policy) {
  // SQLite hands the word on as it is, and nobody follows it.
  void* const word =
      reinterpret_cast<void*>(static_cast<std::intptr_t>(policy.busy_timeout_ms));  // NOLINT(performance-no-int-to-ptr)
  sqlite3_busy_handler(database.getHandle(), wait_for_lock, word);
}

/// What SQLite recommends for files one did not write oneself, and what our schema relies on.
void harden(SQLite::Database& database, const Schema& schema) {
  sqlite3* handle = database.getHandle();
  sqlite3_limit(handle, SQLITE_LIMIT_LENGTH, schema.longest_value);
  for (const auto& [option, on] : {std::pair{SQLITE_DBCONFIG_DEFENSIVE, 1},
                                   {SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
                                   {SQLITE_DBCONFIG_ENABLE_FKEY, 1},
                                   {SQLITE_DBCONFIG_ENABLE_TRIGGER, 0},
                                   {SQLITE_DBCONFIG_ENABLE_VIEW, 0},
                                   {SQLITE_DBCONFIG_DQS_DML, 0},
                                   {SQLITE_DBCONFIG_DQS_DDL, 0}}) {
    sqlite3_db_config(handle, option, on, nullptr);
  }
  database.exec("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY");
}

void choose_journal(SQLite::Database& database, const Schema& schema, const OpenPolicy& policy) {
  const bool wal = may_use_wal(policy);
  SQLite::Statement current(database, "PRAGMA journal_mode");
  const bool is_wal = current.executeStep() && current.getColumn(0).getString() == "wal";
  current.reset();
  if (wal != is_wal) {
    // Other connections can keep a database in WAL mode; then it stays so, and this connection never checkpoints (see
    // may_use_wal).
    SQLite::Statement change(database, wal ? "PRAGMA journal_mode = WAL" : "PRAGMA journal_mode = DELETE");
    const int result = change.tryExecuteStep();
    const bool still_wal = result == SQLITE_ROW ? change.getColumn(0).getString() == "wal" : is_wal;
    if (still_wal && !wal) {
      database.exec("PRAGMA wal_autocheckpoint = 0");
      sqlite3_db_config(database.getHandle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    }
  }
  database.exec(schema.precious ? "PRAGMA synchronous = EXTRA" : "PRAGMA synchronous = NORMAL");
  // Changed pages stay in memory until the commit: writing some of them to the file earlier, to keep the page cache
  // small, would lock readers out for the rest of a long transaction.
  database.exec("PRAGMA cache_spill = OFF");
}

/// Where a new database is built until it gets its name.
std::string name_while_built(const std::filesystem::path& file) { return file.string() + ".new"; }

void remove_unfinished(const std::filesystem::path& file) {
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) ::unlink((name_while_built(file) + suffix).c_str());
}

/// Builds a database beside `file`, so that under its own name a file is whole from the start: an empty file there
/// always means that something was lost. Call with the directory locked.
Result<void> build_beside(const Schema& schema, const std::filesystem::path& file, const Salvage& fill) {
  remove_unfinished(file);
  const std::string built = name_while_built(file);
  {
    const FileDescriptor made = open_private(built, O_EXCL);
    if (!made) {
      return tl::unexpected(cannot_open({ErrorCode::cache_unavailable,
                                         with_errno("cannot create " + file.string(), errno),
                                         "set LEANATTN_CACHE_DIR to a writable directory on a local disk",
                                         {}}));
    }
    // Who may read the directory may read what is in it. SQLite makes journals with the permissions of their database.
    struct stat directory {};
    if (::stat(file.parent_path().c_str(), &directory) == 0)
      ::fchmod(made.get(), S_IRUSR | S_IWUSR | (directory.st_mode & (S_IRGRP | S_IROTH)));
  }
  auto done = guarded(file.string(), [&]() -> Result<void> {
    SQLite::Database database(built, SQLite::OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW);
    harden(database, schema);
    database.exec("PRAGMA auto_vacuum = INCREMENTAL");
    SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
    migrate_from(database, schema, 0);
    if (fill) {
      const auto source = open_damaged(schema, file);
      if (!source) return tl::unexpected(source.error());
      if (auto filled = fill(**source, database); !filled) return filled;
    }
    transaction.commit();
    return {};
  });
  if (!done) remove_unfinished(file);
  return done;
}

/// Gives what was built beside `file` its name, in one step that replaces what had it.
Result<void> name_built(const std::filesystem::path& file) {
  if (::rename(name_while_built(file).c_str(), file.c_str()) != 0) {
    const int error = errno;
    remove_unfinished(file);
    return fail(ErrorCode::cache_unavailable, with_errno("cannot create " + file.string(), error));
  }
  sync_path(file.parent_path());
  return {};
}

Result<std::int64_t> database_size(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) {
    const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::not_found : ErrorCode::cache_unavailable;
    return fail(code, with_errno("cannot read the database " + file.string(), errno));
  }
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::cache_unavailable, file.string() + " is not a regular file");
  if (::faccessat(AT_FDCWD, file.c_str(), R_OK, AT_EACCESS) != 0) {
    return fail(ErrorCode::cache_unavailable, with_errno(file.string() + " is not readable", errno),
                "its owner can let others read it with chmod a+r " + file.string());
  }
  return static_cast<std::int64_t>(status.st_size);
}

/// SQLite opens whatever lies where it keeps its journals, and a pipe there would never let it go on.
Result<void> check_journals(const std::filesystem::path& file) {
  for (const char* suffix : {"-journal", "-wal", "-shm"}) {
    const std::string name = file.string() + suffix;
    struct stat status {};
    if (::stat(name.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
      return fail(ErrorCode::cache_unavailable, name + " is not a regular file", "remove it");
  }
  return {};
}

/// Whether the header asks for a way of writing that SQLite does not know; such a file opens for reading only.
bool has_unknown_write_format(const std::filesystem::path& file) {
  constexpr std::size_t kWriteVersionAt = 18;
  constexpr int kWal = 2;
  const auto access = FileAccess::open(file, false);
  if (!access) return false;
  const auto header = access->read_start(kWriteVersionAt + 1);
  return header && header->size() > kWriteVersionAt && (*header)[kWriteVersionAt] > kWal;
}

Result<void> check_size(const std::filesystem::path& file, std::int64_t size) {
  if (size >= kSmallestDatabase) return {};
  return tl::unexpected(damaged(file.string(), "it has only " + std::to_string(size) + " bytes"));
}

Result<void> check_tables(const std::filesystem::path& file, const Identity& identity, const Schema& schema) {
  if (identity.schema == expected_schema(schema, identity.version)) return {};
  return tl::unexpected(
      damaged(file.string(), "its tables are not those of version " + std::to_string(identity.version)));
}

/// Opens an existing file for writing. Errors: as open_read_write, and database_corrupt.
Result<std::unique_ptr<SQLite::Database>> open_existing(const Schema& schema, const std::filesystem::path& file,
                                                        const OpenPolicy& policy) {
  return guarded(file.string(), [&]() -> Result<std::unique_ptr<SQLite::Database>> {
    const auto size = database_size(file);
    if (!size) return tl::unexpected(size.error());
    if (auto regular = check_journals(file); !regular) return tl::unexpected(regular.error());
    if (auto whole = check_size(file, *size); !whole) return tl::unexpected(whole.error());
    auto database = std::make_unique<SQLite::Database>(
        file.string(), SQLite::OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX);
    be_patient(*database, policy);
    harden(*database, schema);
    const Identity identity = identify(*database);
    if (auto known = check_identity(identity, schema, file.string()); !known) return tl::unexpected(known.error());
    if (sqlite3_db_readonly(database->getHandle(), "main") != 0) {
      if (has_unknown_write_format(file))
        return tl::unexpected(damaged(file.string(), "its header names an unknown format"));
      return fail(ErrorCode::cache_unavailable, file.string() + " is read-only",
                  "make it writable, or set LEANATTN_CACHE_DIR");
    }
    if (auto expected = check_tables(file, identity, schema); !expected) return tl::unexpected(expected.error());
    if (policy.check_fully || (schema.precious && *size <= kCheckedOnOpenBytes)) {
      const auto findings = find_file_damage(*database, 1);
      if (!findings.empty()) return tl::unexpected(damaged(file.string(), findings.front()));
    }
    if (identity.version < schema.version()) {
      if (auto migrated = migrate(*database, schema, file.string()); !migrated) return tl::unexpected(migrated.error());
    }
    choose_journal(*database, schema, policy);
    return database;
  });
}

/// `file:` URI of an absolute or relative path, everything but plain characters escaped.
std::string immutable_uri(const std::filesystem::path& file) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string uri = "file:";
  for (const char c : std::filesystem::absolute(file).string()) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '/' || c == '.' || c == '-' || c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
        (c >= 'A' && c <= 'Z')) {
      uri += c;
    } else {
      uri += '%';
      uri += kDigits[byte >> 4];
      uri += kDigits[byte & 15];
    }
  }
  return uri + "?immutable=1";
}

/// Without locks, and without a look at journals.
std::unique_ptr<SQLite::Database> open_immutable(const Schema& schema, const std::filesystem::path& file) {
  auto database = std::make_unique<SQLite::Database>(immutable_uri(file),
                                                     SQLite::OPEN_READONLY | SQLite::OPEN_URI | SQLITE_OPEN_NOMUTEX);
  harden(*database, schema);
  return database;
}

std::unique_ptr<SQLite::Database> open_with_locks(const Schema& schema, const std::filesystem::path& file, int flags,
                                                  const OpenPolicy& policy) {
  auto database = std::make_unique<SQLite::Database>(file.string(), flags | SQLITE_OPEN_NOMUTEX);
  be_patient(*database, policy);
  harden(*database, schema);
  ask_number(*database, "SELECT count(*) FROM sqlite_schema");
  return database;
}

/// Whether `exception` may mean that locks cannot be taken, or that a journal must be rolled back first.
bool is_refusal(const SQLite::Exception& exception) {
  switch (exception.getErrorCode() & 0xff) {
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY: return true;
    case SQLITE_IOERR:
      switch (exception.getExtendedErrorCode()) {
        case SQLITE_IOERR_RDLOCK:
        case SQLITE_IOERR_LOCK:
        case SQLITE_IOERR_UNLOCK:
        case SQLITE_IOERR_CHECKRESERVEDLOCK:
        case SQLITE_IOERR_SHMOPEN:
        case SQLITE_IOERR_SHMSIZE:
        case SQLITE_IOERR_SHMLOCK:
        case SQLITE_IOERR_SHMMAP: return true;
        default: return false;
      }
    default: return false;
  }
}

/// Locks cannot be taken everywhere (read-only media, write-ahead logs without their shared memory). Where they cannot,
/// and no unfinished transaction is beside the file, it is read as something that does not change.
Result<std::unique_ptr<SQLite::Database>> open_for_reading(const Schema& schema, const std::filesystem::path& file,
                                                           const OpenPolicy& policy) {
  if (policy.immutable) return open_immutable(schema, file);
  try {
    return open_with_locks(schema, file, SQLite::OPEN_READONLY, policy);
  } catch (const SQLite::Exception& exception) {
    if (!is_refusal(exception)) throw;
  }
  if (has_journal(file)) {
    if (may_finish_in_place(file)) {
      try {
        open_with_locks(schema, file, SQLite::OPEN_READWRITE, policy);  // which rolls the journal back
        return open_with_locks(schema, file, SQLite::OPEN_READONLY, policy);
      } catch (const SQLite::Exception& exception) {
        if (!is_refusal(exception)) throw;
      }
    }
    auto copy = read_past_journal(file, policy.busy_timeout_ms);
    if (copy) harden(**copy, schema);
    return copy;
  }
  return open_immutable(schema, file);
}

/// The damaged file under another name, and the new one under its own. The file is locked against other processes, so
/// that none commits to it what would be lost. Call with the directory locked.
Result<std::filesystem::path> replace_damaged(const Schema& schema, const std::filesystem::path& file,
                                              const OpenPolicy& policy, const Salvage& salvage) {
  auto access = FileAccess::open(file, true);
  if (!access) return tl::unexpected(access.error());
  if (auto alone = access->lock_exclusive(policy.busy_timeout_ms); !alone) return tl::unexpected(alone.error());
  if (auto built = build_beside(schema, file, salvage); !built) return tl::unexpected(built.error());
  auto aside = keep_aside(file);
  if (!aside) {
    remove_unfinished(file);
    return aside;
  }
  if (auto named = name_built(file); !named) return tl::unexpected(named.error());
  return aside;
}

}  // namespace

OpenPolicy open_policy(const std::filesystem::path& directory, int busy_timeout_ms) {
  OpenPolicy policy{busy_timeout_ms, is_network_filesystem(directory), sqlite3_libversion_number()};
  const std::string text = environment_variable("LEANATTN_BUSY_TIMEOUT_MS");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && *end == '\0' && value >= 0) policy.busy_timeout_ms = policy.queue_timeout_ms = value;
  return policy;
}

bool may_use_wal(const OpenPolicy& policy) { return policy.sqlite_version >= 3051003 && !policy.network_filesystem; }

Result<OpenedDatabase> open_read_write(const Schema& schema, const std::filesystem::path& directory,
                                       const OpenPolicy& policy, const Salvage& salvage) {
  if (auto usable = check_library(); !usable) return tl::unexpected(usable.error());
  if (policy.network_filesystem) {
    return fail(ErrorCode::cache_unavailable,
                directory.string() + " is on a network file system, where locks cannot be relied on",
                "set LEANATTN_CACHE_DIR to a directory on a local disk");
  }
  OpenedDatabase opened;
  opened.file = directory / schema.file_name;
  // Twice: once on what is there, once on what replaced it.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto state = check_file(opened.file);
    if (!state) return tl::unexpected(state.error());
    if (*state == FileState::usable) {
      auto database = open_existing(schema, opened.file, policy);
      if (database) {
        opened.database = std::move(*database);
        return opened;
      }
      if (database.error().code != ErrorCode::database_corrupt) return tl::unexpected(database.error());
    }
    // Only one process at a time creates or repairs, and only after looking again: another may just have done it.
    const auto lock = lock_directory(directory, policy.busy_timeout_ms);
    if (!lock) return tl::unexpected(lock.error());
    const auto still = check_file(opened.file);
    if (!still) return tl::unexpected(still.error());
    if (*still == FileState::usable) {
      auto again = open_existing(schema, opened.file, policy);
      if (again) {
        opened.database = std::move(*again);
        return opened;
      }
      if (again.error().code != ErrorCode::database_corrupt) return tl::unexpected(again.error());
      auto aside = replace_damaged(schema, opened.file, policy, salvage);
      if (!aside) return tl::unexpected(aside.error());
      opened.put_aside = std::move(*aside);
      opened.damage = again.error().message;
    } else {
      auto made = build_beside(schema, opened.file, {});
      if (made) made = name_built(opened.file);
      if (!made) return tl::unexpected(made.error());
    }
  }
  auto database = open_existing(schema, opened.file, policy);
  if (!database) return tl::unexpected(database.error());
  opened.database = std::move(*database);
  return opened;
}

void end_transaction(SQLite::Database& database) {
  if (sqlite3_get_autocommit(database.getHandle()) == 0) database.tryExec("ROLLBACK");
}

bool has_moved(SQLite::Database& database) {
  int moved = 0;
  return sqlite3_file_control(database.getHandle(), "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved != 0;
}

int version_of(SQLite::Database& database) { return static_cast<int>(ask_number(database, "PRAGMA user_version")); }

Result<std::unique_ptr<SQLite::Database>> open_read_only(const Schema& schema, const std::filesystem::path& file,
                                                         const OpenPolicy& policy) {
  if (auto usable = check_library(); !usable) return tl::unexpected(usable.error());
  return guarded(file.string(), [&]() -> Result<std::unique_ptr<SQLite::Database>> {
    const auto size = database_size(file);
    if (!size) return tl::unexpected(size.error());
    if (auto regular = check_journals(file); !regular) return tl::unexpected(regular.error());
    if (auto whole = check_size(file, *size); !whole) return tl::unexpected(whole.error());
    auto opened = open_for_reading(schema, file, policy);
    if (!opened) return opened;
    const Identity identity = identify(**opened);
    if (auto known = check_identity(identity, schema, file.string()); !known) return tl::unexpected(known.error());
    if (auto expected = check_tables(file, identity, schema); !expected) return tl::unexpected(expected.error());
    if (identity.version == schema.version()) return opened;
    auto copy = std::make_unique<SQLite::Database>(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    SQLite::Backup(*copy, **opened).executeStep();
    harden(*copy, schema);
    if (auto migrated = migrate(*copy, schema, file.string()); !migrated) return tl::unexpected(migrated.error());
    return copy;
  });
}

Result<std::unique_ptr<SQLite::Database>> open_damaged(const Schema& schema, const std::filesystem::path& file) {
  return guarded(file.string(),
                 [&]() -> Result<std::unique_ptr<SQLite::Database>> { return open_immutable(schema, file); });
}

Result<std::unique_ptr<SQLite::Database>> open_memory(const Schema& schema) {
  if (auto usable = check_library(); !usable) return tl::unexpected(usable.error());
  return guarded("the database in memory", [&]() -> Result<std::unique_ptr<SQLite::Database>> {
    auto database = std::make_unique<SQLite::Database>(
        ":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE | SQLITE_OPEN_NOMUTEX);
    harden(*database, schema);
    SQLite::Transaction transaction(*database);
    migrate_from(*database, schema, 0);
    transaction.commit();
    return database;
  });
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
