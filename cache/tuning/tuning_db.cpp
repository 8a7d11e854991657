#include "cache/tuning/tuning_db.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "cache/queue_turn.hpp"
#include "cache/sqlite/database.hpp"
#include "cache/sqlite/unfinished.hpp"
#include "cache/tuning/maintenance.hpp"
#include "cache/tuning/merge.hpp"
#include "cache/tuning/open.hpp"
#include "cache/tuning/rows.hpp"
#include "cache/tuning/schema.hpp"
#include "cache/tuning/winners.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using detail::guarded;
using detail::OpenPolicy;

class SqliteTuningDb final : public TuningDb {
 public:
  /// `directory` is empty for a database that never had a file.
  SqliteTuningDb(std::unique_ptr<SQLite::Database> database, std::string name, std::filesystem::path directory,
                 OpenMode mode, const OpenPolicy& policy, bool in_memory)
      : database_(std::move(database)),
        name_(std::move(name)),
        directory_(std::move(directory)),
        mode_(mode),
        policy_(policy),
        in_memory_(in_memory),
        process_(::getpid()) {}

  ~SqliteTuningDb() override {
    // A connection inherited over fork() must not be closed either: that would drop the parent's locks on some systems.
    if (!in_memory_ && process_ != ::getpid()) static_cast<void>(database_.release());
  }

  std::optional<std::string> take_warning() override {
    if (warning_.empty()) return std::nullopt;
    return std::exchange(warning_, {});
  }

  std::optional<Error> not_kept() override { return in_memory_ ? failure_ : std::nullopt; }

  Result<std::string> begin_session(const DeviceModel& device, const Environment& environment,
                                    std::string_view command) override {
    detail::SessionRow session{.uuid = detail::make_uuid(),
                               .started = {},
                               .finished = {},
                               .command = std::string(command),
                               .device = device,
                               .environment = environment,
                               .library_version = detail::kLibraryVersion,
                               .schema_version = detail::tuning_schema().version()};
    auto written = write(Fallback::memory, [&](SQLite::Database& database) -> Result<void> {
      session.started = detail::next_timestamp(database);
      detail::RowWriter(database).session(session);
      return {};
    });
    if (!written) return tl::unexpected(written.error());
    begun_.push_back(session);
    return session.uuid;
  }

  Result<void> finish_session(std::string_view session) override {
    const std::string now = detail::utc_timestamp();
    auto finished = write(Fallback::memory, [&](SQLite::Database& database) -> Result<void> {
      if (auto known = ensure_session(database, session); !known) return known;
      SQLite::Statement update(database, "UPDATE sessions SET finished = ?2 WHERE uuid = ?1");
      update.bind(1, std::string(session));
      update.bind(2, now);
      update.exec();
      return {};
    });
    if (finished) {
      std::erase_if(begun_, [&](const detail::SessionRow& row) { return row.uuid == session; });
      write_back();
    }
    return finished;
  }

  Result<std::string> add_trial(std::string_view session, const Trial& trial) override {
    if (auto valid = detail::check_trial(trial); !valid) return tl::unexpected(valid.error());
    Trial row = trial;
    if (row.uuid.empty()) row.uuid = detail::make_uuid();
    auto written = write(Fallback::memory, [&](SQLite::Database& database) -> Result<void> {
      if (auto known = ensure_session(database, session); !known) return known;
      detail::RowWriter writer(database);
      std::int64_t session_id = 0;
      detail::SessionRow session_row;
      {
        SQLite::Statement find(database, std::string("SELECT s.id, ") + detail::kSessionColumns +
                                             " FROM sessions s JOIN device_models d ON d.id = s.device_model_id"
                                             " JOIN environments e ON e.id = s.environment_id WHERE s.uuid = ?1");
        find.bind(1, std::string(session));
        if (!find.executeStep()) return fail(ErrorCode::not_found, "there is no session " + std::string(session));
        session_id = find.getColumn(0).getInt64();
        session_row = detail::read_session(find, 1);
      }
      // Never before its session, whose start may be a little ahead of the clock.
      if (row.created.empty()) row.created = std::max(detail::utc_timestamp(), session_row.started);
      SQLite::Statement taken(database, "SELECT digest FROM trials WHERE uuid = ?1");
      taken.bind(1, row.uuid);
      const detail::Digest digest = detail::trial_digest(session_row, row);
      if (taken.executeStep()) {
        if (detail::read_digest(taken, 0) == digest) return {};
        return fail(ErrorCode::invalid_argument, "there is another trial " + row.uuid);
      }
      taken.tryReset();
      writer.trial(session_id, row, digest);
      return {};
    });
    if (!written) return tl::unexpected(written.error());
    return row.uuid;
  }

