#include "cache/cubin/cubin_db.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "cache/cubin/layer.hpp"
#include "cache/cubin/memory.hpp"
#include "cache/cubin/rows.hpp"
#include "cache/digest.hpp"
#include "cache/environment_variable.hpp"
#include "cache/layer_files.hpp"
#include "cache/paths.hpp"
#include "cache/sqlite/database.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using detail::guarded;

constexpr std::int64_t kDefaultLimitMb = 512;
constexpr int kFormatVersion = 1;  ///< of what is stored under a key; another one makes other keys
constexpr std::int64_t kTouchAfterUs =
    std::int64_t{3600} * 1000000;   ///< a use is worth a write of its own only after this
constexpr int kMostRecoveries = 3;  ///< a file that keeps failing is given up

std::int64_t limit_bytes() {
  std::int64_t megabytes = kDefaultLimitMb;
  const std::string text = environment_variable("LEANATTN_CUBIN_CACHE_MB");
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && *end == '\0' && value >= 0 && value < (std::int64_t{1} << 40)) megabytes = value;
  return megabytes << 20;
}

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Only the newest damaged file is kept: cubins can be compiled again, and each may be as large as the limit.
void remove_older_asides(const std::filesystem::path& directory, const std::filesystem::path& newest) {
  std::string prefix(detail::cubin_schema().file_name);
  prefix += ".corrupt-";
  std::error_code error;
  std::vector<std::filesystem::path> old;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && !name.starts_with(newest.filename().string())) old.push_back(entry->path());
  }
  for (const auto& path : old) std::filesystem::remove(path, error);
}

/// The cubin.db of a directory, opened for writing.
struct Disk {
  std::unique_ptr<SQLite::Database> database;  ///< null: not usable
  std::optional<Error> unusable;               ///< why it is not
  std::string warning;
};

Disk open_disk(const std::filesystem::path& directory, const detail::OpenPolicy& policy) {
  Disk disk;
  auto opened = detail::open_read_write(detail::cubin_schema(), directory, policy);
  if (!opened) {
    disk.unusable = std::move(opened.error());
    disk.warning = disk.unusable->message + "; compiled kernels are kept in memory only";
    return disk;
  }
  disk.database = std::move(opened->database);
  if (!opened->put_aside.empty()) {
    remove_older_asides(directory, opened->put_aside);
    disk.warning = opened->damage + "; it was moved to " + opened->put_aside.string() + " and made anew";
  }
  return disk;
}

/// Loads never write: what was used is noted and goes to the disk with the next store, or at the end.
class SqliteCubinCache final : public CubinCache {
 public:
  /// Without a database in `disk`, what is stored is kept in memory only.
  SqliteCubinCache(Disk disk, std::vector<detail::CubinLayer> layers, std::filesystem::path directory,
                   const detail::OpenPolicy& policy)
      : memory_(detail::CubinMemory::shared(directory.string())),
        database_(std::move(disk.database)),
        unusable_(std::move(disk.unusable)),
        layers_(std::move(layers)),
        directory_(std::move(directory)),
        policy_(policy),
        limit_bytes_(limit_bytes()),
        process_(::getpid()) {}

  ~SqliteCubinCache() override {
    const std::lock_guard lock(mutex_);
    if (process_ != ::getpid()) {
      static_cast<void>(database_.release());  // inherited over fork(): not ours to close
    } else if (long_unused_) {
      on_disk([&](SQLite::Database& database) {
        SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
        touch_used(database);
        transaction.commit();
      });
    }
  }

  std::optional<CubinEntry> load(std::string_view key) override {
    if (auto entry = memory_->load(key)) return entry;
    std::optional<detail::StoredCubin> stored;
    {
      const std::lock_guard lock(mutex_);
      on_disk([&](SQLite::Database& database) { stored = detail::find_cubin(database, key); });
    }
    auto entry = stored ? detail::unpack_cubin(key, stored->packed) : std::nullopt;
    const std::lock_guard lock(mutex_);
    if (entry) {
      used_.insert(stored->id);
      if (now_us() - stored->last_used_us > kTouchAfterUs) long_unused_ = true;
    } else if (stored) {
      on_disk([&](SQLite::Database& database) { detail::erase_cubin(database, key); });
    }
    if (erased_.count(key) == 0) {
      for (auto layer = layers_.begin(); !entry && layer != layers_.end(); ++layer) entry = layer->load(key);
    }
    if (entry) memory_->store(key, *entry);
    return entry;
  }

