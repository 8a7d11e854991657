// identity.hpp -- whether a database is the one it should be: mark, version, schema, soundness; and how it becomes the
// newest version. Internal to cache/. Throws SQLite::Exception; one thread per database.
#pragma once

#include <cstdint>
#include <string>

#include "cache/sqlite/database.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// What a file says of itself, in one snapshot.
struct Identity {
  std::uint32_t application_id = 0;
  int version = 0;
  std::string schema;
};

Identity identify(SQLite::Database& database);

/// Errors: database_newer, database_corrupt (not ours).
Result<void> check_identity(const Identity& identity, const Schema& schema, const std::string& file);

/// The tables that the first `version` migrations make, as Identity::schema has them.
const std::string& expected_schema(const Schema& schema, int version);

/// Runs the migrations after `version`; the caller owns the transaction.
void migrate_from(SQLite::Database& database, const Schema& schema, int version);

/// Brings an older database to the current version in one transaction; several processes may try at once.
/// Errors: database_newer, database_corrupt.
Result<void> migrate(SQLite::Database& database, const Schema& schema, const std::string& file);

/// The first column of the first row; 0 without rows.
std::int64_t ask_number(SQLite::Database& database, const char* sql);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
