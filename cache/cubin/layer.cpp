#include "cache/cubin/layer.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <unistd.h>

#include <utility>

#include "cache/cubin/rows.hpp"
#include "cache/files.hpp"
#include "cache/paths.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

CubinLayer::CubinLayer(std::filesystem::path file, std::unique_ptr<SQLite::Database> database)
    : file_(std::move(file)), database_(std::move(database)), process_(::getpid()) {}

CubinLayer::CubinLayer(CubinLayer&&) noexcept = default;

CubinLayer::~CubinLayer() {
  if (process_ != ::getpid()) static_cast<void>(database_.release());  // inherited over fork(): not ours to close
}

Result<CubinLayer> CubinLayer::open(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error) && !error)
    return fail(ErrorCode::not_found, "there is no " + file.string());
  const auto directory = readable_directory(file.has_parent_path() ? file.parent_path() : ".");
  if (!directory) return tl::unexpected(directory.error());
  const std::filesystem::path safe = *directory / file.filename();
  if (const auto state = check_file(safe, Access::read); !state) return tl::unexpected(state.error());
  auto database = open_read_only(cubin_schema(), safe, open_policy(*directory, kCubinBusyTimeoutMs));
  if (!database) return tl::unexpected(database.error());
  return CubinLayer(safe, *std::move(database));
}

std::optional<CubinEntry> CubinLayer::load(std::string_view key) {
  if (process_ != ::getpid()) {
    static_cast<void>(database_.release());
    process_ = ::getpid();
    if (auto again = open(file_)) database_ = std::move(again->database_);
  }
  if (!database_) return std::nullopt;
  const auto stored =
      guarded(file_.string(), [&]() -> Result<std::optional<StoredCubin>> { return find_cubin(*database_, key); });
  if (!stored) {
    const ErrorCode code = stored.error().code;
    if (code != ErrorCode::database_busy && code != ErrorCode::out_of_memory) database_.reset();
    return std::nullopt;
  }
  return *stored ? unpack_cubin(key, (*stored)->packed) : std::nullopt;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
