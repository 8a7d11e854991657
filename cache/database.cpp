#include "cache/database.hpp"

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

#include "cache/files.hpp"
#include "cache/identity.hpp"
#include "cache/paths.hpp"

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

/// While a file is being opened, SQL that cannot be run on it means that it is not what it should be.
template <class T>
Result<T> as_damage(Result<T> result, const std::filesystem::path& file) {
  if (!result && result.error().code == ErrorCode::internal) {
    const std::string why = std::move(result.error().message);
    return tl::unexpected(damaged(file.string(), why));
  }
  return result;
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
  sqlite3_busy_handler(database.getHandle(), wait_for_lock,
                       reinterpret_cast<void*>(static_cast<std::intptr_t>(policy.busy_timeout_ms)));
}

/// What SQLite recommends for files one did not write oneself, and what our schema relies on.
void harden(SQLite::Database& database) {
  sqlite3* handle = database.getHandle();
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
  database.exec(schema.precious ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
}

/// Makes the file under another name and renames it, so that under its own name it is whole from the start: an empty
/// file there always means that something was lost. Call with the directory locked.
Result<void> create(const Schema& schema, const std::filesystem::path& file) {
  const std::string temporary = file.string() + ".new";
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) ::unlink((temporary + suffix).c_str());
  {
    const FileDescriptor made(::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made) {
      return fail(ErrorCode::cache_unavailable, with_errno("cannot create " + file.string(), errno),
                  "set LEANATTN_CACHE_DIR to a writable directory on a local disk");
    }
  }
  try {
    SQLite::Database database(temporary, SQLite::OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW);
    harden(database);
    database.exec("PRAGMA auto_vacuum = INCREMENTAL");
    SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
    migrate_from(database, schema, 0);
    transaction.commit();
  } catch (const SQLite::Exception& exception) {
    ::unlink(temporary.c_str());
    ::unlink((temporary + "-journal").c_str());
    return tl::unexpected(to_error(exception, file.string()));
  }
  if (::rename(temporary.c_str(), file.c_str()) != 0) {
    return fail(ErrorCode::cache_unavailable, with_errno("cannot create " + file.string(), errno));
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
  return static_cast<std::int64_t>(status.st_size);
}

/// Opens an existing file for writing. Errors: as open_read_write, and database_corrupt.
Result<std::unique_ptr<SQLite::Database>> open_existing(const Schema& schema, const std::filesystem::path& file,
                                                        const OpenPolicy& policy) {
  return as_damage(
      guarded(file.string(),
              [&]() -> Result<std::unique_ptr<SQLite::Database>> {
                const auto size = database_size(file);
                if (!size) return tl::unexpected(size.error());
                if (*size < kSmallestDatabase)
                  return tl::unexpected(damaged(file.string(), "it has only " + std::to_string(*size) + " bytes"));
                auto database = std::make_unique<SQLite::Database>(
                    file.string(), SQLite::OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX);
                be_patient(*database, policy);
                harden(*database);
                const Identity identity = identify(*database);
                if (auto known = check_identity(identity, schema, file.string()); !known)
                  return tl::unexpected(known.error());
                if (sqlite3_db_readonly(database->getHandle(), "main") != 0) {
                  // SQLite also treats a file as read-only when its header names a write format that it does not know.
                  if (::access(file.c_str(), W_OK) == 0)
                    return tl::unexpected(damaged(file.string(), "its header names an unknown format"));
                  return fail(ErrorCode::cache_unavailable, file.string() + " is read-only",
                              "make it writable, or set LEANATTN_CACHE_DIR");
                }
                if (identity.version < schema.version()) {
                  if (auto migrated = migrate(*database, schema, file.string()); !migrated)
                    return tl::unexpected(migrated.error());
                } else if (identity.schema != expected_schema(schema)) {
                  return tl::unexpected(damaged(
                      file.string(), "its tables are not those of version " + std::to_string(identity.version)));
                }
                if (policy.check_fully || (schema.precious && *size <= kCheckedOnOpenBytes)) {
                  const auto findings = find_damage(*database, schema, 1);
                  if (!findings.empty()) return tl::unexpected(damaged(file.string(), findings.front()));
                }
                choose_journal(*database, schema, policy);
                return database;
              }),
      file);
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

bool has_bytes(const std::string& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 && status.st_size > 0;
}

/// Locks cannot be taken everywhere (read-only media, WAL files without their shared memory). Where they cannot, and no
/// unfinished transaction is beside the file, it is read as something that does not change.
std::unique_ptr<SQLite::Database> open_for_reading(const std::filesystem::path& file, const OpenPolicy& policy) {
  try {
    auto database = std::make_unique<SQLite::Database>(file.string(), SQLite::OPEN_READONLY | SQLITE_OPEN_NOMUTEX);
    be_patient(*database, policy);
    harden(*database);
    ask_number(*database, "SELECT count(*) FROM sqlite_schema");
    return database;
  } catch (const SQLite::Exception& exception) {
    const int code = exception.getErrorCode() & 0xff;
    const bool unlockable = code == SQLITE_CANTOPEN || code == SQLITE_READONLY || code == SQLITE_IOERR;
    if (!unlockable || has_bytes(file.string() + "-journal") || has_bytes(file.string() + "-wal")) throw;
  }
  auto database = std::make_unique<SQLite::Database>(immutable_uri(file),
                                                     SQLite::OPEN_READONLY | SQLite::OPEN_URI | SQLITE_OPEN_NOMUTEX);
  harden(*database);
  return database;
}

}  // namespace

OpenPolicy open_policy(const std::filesystem::path& directory, int busy_timeout_ms) {
  OpenPolicy policy{busy_timeout_ms, is_network_filesystem(directory), sqlite3_libversion_number()};
  if (const char* text = std::getenv("LEANATTN_BUSY_TIMEOUT_MS")) {
    int value = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
    if (error == std::errc() && *end == '\0' && value >= 0) policy.busy_timeout_ms = value;
  }
  return policy;
}

bool may_use_wal(const OpenPolicy& policy) { return policy.sqlite_version >= 3051003 && !policy.network_filesystem; }

Error to_error(const SQLite::Exception& exception, const std::string& file) {
  const std::string detail = file + ": " + exception.what();
  switch (exception.getErrorCode() & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Error{ErrorCode::database_busy,
                   file + " is locked by another process for too long",
                   "try again when it has finished",
                   {}};
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return damaged(file, exception.what());
    case SQLITE_FULL:
      return Error{ErrorCode::cache_unavailable,
                   file + " cannot grow: the disk is full",
                   "free some space, or set LEANATTN_CACHE_DIR",
                   {}};
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_NOLFS:
    case SQLITE_PROTOCOL:
    case SQLITE_IOERR:
      return Error{
          ErrorCode::cache_unavailable, detail, "set LEANATTN_CACHE_DIR to a writable directory on a local disk", {}};
    case SQLITE_NOMEM: return Error{ErrorCode::out_of_memory, detail, {}, {}};
    default: return Error{ErrorCode::internal, detail, {}, {}};
  }
}

Error current_exception_error(const std::string& file) {
  try {
    throw;
  } catch (const SQLite::Exception& exception) {
    return to_error(exception, file);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, file + ": out of memory", {}, {}};
  } catch (const std::exception& exception) {
    return Error{ErrorCode::internal, file + ": " + exception.what(), {}, {}};
  }
}

