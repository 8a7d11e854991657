// caches.hpp -- opens tuning.db and cubin.db the way a command needs them. Main thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "cache/cubin_db.hpp"
#include "cache/tuning_db.hpp"
#include "cli/session.hpp"

namespace leanattn {
inline namespace v1 {

/// durable: the command exists to read or write the database, so trouble ends it. optional: it can do without, and says
/// so once.
enum class CacheNeed { durable, optional };

struct Caches {
  std::optional<std::filesystem::path> directory;  ///< nullopt: memory only
  std::unique_ptr<CubinCache> cubins;              ///< never null
};

/// The cache directory and cubin.db. Errors (durable only): cache_unavailable.
Result<Caches> open_caches(const Session& session, CacheNeed need);

/// tuning.db in that directory; one that is not there yet reads as empty. Under `optional` an unusable database is
/// replaced by an empty one in memory, with a warning. Errors (durable only): database_newer, database_busy,
/// database_corrupt, cache_unavailable.
Result<std::unique_ptr<TuningDb>> open_tuning(const Caches& caches, OpenMode mode, CacheNeed need);

}  // namespace v1
}  // namespace leanattn
