#include "cache/tuning/maintenance.hpp"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "cache/digest.hpp"
#include "cache/files.hpp"
#include "cache/sqlite/database.hpp"
#include "cache/sqlite/identity.hpp"
#include "cache/tuning/rows.hpp"
#include "cache/tuning/schema.hpp"
#include "cache/tuning/winners.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

std::vector<std::string> find_tuning_damage(SQLite::Database& database) {
  constexpr int kMostFindings = 100;
  std::vector<std::string> findings = find_damage(database, tuning_schema(), kMostFindings);
  if (!findings.empty()) return findings;
  SQLite::Statement trials(database, std::string("SELECT t.digest, ") + kSessionColumns + ", " + kTrialColumns +
                                         kTrialJoin + "ORDER BY t.id");
  while (findings.size() < kMostFindings && trials.executeStep()) {
    const Trial trial = read_trial(trials, 1 + kSessionColumnCount);
    if (read_digest(trials, 0) != trial_digest(read_session(trials, 1), trial)) {
      findings.push_back("trial " + trial.uuid + " does not match its digest");
    } else if (const auto valid = check_trial(trial); !valid) {
      findings.push_back("trial " + trial.uuid + ": " + valid.error().message);
    }
  }
  SQLite::Statement devices(database, std::string("SELECT ") + kDeviceColumns + " FROM device_models d");
  int winners = 0, limits = 0;
  while (devices.executeStep()) {
    const DeviceModel device = read_device(devices, 0);
    for (const char* policy : {"cold", "warm"}) read_limits_of(database, device, policy, limits);
    read_winners(database, device, std::nullopt, {}, winners);
  }
  for (const auto& [count, what] :
       {std::pair{winners,
                  "winners do not match their digests, or point at trials of something"
                  " else; leanattn db rebuild derives them anew"},
        {limits, "read limits do not match their digests; leanattn tune measures them again"}}) {
    if (count > 0) findings.push_back(std::to_string(count) + " " + what);
  }
  return findings;
}

Result<void> export_database(SQLite::Database& database, const std::string& name, const std::filesystem::path& file) {
  struct stat status {};
  if (::lstat(file.c_str(), &status) == 0) {
    return fail(ErrorCode::invalid_argument, file.string() + " exists already",
                "name another file, or remove it first");
  }
  // Under another name first: what has the final name is whole, and linking refuses to overwrite what has appeared
  // meanwhile.
  const std::string partial = file.string() + ".partial-" + make_uuid();
  auto copied = guarded(name, [&]() -> Result<void> {
    try {
      SQLite::Statement vacuum(database, "VACUUM INTO ?1");
      vacuum.bind(1, partial);
      vacuum.exec();
      return {};
    } catch (const SQLite::Exception& exception) {
      const Error error = to_error(exception, name);
      // What is wrong with a file that is written is wrong with the copy.
      if (error.code != ErrorCode::internal && error.code != ErrorCode::cache_unavailable) throw;
      const bool full = (exception.getErrorCode() & 0xff) == SQLITE_FULL;
      return fail(
          ErrorCode::cache_unavailable,
          "cannot write " + file.string() + ": " + (full ? "the disk is full" : exception.what()),
          full ? "free some space, or name a file on another disk" : "name a file in a folder that you may write to");
    }
  });
  if (copied) {
    sync_path(partial);
    if (::link(partial.c_str(), file.c_str()) != 0) {
      const int error = errno;
      // File systems without hard links: the check above has to do.
      const bool renamed =
          error != EEXIST && ::lstat(file.c_str(), &status) != 0 && ::rename(partial.c_str(), file.c_str()) == 0;
      if (!renamed) {
        copied = fail(error == EEXIST ? ErrorCode::invalid_argument : ErrorCode::cache_unavailable,
                      with_errno("cannot write " + file.string(), error));
      }
    }
    sync_path(file.has_parent_path() ? file.parent_path() : std::filesystem::path("."));
  }
  for (const char* suffix : {"", "-journal"}) ::unlink((partial + suffix).c_str());
  return copied;
}

