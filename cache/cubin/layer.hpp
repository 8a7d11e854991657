// layer.hpp -- CubinLayer: a cubin.db that is only read, such as a site's, or that of a cache directory which cannot be
// written. Internal to cache/. One thread at a time.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "cache/cubin/cubin_db.hpp"
#include "cache/sqlite/database.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

class CubinLayer {
 public:
  /// A cubin is machine code, so nobody but us and those who may_be_read must be able to write the file or its
  /// directory. Errors: not_found, cache_unavailable, database_newer, database_corrupt, database_busy, out_of_memory.
  static Result<CubinLayer> open(const std::filesystem::path& file);

  CubinLayer(CubinLayer&&) noexcept;
  CubinLayer& operator=(CubinLayer&&) = delete;
  ~CubinLayer();

  /// nullopt where there is none, or it cannot be read, or does not match its digest.
  std::optional<CubinEntry> load(std::string_view key);

 private:
  CubinLayer(std::filesystem::path file, std::unique_ptr<SQLite::Database> database);
  std::filesystem::path file_;
  std::unique_ptr<SQLite::Database> database_;  ///< null after a failure that is no lock
  pid_t process_;
};

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