  void store(std::string_view key, const CubinEntry& entry) override {
    if (entry.cubin.empty()) return;
    memory_->store(key, entry);
    const auto packed = detail::pack_cubin(key, entry);
    const auto bytes = packed ? static_cast<std::int64_t>(packed->data.size() + packed->metadata.size()) : 0;
    const std::lock_guard lock(mutex_);
    if (!packed || bytes > limit_bytes_) {
      drop({ErrorCode::cache_unavailable,
            "a kernel of " + std::to_string(entry.cubin.size()) + " bytes is too large for " + file() +
                ", which keeps " + std::to_string(limit_bytes_ >> 20) + " MiB",
            "set LEANATTN_CUBIN_CACHE_MB to a larger number",
            {}});
      return;
    }
    const Result<void> stored = on_disk([&](SQLite::Database& database) {
      int evicted = 0;
      {
        SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
        touch_used(database);
        detail::insert_cubin(database, key, *packed, now_us());
        evicted = detail::evict_cubins(database, limit_bytes_);
        transaction.commit();
      }
      if (evicted > 0) database.tryExec("PRAGMA incremental_vacuum");
    });
    if (!stored) drop(stored.error());
  }

  void erase(std::string_view key) override {
    memory_->erase(key);
    const std::lock_guard lock(mutex_);
    if (!layers_.empty()) erased_.emplace(key);
    on_disk([&](SQLite::Database& database) { detail::erase_cubin(database, key); });
  }

  CompileTurn wait_for_turn(std::string_view key) override {
    {
      const std::lock_guard lock(mutex_);
      if (!database_ || limit_bytes_ == 0) return {};  // nobody else would find what is stored
    }
    return CompileTurn::wait(directory_, key);
  }

  std::optional<Error> not_kept() override {
    const std::lock_guard lock(mutex_);
    return not_kept_;
  }

 private:
  void touch_used(SQLite::Database& database) {
    detail::touch_cubins(database, {used_.begin(), used_.end()}, now_us());
    used_.clear();
    long_unused_ = false;
  }

  void drop(Error why) {
    if (!not_kept_) not_kept_ = std::move(why);
  }

  /// Runs `body` on the file. What fails is a miss. A busy file is left alone this time. Otherwise it is opened again,
  /// and replaced if it is damaged; so is a file that another process has removed or replaced. Call with the mutex
  /// held. Errors: why `body` did not succeed.
  template <class Body>
  Result<void> on_disk(Body&& body) {
    if (process_ != ::getpid()) {
      process_ = ::getpid();
      if (database_) {
        static_cast<void>(database_.release());
        reopen(policy_);
      }
    }
    if (database_ && detail::has_moved(*database_)) {
      database_.reset();
      reopen(policy_);
    }
    if (!database_) return tl::unexpected(*unusable_);
    auto done = guarded(file(), [&]() -> Result<void> {
      detail::end_transaction(*database_);
      body(*database_);
      return {};
    });
    if (done || done.error().code == ErrorCode::database_busy || done.error().code == ErrorCode::out_of_memory)
      return done;
    database_.reset();
    if (++recoveries_ > kMostRecoveries) {
      unusable_ = done.error();
      return done;
    }
    detail::OpenPolicy policy = policy_;
    policy.check_fully = done.error().code != ErrorCode::cache_unavailable;
    reopen(policy);
    return done;
  }

  void reopen(const detail::OpenPolicy& policy) {
    used_.clear();
    Disk disk = open_disk(directory_, policy);
    database_ = std::move(disk.database);
    unusable_ = std::move(disk.unusable);
  }

  std::string file() const { return (directory_ / detail::cubin_schema().file_name).string(); }

  std::shared_ptr<detail::CubinMemory> memory_;
  std::mutex mutex_;
  std::unique_ptr<SQLite::Database> database_;  ///< null: memory only
  std::optional<Error> unusable_;               ///< why there is no database
  std::vector<detail::CubinLayer> layers_;
  std::set<std::string, std::less<>> erased_;  ///< keys that are not looked for in the layers
  std::filesystem::path directory_;
  detail::OpenPolicy policy_;
  std::int64_t limit_bytes_;
  pid_t process_;
  std::set<std::int64_t> used_;  ///< ids loaded since they were last marked as used
  bool long_unused_ = false;     ///< one of them had not been used for kTouchAfterUs
  int recoveries_ = 0;
  std::optional<Error> not_kept_;
};