  Result<void> set_read_limit(const DeviceModel& device, std::string_view policy, std::int64_t bytes,
                              double us) override {
    if (auto valid = detail::check_read_limit(policy, bytes, us); !valid) return valid;
    return write(Fallback::memory, [&](SQLite::Database& database) -> Result<void> {
      detail::write_read_limit(database, device, policy, bytes, us, detail::utc_timestamp());
      return {};
    });
  }

  Result<std::vector<std::pair<std::int64_t, double>>> read_limits(const DeviceModel& device,
                                                                   std::string_view policy) override {
    using Limits = std::vector<std::pair<std::int64_t, double>>;
    return read([&](SQLite::Database& database) -> Result<Limits> {
      int damaged = 0;
      Limits limits = detail::read_limits_of(database, device, policy, damaged);
      if (damaged > 0) warn_of_damage(damaged, "read limits");
      return limits;
    });
  }

  Result<void> rebuild_winners() override {
    const auto turn = wait_for_turn();
    if (!turn) return tl::unexpected(turn.error());
    return write(Fallback::none, [&](SQLite::Database& database) -> Result<void> {
      detail::rebuild_all_winners(database);
      return {};
    });
  }

  Result<void> rebuild_winners(const DeviceModel& device, std::string_view problem, std::string_view shape,
                               std::string_view policy) override {
    return write(Fallback::memory, [&](SQLite::Database& database) -> Result<void> {
      detail::rebuild_winner(database, device, problem, shape, policy);
      return {};
    });
  }

  Result<std::vector<std::string>> won_problems(const DeviceModel& device) override {
    return read([&](SQLite::Database& database) -> Result<std::vector<std::string>> {
      return detail::read_won_problems(database, device);
    });
  }

  Result<std::vector<Winner>> winners(const DeviceModel& device, std::optional<std::string_view> problem,
                                      const Software& now) override {
    return read([&](SQLite::Database& database) -> Result<std::vector<Winner>> {
      int damaged = 0;
      std::vector<Winner> winners = detail::read_winners(database, device, problem, now, damaged);
      if (damaged > 0) warn_of_damage(damaged, "winners");
      return winners;
    });
  }

  Result<std::vector<DeviceModel>> device_models() override {
    return read([&](SQLite::Database& database) -> Result<std::vector<DeviceModel>> {
      SQLite::Statement statement(
          database,
          "SELECT name, arch, sm_count, l2_bytes, memory_bytes, mig_profile FROM device_models ORDER BY name, id");
      std::vector<DeviceModel> devices;
      while (statement.executeStep()) devices.push_back(detail::read_device(statement, 0));
      return devices;
    });
  }

  Result<std::vector<Environment>> environments(const DeviceModel& device) override {
    return read([&](SQLite::Database& database) -> Result<std::vector<Environment>> {
      std::vector<Environment> environments;
      const auto device_id = detail::find_device(database, device);
      if (!device_id) return environments;
      SQLite::Statement statement(database,
                                  std::string("SELECT ") + detail::kEnvironmentColumns +
                                      " FROM sessions s JOIN environments e ON e.id = s.environment_id "
                                      "WHERE s.device_model_id = ?1 GROUP BY e.id ORDER BY min(s.started), e.id");
      statement.bind(1, *device_id);
      while (statement.executeStep()) environments.push_back(detail::read_environment(statement, 0));
      return environments;
    });
  }

