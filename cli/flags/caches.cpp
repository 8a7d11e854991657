#include "cli/flags/caches.hpp"

#include <fmt/format.h>

#include "cache/paths.hpp"

namespace leanattn {
inline namespace v1 {

Result<Caches> open_caches(const Console& console, CacheNeed need) {
  Caches caches;
  const Result<std::filesystem::path> directory =
      cache_directory(console.db, need == CacheNeed::durable ? Access::write : Access::read);
  if (directory) {
    caches.directory = *directory;
  } else if (need != CacheNeed::optional) {
    return tl::unexpected(directory.error());
  } else {
    warn(fmt::format("{}. Nothing is kept beyond this run. {}", directory.error().message, directory.error().hint));
    caches.no_directory = directory.error();
  }
  std::string warning;
  caches.cubins = open_cubin_db(caches.directory, &warning);
  if (!warning.empty()) warn(warning);
  return caches;
}

Result<std::unique_ptr<TuningDb>> open_tuning(const Caches& caches, OpenMode mode, CacheNeed need) {
  std::string warning;
  Result<std::unique_ptr<TuningDb>> db = TuningDb::open(caches.directory, mode, &warning);
  if (!warning.empty()) warn(warning);
  if (!db && db.error().code == ErrorCode::not_found)
    return TuningDb::open(std::nullopt, OpenMode::read_write, nullptr);
  if (db || need != CacheNeed::optional) return db;
  warn(fmt::format("{}. The program goes on without it. {}", db.error().message, db.error().hint));
  return TuningDb::open(std::nullopt, OpenMode::read_write, nullptr);
}

}  // namespace v1
}  // namespace leanattn
