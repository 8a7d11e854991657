// caches.hpp -- Caches: tuning.db and cubin.db, opened the way a command needs them. Main thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "cache/cubin/cubin_db.hpp"
#include "cache/tuning/tuning_db.hpp"
#include "cli/console/console.hpp"

namespace leanattn {
inline namespace v1 {

/// What a command does when a database cannot be used.
enum class CacheNeed {
  durable,   ///< It ends with the error, because it exists to write the database.
  readable,  ///< It ends with the error, because it exists to read the database. A directory that can only be read
             ///< does.
  optional,  ///< It warns once and goes on without the database. A directory that can only be read does.
};

struct Caches {
  std::optional<std::filesystem::path> directory;  ///< nullopt: everything stays in memory
  std::unique_ptr<CubinCache> cubins;              ///< never null
  std::optional<Error> no_directory = {};          ///< why there is none, where one was looked for
};

/// Finds the cache directory and opens cubin.db. Errors (not optional): cache_unavailable.
Result<Caches> open_caches(const Console& console, CacheNeed need);

/// Opens tuning.db in that directory. A file that does not exist yet reads as an empty database. Under `optional` an
/// unusable database is replaced by an empty one in memory, with a warning. Errors (not optional): database_newer,
/// database_busy, database_corrupt, cache_unavailable.
Result<std::unique_ptr<TuningDb>> open_tuning(const Caches& caches, OpenMode mode, CacheNeed need);

}  // namespace v1
}  // namespace leanattn