  Result<std::vector<Trial>> trials(const DeviceModel& device, std::string_view problem, std::string_view shape,
                                    std::string_view policy) override {
    return read([&](SQLite::Database& database) -> Result<std::vector<Trial>> {
      std::vector<Trial> trials;
      const auto device_id = detail::find_device(database, device);
      if (!device_id) return trials;
      SQLite::Statement statement(
          database, std::string("SELECT ") + detail::kTrialColumns + ", " + detail::kEnvironmentColumns +
                        detail::kTrialJoin +
                        "WHERE s.device_model_id = ?1 AND (?2 = '' OR p.json = ?2) AND (?3 = '' OR h.json = ?3)"
                        " AND (?4 = '' OR t.policy = ?4) ORDER BY t.created, t.id");
      statement.bind(1, *device_id);
      statement.bind(2, std::string(problem));
      statement.bind(3, std::string(shape));
      statement.bind(4, std::string(policy));
      int damaged = 0;
      while (statement.executeStep()) {
        Trial trial = detail::read_trial(statement, 0);
        trial.environment = detail::read_environment(statement, detail::kTrialColumnCount);
        if (detail::check_trial(trial)) {
          trials.push_back(std::move(trial));
        } else {
          ++damaged;
        }
      }
      if (damaged > 0) warn_of_damage(damaged, "trials");
      return trials;
    });
  }

  Result<std::vector<SessionInfo>> sessions() override {
    return read([&](SQLite::Database& database) -> Result<std::vector<SessionInfo>> {
      SQLite::Statement statement(database,
                                  "SELECT s.uuid, s.started, s.finished, s.command,"
                                  " (SELECT count(*) FROM trials t WHERE t.session_id = s.id) FROM sessions s"
                                  " ORDER BY s.started, s.id");
      std::vector<SessionInfo> sessions;
      while (statement.executeStep()) {
        sessions.push_back({.uuid = statement.getColumn(0).getString(),
                            .started = statement.getColumn(1).getString(),
                            .finished = statement.getColumn(2).getString(),
                            .command = statement.getColumn(3).getString(),
                            .trials = statement.getColumn(4).getInt64()});
      }
      return sessions;
    });
  }

  Result<DbStats> stats() override {
    return read([&](SQLite::Database& database) -> Result<DbStats> {
      SQLite::Statement statement(
          database,
          "SELECT (SELECT count(*) FROM device_models), (SELECT count(*) FROM environments),"
          " (SELECT count(*) FROM problems), (SELECT count(*) FROM configs), (SELECT count(*) FROM sessions),"
          " (SELECT count(*) FROM trials), (SELECT count(*) FROM winners),"
          " (SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)");
      statement.executeStep();
      DbStats stats{.device_models = statement.getColumn(0).getInt64(),
                    .environments = statement.getColumn(1).getInt64(),
                    .problems = statement.getColumn(2).getInt64(),
                    .configs = statement.getColumn(3).getInt64(),
                    .sessions = statement.getColumn(4).getInt64(),
                    .trials = statement.getColumn(5).getInt64(),
                    .winners = statement.getColumn(6).getInt64(),
                    .bytes = statement.getColumn(7).getInt64()};
      SQLite::Statement devices(database,
                                "SELECT d.name, d.arch, d.sm_count, d.l2_bytes, d.memory_bytes, d.mig_profile,"
                                " (SELECT count(*) FROM sessions s WHERE s.device_model_id = d.id),"
                                " (SELECT count(*) FROM trials t JOIN sessions s ON s.id = t.session_id"
                                "  WHERE s.device_model_id = d.id)"
                                " FROM device_models d ORDER BY d.name, d.id");
      while (devices.executeStep()) {
        DeviceStats& device = stats.devices.emplace_back();
        device.model = detail::read_device(devices, 0);
        device.sessions = devices.getColumn(6).getInt64();
        device.trials = devices.getColumn(7).getInt64();
        int damaged = 0;
        device.winners = std::ssize(detail::read_winners(database, device.model, std::nullopt, {}, damaged));
      }
      return stats;
    });
  }

