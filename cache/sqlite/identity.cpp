#include "cache/sqlite/identity.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <sqlite3.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cache/sqlite/file_access.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

/// Text of everything the schema defines, to be compared with what our migrations make.
std::string describe_schema(SQLite::Database& database) {
  SQLite::Statement statement(database,
                              "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' "
                              "ESCAPE '\\' ORDER BY type, name");
  std::string text;
  while (statement.executeStep()) {
    for (int column = 0; column < 4; ++column) text += statement.getColumn(column).getString() + '\n';
  }
  return text;
}

void run_migrations(SQLite::Database& database, const Schema& schema, int from, int to) {
  for (int step = from; step < to; ++step) database.exec(schema.migrations[static_cast<std::size_t>(step)]);
}

std::vector<std::string> ask_integrity(SQLite::Database& database, int limit) {
  std::vector<std::string> findings;
  SQLite::Statement integrity(database, "PRAGMA integrity_check(" + std::to_string(limit) + ")");
  while (integrity.executeStep()) {
    std::string line = integrity.getColumn(0).getString();
    if (line != "ok") findings.push_back(std::move(line));
  }
  return findings;
}

/// integrity_check reports pages that could not be read as if their contents were wrong. So what it finds is looked for
/// again in a copy in memory, which nothing but a lack of memory can fail. A write-ahead log is not in the file; there
/// the findings stay. Throws SQLite::Exception where the file cannot be read.
std::vector<std::string> confirm(SQLite::Database& database, std::vector<std::string> findings, int limit) {
  constexpr int kPatienceMs = 5000;
  const char* const name = sqlite3_db_filename(database.getHandle(), "main");
  if (findings.empty() || name == nullptr || *name == '\0') return findings;
  const auto refuse = [](const Error& error) -> SQLite::Exception {
    const int code = error.code == ErrorCode::out_of_memory   ? SQLITE_NOMEM
                     : error.code == ErrorCode::database_busy ? SQLITE_BUSY
                                                              : SQLITE_IOERR;
    return {error.message, code};
  };
  auto access = FileAccess::open(name, false);
  if (!access) throw refuse(access.error());
  if (auto locked = access->lock_shared(kPatienceMs); !locked) throw refuse(locked.error());
  auto bytes = access->read_all();
  if (!bytes) throw refuse(bytes.error());
  constexpr std::size_t kReadVersionAt = 19;
  constexpr std::uint8_t kWal = 2;
  if (bytes->size() <= kReadVersionAt || (*bytes)[kReadVersionAt] == kWal) return findings;
  SQLite::Database copy(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  const auto size = static_cast<sqlite3_int64>(bytes->size());
  const int result =
      sqlite3_deserialize(copy.getHandle(), "main", bytes->data(), size, size, SQLITE_DESERIALIZE_READONLY);
  // Only a lack of memory can fail it. SQLite calls that SQLITE_ERROR where its own statement for it found none.
  if (result != SQLITE_OK)
    throw SQLite::Exception("cannot copy the database", result == SQLITE_ERROR ? SQLITE_NOMEM : result);
  return ask_integrity(copy, limit);
}

}  // namespace

std::int64_t ask_number(SQLite::Database& database, const char* sql) {
  SQLite::Statement statement(database, sql);
  return statement.executeStep() ? statement.getColumn(0).getInt64() : 0;
}

void migrate_from(SQLite::Database& database, const Schema& schema, int version) {
  run_migrations(database, schema, version, schema.version());
  if (schema.finish_migration != nullptr) schema.finish_migration(database, version);
  database.exec("PRAGMA application_id = " + std::to_string(schema.application_id));
  database.exec("PRAGMA user_version = " + std::to_string(schema.version()));
}

const std::string& expected_schema(const Schema& schema, int version) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::string> known;
  const std::lock_guard lock(mutex);
  const std::pair<const void*, int> key{schema.migrations.data(), version};
  if (const auto found = known.find(key); found != known.end()) return found->second;
  SQLite::Database database(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  run_migrations(database, schema, 0, version);
  return known.emplace(key, describe_schema(database)).first->second;
}

