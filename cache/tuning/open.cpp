#include "cache/tuning/open.hpp"

#include <SQLiteCpp/SQLiteCpp.h>

#include <new>

#include "cache/paths.hpp"
#include "cache/tuning/merge.hpp"
#include "cache/tuning/schema.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kBusyTimeoutMs = 10000;
constexpr const char* kInMemory = "the database in memory";

std::unique_ptr<SQLite::Database> memory_or_throw() {
  auto database = detail::open_memory(detail::tuning_schema());
  if (!database) throw std::bad_alloc();
  return std::move(*database);
}

std::unique_ptr<TuningDb> only_in_memory(OpenMode mode) {
  return detail::make_tuning_db(memory_or_throw(), kInMemory, {}, mode, detail::OpenPolicy{}, true);
}

}  // namespace

namespace detail {

Result<OpenedTuning> open_for_writing(const std::filesystem::path& directory, OpenMode mode, const OpenPolicy& policy) {
  // The checks that cache_directory makes hold for a directory named by anyone else as well.
  const auto safe = cache_directory(directory);
  if (!safe) return tl::unexpected(safe.error());
  // Every trial carries a digest, so what a damaged file still yields can be told from what it made up.
  std::int64_t recovered = 0;
  const Salvage salvage = [&](SQLite::Database& damaged_file, SQLite::Database& fresh) -> Result<void> {
    recovered = merge(damaged_file, fresh, Unreadable::skip_damage).added;
    if (recovered > 0 || mode != OpenMode::maintain) return {};
    return fail(ErrorCode::database_corrupt,
                (*safe / tuning_schema().file_name).string() +
                    " is damaged, and not one of its trials can be read; it was left as it is",
                "leanattn db import --db " + safe->string() +
                    " FILE puts it aside and starts anew with the trials of a good copy");
  };
  auto opened = open_read_write(tuning_schema(), *safe, policy, salvage);
  if (!opened) return tl::unexpected(opened.error());
  OpenedTuning result{std::move(opened->database), std::move(opened->file), {}};
  if (!opened->put_aside.empty()) {
    result.warning = opened->damage + "; it was moved to " + opened->put_aside.string() + " and made anew with the " +
                     std::to_string(recovered) + " trials that could be read";
  }
  return result;
}

Result<std::unique_ptr<TuningDb>> open_tuning_db(const std::filesystem::path& directory, OpenMode mode,
                                                 const OpenPolicy& policy, std::string* warning) {
  if (mode == OpenMode::read_only) return open_tuning_file(directory / tuning_schema().file_name, policy);
  auto opened = open_for_writing(directory, mode, policy);
  if (!opened) return tl::unexpected(opened.error());
  if (warning != nullptr) *warning = std::move(opened->warning);
  const std::filesystem::path safe = opened->file.parent_path();
  return make_tuning_db(std::move(opened->database), opened->file.string(), safe, mode, policy, false);
}

std::unique_ptr<TuningDb> open_tuning_db_or_memory(const std::filesystem::path& directory, const OpenPolicy& policy,
                                                   std::string* warning) {
  auto opened = open_tuning_db(directory, OpenMode::read_write, policy, warning);
  if (opened) return std::move(*opened);
  if (warning != nullptr) *warning = opened.error().message + "; results are kept in memory only";
  const std::filesystem::path file = directory / tuning_schema().file_name;
  auto memory = memory_or_throw();
  if (auto source = open_read_only(tuning_schema(), file, policy)) {
    static_cast<void>(guarded(file.string(), [&]() -> Result<void> {
      merge(**source, *memory, Unreadable::skip_anything);
      return {};
    }));
  }
  return make_tuning_db(std::move(memory), file.string(), directory, OpenMode::read_write, policy, true);
}

Result<std::unique_ptr<TuningDb>> open_tuning_file(const std::filesystem::path& file, const OpenPolicy& policy) {
  auto database = open_read_only(tuning_schema(), file, policy);
  if (!database) return tl::unexpected(database.error());
  return make_tuning_db(std::move(*database), file.string(), {}, OpenMode::read_only, policy, false);
}

}  // namespace detail

Result<std::unique_ptr<TuningDb>> TuningDb::open(const std::optional<std::filesystem::path>& directory, OpenMode mode,
                                                 std::string* warning) {
  if (warning != nullptr) warning->clear();
  return detail::guarded(directory ? directory->string() : kInMemory, [&]() -> Result<std::unique_ptr<TuningDb>> {
    if (!directory) return only_in_memory(mode);
    return detail::open_tuning_db(*directory, mode, detail::open_policy(*directory, kBusyTimeoutMs), warning);
  });
}

std::unique_ptr<TuningDb> TuningDb::open_or_memory(const std::optional<std::filesystem::path>& directory,
                                                   std::string* warning) {
  if (warning != nullptr) warning->clear();
  if (!directory) return only_in_memory(OpenMode::read_write);
  return detail::open_tuning_db_or_memory(*directory, detail::open_policy(*directory, kBusyTimeoutMs), warning);
}

}  // namespace v1
}  // namespace leanattn
