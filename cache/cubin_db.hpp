// cubin_db.hpp -- cubin.db: compiled kernels by content key. Disposable: any failure is a miss. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
};

/// SHA-256, hex, over source, options (each terminated), compiler version, arch and the format version.
std::string cubin_key(std::string_view source, const std::vector<std::string>& options, std::string_view compiler_version,
                      std::string_view arch);

/// directory/cubin.db, zstd-compressed values with their own SHA-256, plus a process-wide memory layer in front.
/// A database that cannot be opened or is damaged is moved aside and made anew; where that fails too, memory only.
/// `warning`, when not null, receives at most one sentence about such a degradation.
std::unique_ptr<CubinCache> open_cubin_db(const std::optional<std::filesystem::path>& directory, std::string* warning);

}  // namespace v1
}  // namespace leanattn
