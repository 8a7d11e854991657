// cubin_db.hpp -- cubin.db: compiled kernels by content key. Disposable: any failure is a miss. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cubin/compile_turn.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// A stored kernel: the cubin and one line of JSON about it (resources, so that a hit need not parse a log).
struct CubinEntry {
  std::vector<std::uint8_t> cubin;
  std::string metadata;
};

/// What a compile looks through. Implementations are thread-safe and never fail the caller: load misses, store drops.
class CubinCache {
 public:
  virtual ~CubinCache() = default;
  virtual std::optional<CubinEntry> load(std::string_view key) = 0;
  virtual void store(std::string_view key, const CubinEntry& entry) = 0;
  virtual void erase(std::string_view key) = 0;  ///< after a failed load: a miss next time
  /// After a miss: waits until no other process is compiling `key`. load() again before compiling, since it may have
  /// been stored meanwhile, and keep the turn until it is.
  virtual CompileTurn wait_for_turn(std::string_view) { return {}; }
  /// Why the first of the kernels that were stored and are not on the disk is not; nullopt where all are.
  virtual std::optional<Error> not_kept() { return std::nullopt; }
};

/// What directory/cubin.db holds.
struct CubinDbStats {
  std::int64_t entries = 0;
  std::int64_t cubin_bytes = 0;   ///< uncompressed
  std::int64_t stored_bytes = 0;  ///< compressed; what the limit is about
  std::int64_t limit_bytes = 0;   ///< LEANATTN_CUBIN_CACHE_MB, 512 MiB by default
};

/// Errors: not_found (no such file), database_newer, database_corrupt, database_busy, cache_unavailable.
Result<CubinDbStats> cubin_db_stats(const std::filesystem::path& directory);

/// SQLite's own checks and every entry's checksum; one line per finding, empty when sound. Changes nothing. Errors: as
/// above.
Result<std::vector<std::string>> check_cubin_db(const std::filesystem::path& directory);

/// SHA-256, hex, over source, options (each terminated), compiler version, arch and the format version.
std::string cubin_key(std::string_view source, const std::vector<std::string>& options,
                      std::string_view compiler_version, std::string_view arch);

/// directory/cubin.db, zstd-compressed values with their own SHA-256, least recently used ones evicted above the limit;
/// in front of it a memory layer of up to 16 MiB that all caches of the process on the same directory share; behind it,
/// and only read, the cubin.db of the site's and of the shipped layer (layers.hpp). nullopt: what is stored is kept in
/// memory only. A database that cannot be opened or is damaged is moved aside and made anew; where that fails too,
/// memory only. A directory that can only be read (cache_directory, Access::read) is read. `warning`, when not null,
/// receives what cannot be used and why, or nothing.
std::unique_ptr<CubinCache> open_cubin_db(const std::optional<std::filesystem::path>& directory, std::string* warning);

}  // namespace v1
}  // namespace leanattn
