// rows.hpp -- the tables of cubin.db and what is done to them. Internal to cache/. Throws SQLite::Exception
// unless it says otherwise; one thread per database.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "cache/sqlite/database.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

inline constexpr std::uint32_t kCubinApplicationId = 0x4C416362;  // "LAcb"
inline constexpr int kCubinBusyTimeoutMs = 2000;  ///< waiting longer for a cubin than compiling it takes would be silly

const Schema& cubin_schema();

/// An entry as it is stored; `digest` is over key, metadata and uncompressed cubin.
struct PackedCubin {
  std::vector<std::uint8_t> data;  ///< one zstd frame
  std::vector<std::uint8_t> digest;
  std::int64_t cubin_bytes = 0;
  std::string metadata;
};
/// nullopt: cannot be compressed (out of memory).
std::optional<PackedCubin> pack_cubin(std::string_view key, const CubinEntry& entry);
/// nullopt: damaged. Never throws SQLite::Exception.
std::optional<CubinEntry> unpack_cubin(std::string_view key, const PackedCubin& packed);

struct StoredCubin {
  std::int64_t id = 0;
  std::int64_t last_used_us = 0;  ///< since 1970
  PackedCubin packed;
};
std::optional<StoredCubin> find_cubin(SQLite::Database& database, std::string_view key);
void insert_cubin(SQLite::Database& database, std::string_view key, const PackedCubin& packed, std::int64_t now_us);
void erase_cubin(SQLite::Database& database, std::string_view key);
void touch_cubins(SQLite::Database& database, const std::vector<std::int64_t>& ids, std::int64_t now_us);
/// When more than `limit_bytes` are stored, drops the least recently used until a tenth of the limit is free again, so
/// that not every later store has to evict. Returns how many went.
int evict_cubins(SQLite::Database& database, std::int64_t limit_bytes);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
