// unfinished.hpp -- databases beside which a process that died has left a journal: until the journal is rolled back (or
// the write-ahead log is read), the file must not be read alone. Internal to cache/. Any thread.
#pragma once

#include <filesystem>
#include <memory>

#include "leanattn/error.hpp"

namespace SQLite {
class Database;
}  // namespace SQLite

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Whether a journal or write-ahead log with contents lies beside the file.
bool has_journal(const std::filesystem::path& file);

/// Whether this process may write the file and its directory, and nobody else but root may write the file: then opening
/// it for writing lets SQLite roll the journal back in place.
bool may_finish_in_place(const std::filesystem::path& file);

/// The database as it is once the journal beside it has been taken into account, in memory: file and journal are copied
/// to a private temporary directory, and SQLite recovers them there. Neither original is changed. `timeout_ms` limits
/// the wait for processes that are writing. Throws SQLite::Exception. Errors: database_busy, cache_unavailable,
/// out_of_memory.
Result<std::unique_ptr<SQLite::Database>> read_past_journal(const std::filesystem::path& file, int timeout_ms);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
