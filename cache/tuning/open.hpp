// open.hpp -- TuningDb opened under given circumstances, or on any file. Internal to cache/ and its tests. Any
// thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cache/sqlite/database.hpp"
#include "cache/tuning/tuning_db.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

Result<std::unique_ptr<TuningDb>> open_tuning_db(const std::filesystem::path& directory, OpenMode mode,
                                                 const OpenPolicy& policy, std::string* warning);
std::unique_ptr<TuningDb> open_tuning_db_or_memory(const std::filesystem::path& directory, const OpenPolicy& policy,
                                                   std::string* warning);
struct OpenedTuning {
  std::unique_ptr<SQLite::Database> database;
  std::filesystem::path file;
  std::string warning;  ///< empty, or that a damaged file was replaced, and what was kept of it
};
/// The connection below a TuningDb that writes. A damaged file is replaced by one with every trial that can still be
/// read; with OpenMode::maintain, one of which nothing can be read stays where it is and is an error. Errors: as
/// TuningDb::open.
Result<OpenedTuning> open_for_writing(const std::filesystem::path& directory, OpenMode mode, const OpenPolicy& policy);

/// What all of these return. `directory` is where a database in memory that replaces a file is written back to; empty:
/// nowhere.
std::unique_ptr<TuningDb> make_tuning_db(std::unique_ptr<SQLite::Database> database, std::string name,
                                         std::filesystem::path directory, OpenMode mode, const OpenPolicy& policy,
                                         bool in_memory);
/// Read-only, whatever its name is.
Result<std::unique_ptr<TuningDb>> open_tuning_file(const std::filesystem::path& file, const OpenPolicy& policy);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