  Result<std::vector<std::string>> check() override;
  Result<void> export_to(const std::filesystem::path& file) override;
  Result<std::int64_t> import_from(const std::filesystem::path& file) override;
  Result<GarbageCollected> collect_garbage(const GarbageLimits& limits) override;

 private:
  /// What a write does when the file fails it.
  enum class Fallback { none, memory };

  /// Maintenance holds the write lock for long, so those who want it queue instead of trying their luck. Nothing where
  /// there is nobody to queue with, or no way to. Errors: database_busy.
  Result<std::optional<detail::QueueTurn>> wait_for_turn() {
    if (in_memory_ || directory_.empty() || mode_ == OpenMode::read_only) return std::nullopt;
    auto turn = detail::QueueTurn::wait(directory_ / "tuning.queue", policy_.queue_timeout_ms);
    if (turn) return std::optional(*std::move(turn));
    if (turn.error().code == ErrorCode::database_busy) return tl::unexpected(std::move(turn.error()));
    return std::nullopt;
  }

  void warn(const std::string& text) {
    if (warning_.find(text) == std::string::npos) warning_ += (warning_.empty() ? "" : "; ") + text;
  }

  void warn_of_damage(int count, const char* what) {
    warn(name_ + ": " + std::to_string(count) + " damaged " + what + " were left out; " + detail::how_to_mend(name_));
  }

  /// Writes a session again that this object began and that is not there any more. Errors: not_found.
  Result<void> ensure_session(SQLite::Database& database, std::string_view uuid) {
    SQLite::Statement known(database, "SELECT 1 FROM sessions WHERE uuid = ?1");
    known.bind(1, std::string(uuid));
    if (known.executeStep()) return {};
    const auto begun =
        std::find_if(begun_.begin(), begun_.end(), [&](const detail::SessionRow& row) { return row.uuid == uuid; });
    if (begun == begun_.end()) return fail(ErrorCode::not_found, "there is no session " + std::string(uuid));
    detail::RowWriter(database).session(*begun);
    warn(name_ +
         " was removed, replaced or emptied by somebody else; what this session had stored there is lost, and "
         "the session goes on in the file that has the name now");
    return {};
  }

  /// Whether somebody has emptied the file that is open. Throws SQLite::Exception.
  bool is_emptied() { return !in_memory_ && detail::version_of(*database_) == 0; }

  /// A connection must not be used on the other side of a fork(): a child gets its own, and leaks the inherited one on
  /// purpose.
  Result<void> ensure_process() {
    if (process_ == ::getpid()) return {};
    process_ = ::getpid();
    if (in_memory_) return {};
    static_cast<void>(database_.release());
    return open_again();
  }

  /// Opens the file by its name, which another one may have by now.
  Result<void> open_again() {
    if (mode_ == OpenMode::read_only) {
      auto opened = detail::open_read_only(detail::tuning_schema(), name_, policy_);
      if (!opened) return tl::unexpected(opened.error());
      database_ = std::move(*opened);
      return {};
    }
    auto opened = detail::open_for_writing(directory_, mode_, policy_);
    if (!opened) return tl::unexpected(opened.error());
    database_ = std::move(opened->database);
    if (!opened->warning.empty()) warn(opened->warning);
    return {};
  }

  template <class Body>
  auto read(Body&& body) -> decltype(body(std::declval<SQLite::Database&>())) {
    if (auto ready = ensure_process(); !ready) return tl::unexpected(ready.error());
    bool lost = false;
    const auto once = [&] {
      return guarded(name_, [&]() -> decltype(body(*database_)) {
        detail::end_transaction(*database_);
        // One snapshot, even where the body asks several times.
        const SQLite::Transaction snapshot(*database_, SQLite::TransactionBehavior::DEFERRED);
        lost = is_emptied();
        if (lost) return fail(ErrorCode::cache_unavailable, name_ + " is being replaced again and again");
        return body(*database_);
      });
    };
    auto result = once();
    // A connection that may only read cannot roll back what another process, killed since this was opened, left behind.
    const bool unfinished = !result && result.error().code == ErrorCode::cache_unavailable &&
                            mode_ == OpenMode::read_only && !in_memory_ && detail::has_journal(name_);
    if (!lost && !unfinished) return result;
    if (auto again = open_again(); !again) return lost ? tl::unexpected(again.error()) : std::move(result);
    return once();
  }