Identity identify(SQLite::Database& database) {
  std::optional<SQLite::Transaction> snapshot;
  if (sqlite3_get_autocommit(database.getHandle()) != 0)
    snapshot.emplace(database, SQLite::TransactionBehavior::DEFERRED);
  Identity identity;
  identity.application_id = static_cast<std::uint32_t>(ask_number(database, "PRAGMA application_id"));
  identity.version = static_cast<int>(ask_number(database, "PRAGMA user_version"));
  identity.schema = describe_schema(database);
  // Ending a transaction takes memory. Without any, an error is better than a transaction that nobody knows of.
  if (snapshot) {
    snapshot.reset();
    if (sqlite3_get_autocommit(database.getHandle()) == 0)
      throw SQLite::Exception("no memory to end a transaction", SQLITE_NOMEM);
  }
  return identity;
}

Result<void> check_identity(const Identity& identity, const Schema& schema, const std::string& file) {
  const bool blank = identity.schema.empty() && identity.version == 0;
  if (identity.application_id != schema.application_id && !(blank && identity.application_id == 0)) {
    return tl::unexpected(damaged(file, "it is not a leanattn " + std::string(schema.file_name) + " (application_id " +
                                            std::to_string(identity.application_id) + ")"));
  }
  if (identity.version > schema.version()) {
    return fail(ErrorCode::database_newer,
                file + " was written by a newer leanattn (its version is " + std::to_string(identity.version) +
                    ", this one knows up to " + std::to_string(schema.version()) + "); it was left untouched",
                "update leanattn, or set LEANATTN_CACHE_DIR to another directory");
  }
  if (identity.version < 0) return tl::unexpected(damaged(file, "its version is " + std::to_string(identity.version)));
  return {};
}

Result<void> migrate(SQLite::Database& database, const Schema& schema, const std::string& file) {
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  const int version = static_cast<int>(ask_number(database, "PRAGMA user_version"));
  if (version > schema.version()) {
    return fail(ErrorCode::database_newer, file + " has just been migrated by a newer leanattn", "update leanattn");
  }
  if (version == schema.version()) return {};
  migrate_from(database, schema, version);
  if (describe_schema(database) != expected_schema(schema, schema.version())) {
    return tl::unexpected(damaged(file, "its tables are not those of version " + std::to_string(version)));
  }
  transaction.commit();
  return {};
}

std::vector<std::string> find_file_damage(SQLite::Database& database, int limit) {
  std::vector<std::string> findings;
  const auto full = [&] { return static_cast<int>(findings.size()) >= limit; };
  try {
    findings = confirm(database, ask_integrity(database, limit), limit);
    SQLite::Statement foreign_keys(database, "PRAGMA foreign_key_check");
    while (!full() && foreign_keys.executeStep()) {
      findings.push_back("row " + foreign_keys.getColumn(1).getString() + " of " +
                         foreign_keys.getColumn(0).getString() + " refers to a missing row of " +
                         foreign_keys.getColumn(2).getString());
    }
  } catch (const SQLite::Exception& exception) {
    // A lock, a lack of memory or a failing disk is no damage to the file: the caller gets it as it is.
    if (!proves_damage(exception.getErrorCode())) throw;
    findings.push_back(exception.what());
  }
  return findings;
}

std::vector<std::string> find_damage(SQLite::Database& database, const Schema& schema, int limit) {
  std::vector<std::string> findings;
  try {
    const Identity identity = identify(database);
    if (identity.application_id != schema.application_id) {
      findings.push_back("application_id is " + std::to_string(identity.application_id) + " instead of " +
                         std::to_string(schema.application_id));
    }
    if (identity.version != schema.version()) findings.push_back("user_version is " + std::to_string(identity.version));
    if (identity.schema != expected_schema(schema, schema.version()))
      findings.push_back("the tables are not those of this version");
  } catch (const SQLite::Exception& exception) {
    if (!proves_damage(exception.getErrorCode())) throw;
    findings.push_back(exception.what());
  }
  const int left = limit - static_cast<int>(findings.size());
  if (left > 0) {
    std::vector<std::string> more = find_file_damage(database, left);
    findings.insert(findings.end(), more.begin(), more.end());
  }
  return findings;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