Result<std::unique_ptr<SQLite::Database>> open_to_look(const std::filesystem::path& directory) {
  return detail::open_read_only(detail::cubin_schema(), directory / detail::cubin_schema().file_name,
                                detail::open_policy(directory, detail::kCubinBusyTimeoutMs));
}

}  // namespace

std::string cubin_key(std::string_view source, const std::vector<std::string>& options,
                      std::string_view compiler_version, std::string_view arch) {
  detail::Sha256 sha;
  sha.text("leanattn cubin key").number(kFormatVersion).text(source).number(static_cast<std::int64_t>(options.size()));
  for (const std::string& option : options) sha.text(option);
  return detail::hex(sha.text(compiler_version).text(arch).finish());
}

std::unique_ptr<CubinCache> open_cubin_db(const std::optional<std::filesystem::path>& directory, std::string* warning) {
  std::string warnings;
  const auto warn = [&](const std::string& text) { warnings += (warnings.empty() ? "" : "; ") + text; };
  std::vector<detail::CubinLayer> layers;
  const auto add_layer = [&](const std::string& name, const std::filesystem::path& file) {
    auto layer = detail::CubinLayer::open(file);
    if (layer) {
      layers.push_back(*std::move(layer));
    } else if (layer.error().code != ErrorCode::not_found) {
      warn("the " + name + " kernels were skipped: " + layer.error().message);
    }
  };
  Disk disk;
  detail::OpenPolicy policy;
  std::filesystem::path place;
  if (!directory) {
    disk.unusable = Error{ErrorCode::cache_unavailable, "there is no cache directory", "set LEANATTN_CACHE_DIR", {}};
  } else if (const auto safe = cache_directory(*directory)) {
    place = *safe;
    policy = detail::open_policy(place, detail::kCubinBusyTimeoutMs);
    disk = open_disk(place, policy);
    if (!disk.warning.empty()) warn(disk.warning);
  } else if (disk.unusable = safe.error(); const auto readable = cache_directory(*directory, Access::read)) {
    place = *readable;
    add_layer("user", place / detail::cubin_schema().file_name);
  } else {
    place = *directory;
    warn(safe.error().message + "; compiled kernels are kept in memory only");
  }
  for (const detail::Layer& layer : detail::layers(std::nullopt)) add_layer(layer.name, layer.cubins());
  if (warning != nullptr) *warning = std::move(warnings);
  return std::make_unique<SqliteCubinCache>(std::move(disk), std::move(layers), place, policy);
}

Result<CubinDbStats> cubin_db_stats(const std::filesystem::path& directory) {
  auto database = open_to_look(directory);
  if (!database) return tl::unexpected(database.error());
  return guarded((directory / detail::cubin_schema().file_name).string(), [&]() -> Result<CubinDbStats> {
    SQLite::Statement statement(
        **database, "SELECT count(*), coalesce(sum(cubin_bytes), 0), coalesce(sum(stored_bytes), 0) FROM cubins");
    statement.executeStep();
    return CubinDbStats{.entries = statement.getColumn(0).getInt64(),
                        .cubin_bytes = statement.getColumn(1).getInt64(),
                        .stored_bytes = statement.getColumn(2).getInt64(),
                        .limit_bytes = limit_bytes()};
  });
}

Result<std::vector<std::string>> check_cubin_db(const std::filesystem::path& directory) {
  auto database = open_to_look(directory);
  if (!database) return tl::unexpected(database.error());
  return guarded((directory / detail::cubin_schema().file_name).string(), [&]() -> Result<std::vector<std::string>> {
    constexpr int kMostFindings = 100;
    std::vector<std::string> findings = detail::find_damage(**database, detail::cubin_schema(), kMostFindings);
    if (!findings.empty()) return findings;
    SQLite::Statement keys(**database, "SELECT key FROM cubins ORDER BY id");
    while (findings.size() < kMostFindings && keys.executeStep()) {
      const std::string key = keys.getColumn(0).getString();
      const auto stored = detail::find_cubin(**database, key);
      if (!stored || !detail::unpack_cubin(key, stored->packed))
        findings.push_back("cubin " + key + " does not match its digest");
    }
    return findings;
  });
}

}  // namespace v1
}  // namespace leanattn