  template <class Body>
  auto write(Fallback fallback, Body&& body) -> decltype(body(std::declval<SQLite::Database&>())) {
    if (mode_ == OpenMode::read_only) return fail(ErrorCode::cache_unavailable, name_ + " was opened for reading only");
    if (auto ready = ensure_process(); !ready) return tl::unexpected(ready.error());
    constexpr int kMostReplacements = 5;  // of the file, by other processes that repair it
    for (int replacements = 0;;) {
      bool lost = false;
      auto result = guarded(name_, [&]() -> decltype(body(*database_)) {
        detail::end_transaction(*database_);
        SQLite::Transaction transaction(*database_, SQLite::TransactionBehavior::IMMEDIATE);
        // Who repairs a file locks it until the repaired one has its name, so from here on the answer stays.
        lost = !in_memory_ && (detail::has_moved(*database_) || is_emptied());
        if (lost) return fail(ErrorCode::database_busy, name_ + " is being replaced again and again");
        auto inner = body(*database_);
        if (inner) transaction.commit();
        return inner;
      });
      if (lost && ++replacements <= kMostReplacements) {
        auto again = open_again();
        if (again) continue;
        result = tl::unexpected(std::move(again.error()));
      }
      if (result || in_memory_ || fallback == Fallback::none || !carry_on_in_memory(result.error())) return result;
    }
  }

  bool carry_on_in_memory(const Error& cause);
  void write_back();

  std::unique_ptr<SQLite::Database> database_;
  std::string name_;                 ///< the file, for messages
  std::filesystem::path directory_;  ///< where to write back to; empty: nowhere
  OpenMode mode_;
  OpenPolicy policy_;
  bool in_memory_;
  pid_t process_;
  std::vector<detail::SessionRow> begun_;  ///< unfinished sessions of this object, to be known in memory as well
  std::optional<Error> failure_;           ///< why what was in a file is in memory
  std::string warning_;
};

/// True when the failed write may be tried again on a database in memory that now replaces the file.
bool SqliteTuningDb::carry_on_in_memory(const Error& cause) {
  if (cause.code != ErrorCode::cache_unavailable && cause.code != ErrorCode::database_busy &&
      cause.code != ErrorCode::database_corrupt) {
    return false;
  }
  auto memory = detail::open_memory(detail::tuning_schema());
  if (!memory) return false;
  // What the file still says is worth having, but not a condition. A connection whose disk failed it within a commit
  // reads nothing any more; then what lies in the file, where every trial vouches for itself.
  const auto salvage = [&](SQLite::Database& source) {
    return guarded(name_, [&]() -> Result<std::int64_t> {
      return detail::merge(source, **memory, detail::Unreadable::skip_anything).added;
    });
  };
  if (salvage(*database_).value_or(0) == 0) {
    if (auto file = detail::open_damaged(detail::tuning_schema(), name_)) static_cast<void>(salvage(**file));
  }
  const auto known = guarded(name_, [&]() -> Result<void> {
    detail::RowWriter writer(**memory);
    for (const detail::SessionRow& session : begun_) writer.session(session);
    return {};
  });
  if (!known) return false;
  database_ = std::move(*memory);
  in_memory_ = true;
  failure_ = cause;
  warn(cause.message + "; from here on, results are kept in memory only");
  return true;
}