namespace {

// A group is what stays or goes together: the trials of one key, configuration, driver and NVRTC, since which of them
// stands for the configuration, and whether it counts, depends on all. Winners, the fastest trials beside them and the
// newest trial of each key, which decides whose software counts, are crowned, and so is their whole group. ?3 is now:
// where a trial of a key comes from the future, one of two clocks is wrong, and nobody can tell which trials of that
// key are old or decide its winner. So all of them stay.
constexpr const char* kGroups =
    "WITH placed AS (SELECT t.id AS id, t.created AS created, s.device_model_id AS d, t.problem_id AS p,"
    "   t.shape_id AS h, t.policy AS y, t.config_id AS c, e.driver_version AS v, e.driver_release AS r,"
    "   e.nvrtc_version AS n, length(t.samples_json) + length(t.reason) AS bytes,"
    "   EXISTS(SELECT 1 FROM winners w WHERE w.trial_id = t.id OR w.fastest_trial_id = t.id)"
    "   OR (t.status = 'ok' AND 1 = row_number() OVER ("
    "     PARTITION BY s.device_model_id, t.problem_id, t.shape_id, t.policy"
    "     ORDER BY t.status = 'ok' DESC, s.library_version DESC, s.schema_version DESC, t.created DESC,"
    "     t.uuid DESC)) AS crowned,"
    "   max(t.created) OVER (PARTITION BY s.device_model_id, t.problem_id, t.shape_id, t.policy) > ?3 AS ahead"
    "   FROM trials t JOIN sessions s ON s.id = t.session_id JOIN environments e ON e.id = s.environment_id),"
    " judged AS (SELECT id, bytes, min(id) OVER same AS leader, max(created) OVER same AS newest,"
    "   max(crowned OR ahead) OVER same AS kept FROM placed WINDOW same AS (PARTITION BY d, p, h, y, c, v, r, n)) ";

/// What no trial refers to any more. Sessions that began after `cutoff` stay even without trials, and so do those of
/// the last day, one of which may be about to add its first.
void drop_unreferenced(SQLite::Database& database, const std::string& cutoff) {
  const std::string yesterday = utc_timestamp(std::chrono::system_clock::now() - std::chrono::hours(24));
  SQLite::Statement sessions(database,
                             "DELETE FROM sessions WHERE started < ?1 AND NOT EXISTS(SELECT 1 FROM trials t WHERE "
                             "t.session_id = sessions.id)");
  sessions.bind(1, std::min(cutoff, yesterday));
  sessions.exec();
  database.exec(
      "DELETE FROM problems WHERE id NOT IN (SELECT problem_id FROM trials);"
      "DELETE FROM shapes WHERE id NOT IN (SELECT shape_id FROM trials);"
      "DELETE FROM configs WHERE id NOT IN (SELECT config_id FROM trials);"
      "DELETE FROM environments WHERE id NOT IN (SELECT environment_id FROM sessions);"
      "DELETE FROM device_models WHERE id NOT IN (SELECT device_model_id FROM sessions)"
      " AND id NOT IN (SELECT device_model_id FROM read_limits)");
}

}  // namespace

std::int64_t used_bytes(SQLite::Database& database) {
  return ask_number(database,
                    "SELECT (page_count - freelist_count) * page_size"
                    " FROM pragma_page_count, pragma_freelist_count, pragma_page_size");
}

std::int64_t drop_old_trials(SQLite::Database& database, const std::string& cutoff) {
  SQLite::Statement trials(
      database,
      std::string(kGroups) + "DELETE FROM trials WHERE id IN (SELECT id FROM judged WHERE newest < ?1 AND NOT kept)");
  trials.bind(1, cutoff);
  trials.bind(3, utc_timestamp());
  const std::int64_t count = trials.exec();
  drop_unreferenced(database, cutoff);
  return count;
}

std::int64_t drop_trials_above(SQLite::Database& database, std::int64_t max_bytes) {
  constexpr std::int64_t kRowBytes = 400;  // of a trial beside its texts, with its share of the indexes
  std::int64_t dropped = 0;
  for (;;) {
    const std::int64_t excess = used_bytes(database) - max_bytes;
    if (excess <= 0) return dropped;
    // By an estimate of what each takes, since pages only come free when all of their rows have gone; then measured
    // again. The oldest group goes whatever it takes, so this ends.
    SQLite::Statement trials(
        database, std::string(kGroups) +
                      ", queue AS (SELECT id, sum(bytes + ?1) OVER (ORDER BY newest, leader RANGE BETWEEN UNBOUNDED"
                      "   PRECEDING AND CURRENT ROW EXCLUDE GROUP) AS before FROM judged WHERE NOT kept)"
                      " DELETE FROM trials WHERE id IN (SELECT id FROM queue WHERE coalesce(before, 0) < ?2)");
    trials.bind(1, kRowBytes);
    trials.bind(2, excess);
    trials.bind(3, utc_timestamp());
    const std::int64_t count = trials.exec();
    if (count == 0) return dropped;
    dropped += count;
    drop_unreferenced(database, utc_timestamp());
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