Result<OpenedDatabase> open_read_write(const Schema& schema, const std::filesystem::path& directory,
                                       const OpenPolicy& policy) {
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
    // Only one process at a time creates or puts aside, and only after looking again: another may just have done it.
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
      auto aside = put_aside(opened.file);
      if (!aside) return tl::unexpected(aside.error());
      opened.put_aside = std::move(*aside);
      opened.damage = again.error().message;
    }
    if (auto made = create(schema, opened.file); !made) return tl::unexpected(made.error());
  }
  auto database = open_existing(schema, opened.file, policy);
  if (!database) return tl::unexpected(database.error());
  opened.database = std::move(*database);
  return opened;
}

Result<std::unique_ptr<SQLite::Database>> open_read_only(const Schema& schema, const std::filesystem::path& file,
                                                         const OpenPolicy& policy) {
  if (auto usable = check_library(); !usable) return tl::unexpected(usable.error());
  return as_damage(
      guarded(file.string(),
              [&]() -> Result<std::unique_ptr<SQLite::Database>> {
                const auto size = database_size(file);
                if (!size) return tl::unexpected(size.error());
                if (*size < kSmallestDatabase)
                  return tl::unexpected(damaged(file.string(), "it has only " + std::to_string(*size) + " bytes"));
                auto database = open_for_reading(file, policy);
                const Identity identity = identify(*database);
                if (auto known = check_identity(identity, schema, file.string()); !known)
                  return tl::unexpected(known.error());
                if (identity.version == schema.version()) {
                  if (identity.schema == expected_schema(schema)) return database;
                  return tl::unexpected(damaged(
                      file.string(), "its tables are not those of version " + std::to_string(identity.version)));
                }
                auto copy =
                    std::make_unique<SQLite::Database>(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
                SQLite::Backup(*copy, *database).executeStep();
                harden(*copy);
                if (auto migrated = migrate(*copy, schema, file.string()); !migrated)
                  return tl::unexpected(migrated.error());
                return copy;
              }),
      file);
}

Result<std::unique_ptr<SQLite::Database>> open_damaged(const std::filesystem::path& file) {
  return guarded(file.string(), [&]() -> Result<std::unique_ptr<SQLite::Database>> {
    auto database = std::make_unique<SQLite::Database>(immutable_uri(file),
                                                       SQLite::OPEN_READONLY | SQLite::OPEN_URI | SQLITE_OPEN_NOMUTEX);
    harden(*database);
    return database;
  });
}

Result<std::unique_ptr<SQLite::Database>> open_memory(const Schema& schema) {
  if (auto usable = check_library(); !usable) return tl::unexpected(usable.error());
  return guarded("the database in memory", [&]() -> Result<std::unique_ptr<SQLite::Database>> {
    auto database = std::make_unique<SQLite::Database>(
        ":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE | SQLITE_OPEN_NOMUTEX);
    harden(*database);
    SQLite::Transaction transaction(*database);
    migrate_from(*database, schema, 0);
    transaction.commit();
    return database;
  });
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
