#include "cache/cubin/rows.hpp"

#include <zstd.h>

#include <algorithm>

#include "cache/digest.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr int kCompressionLevel = 3;
constexpr std::int64_t kLargestCubin = 64 << 20;  ///< a damaged size must not make us allocate without bound

// The values are in a table of their own, so that marking an entry as used rewrites a short row and not a whole cubin.
constexpr const char* kVersion1 = R"sql(
CREATE TABLE cubins(
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  digest BLOB NOT NULL CHECK(length(digest) = 32),
  cubin_bytes INTEGER NOT NULL,
  stored_bytes INTEGER NOT NULL,
  metadata TEXT NOT NULL,
  created_us INTEGER NOT NULL,
  last_used_us INTEGER NOT NULL
) STRICT;
CREATE INDEX cubins_by_use ON cubins(last_used_us, stored_bytes);
CREATE TABLE cubin_data(
  id INTEGER PRIMARY KEY REFERENCES cubins(id) ON DELETE CASCADE,
  data BLOB NOT NULL
) STRICT;
)sql";

constexpr const char* kMigrations[] = {kVersion1};

constexpr Schema kSchema{.file_name = "cubin.db",
                         .application_id = kCubinApplicationId,
                         .migrations = kMigrations,
                         .longest_value = static_cast<int>(kLargestCubin) + (1 << 20),
                         .precious = false};

std::vector<std::uint8_t> digest_of(std::string_view key, std::string_view metadata,
                                    const std::vector<std::uint8_t>& cubin) {
  const Digest digest = Sha256()
                            .text("leanattn cubin 1")
                            .text(key)
                            .text(metadata)
                            .text({reinterpret_cast<const char*>(cubin.data()), cubin.size()})
                            .finish();
  return {digest.begin(), digest.end()};
}

std::vector<std::uint8_t> blob_at(SQLite::Statement& statement, int column) {
  const SQLite::Column value = statement.getColumn(column);
  const auto* bytes = static_cast<const std::uint8_t*>(value.getBlob());
  return bytes == nullptr ? std::vector<std::uint8_t>() : std::vector<std::uint8_t>(bytes, bytes + value.getBytes());
}

}  // namespace

const Schema& cubin_schema() { return kSchema; }

std::optional<PackedCubin> pack_cubin(std::string_view key, const CubinEntry& entry) {
  if (entry.cubin.size() > static_cast<std::size_t>(kLargestCubin)) return std::nullopt;
  PackedCubin packed{.data = std::vector<std::uint8_t>(ZSTD_compressBound(entry.cubin.size())),
                     .digest = digest_of(key, entry.metadata, entry.cubin),
                     .cubin_bytes = static_cast<std::int64_t>(entry.cubin.size()),
                     .metadata = entry.metadata};
  const std::size_t size =
      ZSTD_compress(packed.data.data(), packed.data.size(), entry.cubin.data(), entry.cubin.size(), kCompressionLevel);
  if (ZSTD_isError(size)) return std::nullopt;
  packed.data.resize(size);
  return packed;
}

std::optional<CubinEntry> unpack_cubin(std::string_view key, const PackedCubin& packed) {
  if (packed.cubin_bytes < 0 || packed.cubin_bytes > kLargestCubin) return std::nullopt;
  const auto size = static_cast<std::size_t>(packed.cubin_bytes);
  if (ZSTD_getFrameContentSize(packed.data.data(), packed.data.size()) != size) return std::nullopt;
  CubinEntry entry{.cubin = std::vector<std::uint8_t>(size), .metadata = packed.metadata};
  const std::size_t got = ZSTD_decompress(entry.cubin.data(), size, packed.data.data(), packed.data.size());
  if (ZSTD_isError(got) || got != size || digest_of(key, entry.metadata, entry.cubin) != packed.digest)
    return std::nullopt;
  return entry;
}

std::optional<StoredCubin> find_cubin(SQLite::Database& database, std::string_view key) {
  SQLite::Statement statement(database,
                              "SELECT c.id, v.data, c.digest, c.cubin_bytes, c.metadata, c.last_used_us FROM cubins c "
                              "JOIN cubin_data v ON v.id = c.id"
                              " WHERE c.key = ?1");
  statement.bind(1, std::string(key));
  if (!statement.executeStep()) return std::nullopt;
  return StoredCubin{.id = statement.getColumn(0).getInt64(),
                     .last_used_us = statement.getColumn(5).getInt64(),
                     .packed = {.data = blob_at(statement, 1),
                                .digest = blob_at(statement, 2),
                                .cubin_bytes = statement.getColumn(3).getInt64(),
                                .metadata = statement.getColumn(4).getString()}};
}

void insert_cubin(SQLite::Database& database, std::string_view key, const PackedCubin& packed, std::int64_t now_us) {
  erase_cubin(database, key);
  SQLite::Statement row(database,
                        "INSERT INTO cubins(key, digest, cubin_bytes, stored_bytes, metadata, created_us, last_used_us)"
                        " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?6)");
  row.bind(1, std::string(key));
  row.bind(2, packed.digest.data(), static_cast<int>(packed.digest.size()));
  row.bind(3, packed.cubin_bytes);
  row.bind(4, static_cast<std::int64_t>(packed.data.size() + packed.metadata.size()));
  row.bind(5, packed.metadata);
  row.bind(6, now_us);
  row.exec();
  SQLite::Statement value(database, "INSERT INTO cubin_data(id, data) VALUES(?1, ?2)");
  value.bind(1, static_cast<std::int64_t>(database.getLastInsertRowid()));
  value.bindNoCopy(2, packed.data.data(), static_cast<int>(packed.data.size()));
  value.exec();
}

void erase_cubin(SQLite::Database& database, std::string_view key) {
  SQLite::Statement statement(database, "DELETE FROM cubins WHERE key = ?1");
  statement.bind(1, std::string(key));
  statement.exec();
}

void touch_cubins(SQLite::Database& database, const std::vector<std::int64_t>& ids, std::int64_t now_us) {
  SQLite::Statement statement(database, "UPDATE cubins SET last_used_us = ?2 WHERE id = ?1 AND last_used_us < ?2");
  for (const std::int64_t id : ids) {
    statement.bind(1, id);
    statement.bind(2, now_us);
    statement.exec();
    statement.reset();
  }
}

int evict_cubins(SQLite::Database& database, std::int64_t limit_bytes) {
  std::int64_t stored = 0;
  {
    SQLite::Statement total(database, "SELECT coalesce(sum(stored_bytes), 0) FROM cubins");
    if (total.executeStep()) stored = total.getColumn(0).getInt64();
  }
  if (stored <= limit_bytes) return 0;
  const std::int64_t target = limit_bytes - limit_bytes / 10;
  std::vector<std::int64_t> victims;
  {
    SQLite::Statement oldest(database, "SELECT id, stored_bytes FROM cubins ORDER BY last_used_us, id");
    while (stored > target && oldest.executeStep()) {
      victims.push_back(oldest.getColumn(0).getInt64());
      stored -= oldest.getColumn(1).getInt64();
    }
  }
  SQLite::Statement drop(database, "DELETE FROM cubins WHERE id = ?1");
  for (const std::int64_t id : victims) {
    drop.bind(1, id);
    drop.exec();
    drop.reset();
  }
  return static_cast<int>(victims.size());
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