/// After a failure that may have passed (a lock, a full disk): the union of memory and file, on the file. Silent when
/// it fails again.
void SqliteTuningDb::write_back() {
  if (!in_memory_ || directory_.empty() || !begun_.empty()) return;
  auto opened = detail::open_for_writing(directory_, OpenMode::read_write, policy_);
  if (!opened) return;
  const auto merged = guarded(name_, [&]() -> Result<void> {
    SQLite::Transaction transaction(*opened->database, SQLite::TransactionBehavior::IMMEDIATE);
    detail::merge(*database_, *opened->database, detail::Unreadable::is_an_error);
    transaction.commit();
    return {};
  });
  if (!merged) return;
  database_ = std::move(opened->database);
  in_memory_ = false;
  warning_ = name_ + " could be written again: everything is in it" +
             (opened->warning.empty() ? "" : " (" + opened->warning + ")");
}

Result<std::vector<std::string>> SqliteTuningDb::check() {
  return read([&](SQLite::Database& database) -> Result<std::vector<std::string>> {
    return detail::find_tuning_damage(database);
  });
}

Result<void> SqliteTuningDb::export_to(const std::filesystem::path& file) {
  if (auto ready = ensure_process(); !ready) return ready;
  return detail::export_database(*database_, name_, file);
}

Result<std::int64_t> SqliteTuningDb::import_from(const std::filesystem::path& file) {
  auto source = detail::open_read_only(detail::tuning_schema(), file, policy_);
  if (!source) return tl::unexpected(source.error());
  const auto turn = wait_for_turn();
  if (!turn) return tl::unexpected(turn.error());
  return write(Fallback::none, [&](SQLite::Database& database) -> Result<std::int64_t> {
    if (auto findings = detail::find_damage(**source, detail::tuning_schema(), 1); !findings.empty()) {
      return fail(ErrorCode::database_corrupt, file.string() + " is damaged: " + findings.front(),
                  "nothing was imported");
    }
    // One state of the source for all that is read of it.
    const SQLite::Transaction snapshot(**source, SQLite::TransactionBehavior::DEFERRED);
    const detail::MergeCounts counts = detail::merge(**source, database, detail::Unreadable::is_an_error);
    if (counts.damaged > 0 || counts.damaged_limits > 0) {
      warning_ = std::to_string(counts.damaged) + " trials and " + std::to_string(counts.damaged_limits) +
                 " read limits of " + file.string() +
                 " do not match their digests, or hold impossible values, and were left out";
    }
    return counts.added;
  });
}

Result<GarbageCollected> SqliteTuningDb::collect_garbage(const GarbageLimits& limits) {
  if (limits.keep_days.value_or(0) < 0)
    return fail(ErrorCode::invalid_argument, "cannot keep " + std::to_string(*limits.keep_days) + " days");
  if (limits.max_bytes.value_or(0) < 0)
    return fail(ErrorCode::invalid_argument, "cannot keep " + std::to_string(*limits.max_bytes) + " bytes");
  const auto turn = wait_for_turn();
  if (!turn) return tl::unexpected(turn.error());
  auto collected = write(Fallback::none, [&](SQLite::Database& database) -> Result<GarbageCollected> {
    GarbageCollected dropped;
    detail::rebuild_all_winners(database);
    if (limits.keep_days) {
      const auto age = std::chrono::hours(24) * *limits.keep_days;
      dropped.trials +=
          detail::drop_old_trials(database, detail::utc_timestamp(std::chrono::system_clock::now() - age));
    }
    if (limits.max_bytes) dropped.trials += detail::drop_trials_above(database, *limits.max_bytes);
    dropped.bytes = detail::used_bytes(database);
    return dropped;
  });
  // Freed pages go back to the file system; where another process is in the way, the next collection does it.
  if (collected) database_->tryExec("PRAGMA incremental_vacuum");
  return collected;
}

}  // namespace

namespace detail {

std::unique_ptr<TuningDb> make_tuning_db(std::unique_ptr<SQLite::Database> database, std::string name,
                                         std::filesystem::path directory, OpenMode mode, const OpenPolicy& policy,
                                         bool in_memory) {
  return std::make_unique<SqliteTuningDb>(std::move(database), std::move(name), std::move(directory), mode, policy,
                                          in_memory);
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
