// tuning_maintenance.hpp -- what `leanattn db` does to a whole tuning.db: check, export, collect garbage. Internal to
// cache/. One thread per database; the caller owns transactions.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// SQLite's findings, else trials that do not match their digests and winners that point astray. Throws
/// SQLite::Exception.
std::vector<std::string> find_tuning_damage(SQLite::Database& database);

/// A consistent, compact copy, whole from the moment it has its name. `name` is the database's, for messages.
/// Errors: invalid_argument (`file` exists), cache_unavailable.
Result<void> export_database(SQLite::Database& database, const std::string& name, const std::filesystem::path& file);

/// Derives the winners, then drops groups of trials (one key, configuration and library revision) whose newest was
/// created before `cutoff`, and what nothing refers to any more. The groups of winners and of fastest trials stay, so
/// that deriving the winners anew gives the same ones. Returns how many trials went. Throws SQLite::Exception.
std::int64_t drop_old_trials(SQLite::Database& database, const std::string& cutoff);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
