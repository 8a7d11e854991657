// maintenance.hpp -- what `leanattn db` does to a whole tuning.db: check, export, collect garbage. Internal to
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

/// Drops groups of trials (one key, configuration, driver and NVRTC) whose newest was created before `cutoff`, and what
/// nothing refers to any more. The groups of winners and of fastest trials stay, so that deriving the winners anew
/// gives the same ones; they must have been derived before. Returns how many trials went. Throws SQLite::Exception.
std::int64_t drop_old_trials(SQLite::Database& database, const std::string& cutoff);

/// The same with the oldest groups, until no more than `max_bytes` are in use or nothing is left that may go.
std::int64_t drop_trials_above(SQLite::Database& database, std::int64_t max_bytes);

/// Of the pages that hold something: the file's size once free pages have been given back. Throws SQLite::Exception.
std::int64_t used_bytes(SQLite::Database& database);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
