#include "cache/tuning/winners.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "cache/tuning/rows.hpp"
#include "cache/tuning/winner_rule.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

struct Key {
  std::int64_t device = 0, problem = 0, shape = 0;
  std::string policy;
  bool operator==(const Key&) const = default;
};

void bind_key(SQLite::Statement& statement, const Key& key) {
  statement.bind(1, key.device);
  statement.bind(2, key.problem);
  statement.bind(3, key.shape);
  statement.bind(4, key.policy);
}

bool is_intact(SQLite::Database& database, std::int64_t trial_id) {
  SQLite::Statement statement(database, std::string("SELECT t.digest, ") + kSessionColumns + ", " + kTrialColumns +
                                            kTrialJoin + "WHERE t.id = ?1");
  statement.bind(1, trial_id);
  if (!statement.executeStep()) return false;
  const Trial trial = read_trial(statement, 1 + kSessionColumnCount);
  return check_trial(trial) && read_digest(statement, 0) == trial_digest(read_session(statement, 1), trial);
}

/// A trial that fails its digest can neither win, nor set the mark, nor speak against another one.
std::optional<ChosenTrials> choose_intact(SQLite::Database& database, std::vector<MeasuredTrial> trials,
                                          std::string_view latest_credible) {
  std::set<std::string> may_win;
  for (const MeasuredTrial& trial : trials) {
    if (!trial.lost && !trial.wrong) may_win.insert(trial.config);
  }
  // Most of what lost is of configurations that never won, which is quicker to see.
  std::erase_if(trials, [&](const MeasuredTrial& trial) {
    return (trial.lost || trial.wrong) && (!may_win.contains(trial.config) || !is_intact(database, trial.id));
  });
  while (const auto chosen = choose_winner(trials, latest_credible)) {
    const std::size_t before = trials.size();
    for (const std::int64_t id : {chosen->winner, chosen->fastest}) {
      if (!is_intact(database, id)) std::erase_if(trials, [id](const MeasuredTrial& trial) { return trial.id == id; });
    }
    if (trials.size() == before) return chosen;
  }
  return std::nullopt;
}

/// Writes winners with their digests.
class WinnerWriter {
 public:
  explicit WinnerWriter(SQLite::Database& database)
      : database_(database),
        latest_credible_(latest_credible_timestamp()),
        read_(database, std::string("SELECT ") + kDeviceColumns +
                            ", p.json, h.json, t.digest, f.digest FROM device_models d, problems p, shapes h, trials t,"
                            " trials f WHERE d.id = ?1 AND p.id = ?2 AND h.id = ?3 AND t.id = ?4 AND f.id = ?5"),
        insert_(database,
                "INSERT OR REPLACE INTO winners(device_model_id, problem_id, shape_id, policy, trial_id,"
                " fastest_trial_id, digest) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)") {}

  void choose_and_write(const Key& key, std::vector<MeasuredTrial> trials) {
    if (const auto chosen = choose_intact(database_, std::move(trials), latest_credible_)) write(key, *chosen);
  }

  void write(const Key& key, const ChosenTrials& chosen) {
    read_.tryReset();
    read_.bind(1, key.device);
    read_.bind(2, key.problem);
    read_.bind(3, key.shape);
    read_.bind(4, chosen.winner);
    read_.bind(5, chosen.fastest);
    if (!read_.executeStep()) return;  // it points at a row that is not there
    insert_.tryReset();
    bind_key(insert_, key);
    insert_.bind(5, chosen.winner);
    insert_.bind(6, chosen.fastest);
    bind_digest(insert_, 7,
                winner_digest(read_device(read_, 0), read_.getColumn(kDeviceColumnCount).getString(),
                              read_.getColumn(kDeviceColumnCount + 1).getString(), key.policy,
                              read_digest(read_, kDeviceColumnCount + 2), read_digest(read_, kDeviceColumnCount + 3)));
    insert_.exec();
    read_.tryReset();
  }

 private:
  SQLite::Database& database_;
  std::string latest_credible_;
  SQLite::Statement read_, insert_;
};

constexpr const char* kMeasured =
    "SELECT s.device_model_id, t.problem_id, t.shape_id, t.policy, t.id, t.uuid, c.json, t.created, t.median_us,"
    " t.low_us, t.high_us, e.driver_version || ' ' || e.driver_release || ' ' || e.nvrtc_version,"
    " s.library_version, s.schema_version, t.samples, t.status = 'pruned', t.status = 'incorrect', e.library_revision,"
    " iif(t.kernel_revision = '', e.library_revision, t.kernel_revision)"
    " FROM trials t JOIN "
    "sessions s ON s.id = t.session_id "
    "JOIN environments e ON e.id = "
    "s.environment_id"
    " JOIN configs c ON c.id = t.config_id WHERE (t.status = 'incorrect' OR (t.median_us > 0"
    " AND (t.status = 'ok' OR (t.status = 'pruned' AND t.samples >= 3)))) ";
static_assert(kFewestSamples == 3, "as kMeasured has it");

Key read_key(SQLite::Statement& statement) {
  return {statement.getColumn(0).getInt64(), statement.getColumn(1).getInt64(), statement.getColumn(2).getInt64(),
          statement.getColumn(3).getString()};
}

MeasuredTrial read_measured(SQLite::Statement& statement) {
  return {.id = statement.getColumn(4).getInt64(),
          .uuid = statement.getColumn(5).getString(),
          .config = statement.getColumn(6).getString(),
          .created = statement.getColumn(7).getString(),
          .library_version = statement.getColumn(12).getInt(),
          .schema_version = statement.getColumn(13).getInt(),
          .driver = statement.getColumn(11).getString(),
          .library = statement.getColumn(17).getString(),
          .kernel = statement.getColumn(18).getString(),
          .median_us = statement.getColumn(8).getDouble(),
          .low_us = statement.getColumn(9).getDouble(),
          .high_us = statement.getColumn(10).getDouble(),
          .samples = statement.getColumn(14).getInt(),
          .lost = statement.getColumn(15).getInt() == 1,
          .wrong = statement.getColumn(16).getInt() == 1};
}

std::optional<std::int64_t> find_text(SQLite::Database& database, const char* table, std::string_view json) {
  SQLite::Statement statement(database, std::string("SELECT id FROM ") + table + " WHERE json = ?1");
  statement.bind(1, std::string(json));
  if (!statement.executeStep()) return std::nullopt;
  return statement.getColumn(0).getInt64();
}

/// What the device model was last used under, by the order that choose_winner takes; a winner measured under anything
/// else is stale.
std::optional<Environment> newest_environment(SQLite::Database& database, std::int64_t device_id) {
  SQLite::Statement statement(
      database, std::string("SELECT ") + kEnvironmentColumns +
                    " FROM sessions s JOIN environments e ON e.id = s.environment_id WHERE s.device_model_id = ?1"
                    " ORDER BY s.library_version DESC, s.schema_version DESC,"
                    " CASE WHEN s.started > ?2 THEN '' ELSE s.started END DESC, s.uuid DESC LIMIT 1");
  statement.bind(1, device_id);
  statement.bind(2, latest_credible_timestamp());
  if (!statement.executeStep()) return std::nullopt;
  return read_environment(statement, 0);
}

/// Sessions by id, each read once: thousands of winners share a few.
class Sessions {
 public:
  explicit Sessions(SQLite::Database& database)
      : find_(database, std::string("SELECT ") + kSessionColumns +
                            " FROM sessions s JOIN device_models d ON d.id = s.device_model_id"
                            " JOIN environments e ON e.id = s.environment_id WHERE s.id = ?1") {}

  /// nullopt where a row that it needs is gone.
  const std::optional<SessionRow>& of(std::int64_t id) {
    const auto [found, made] = known_.try_emplace(id);
    if (!made) return found->second;
    find_.bind(1, id);
    if (find_.executeStep()) found->second = read_session(find_, 0);
    find_.tryReset();
    return found->second;
  }

 private:
  SQLite::Statement find_;
  std::map<std::int64_t, std::optional<SessionRow>> known_;
};

}  // namespace

void rebuild_all_winners(SQLite::Database& database) {
  database.exec("DELETE FROM winners");
  SQLite::Statement statement(
      database, std::string(kMeasured) + "ORDER BY s.device_model_id, t.problem_id, t.shape_id, t.policy, t.id");
  WinnerWriter writer(database);
  Key key;
  std::vector<MeasuredTrial> group;
  while (statement.executeStep()) {
    Key next = read_key(statement);
    if (next != key) {
      writer.choose_and_write(key, std::exchange(group, {}));
      key = std::move(next);
    }
    group.push_back(read_measured(statement));
  }
  writer.choose_and_write(key, std::move(group));
}

void rebuild_winner(SQLite::Database& database, const DeviceModel& device, std::string_view problem,
                    std::string_view shape, std::string_view policy) {
  const auto device_id = find_device(database, device);
  const auto problem_id = find_text(database, "problems", problem);
  const auto shape_id = find_text(database, "shapes", shape);
  if (!device_id || !problem_id || !shape_id) return;
  const Key key{*device_id, *problem_id, *shape_id, std::string(policy)};
  SQLite::Statement forget(
      database, "DELETE FROM winners WHERE device_model_id = ?1 AND problem_id = ?2 AND shape_id = ?3 AND policy = ?4");
  bind_key(forget, key);
  forget.exec();
  SQLite::Statement statement(
      database, std::string(kMeasured) +
                    "AND s.device_model_id = ?1 AND t.problem_id = ?2 AND t.shape_id = ?3 AND t.policy = ?4");
  bind_key(statement, key);
  std::vector<MeasuredTrial> trials;
  while (statement.executeStep()) trials.push_back(read_measured(statement));
  WinnerWriter(database).choose_and_write(key, std::move(trials));
}

std::vector<std::string> read_won_problems(SQLite::Database& database, const DeviceModel& device) {
  std::vector<std::string> problems;
  const auto device_id = find_device(database, device);
  if (!device_id) return problems;
  // One search of the winners' key for each problem, however many winners it has.
  SQLite::Statement statement(database,
                              "SELECT p.json FROM problems p WHERE EXISTS"
                              " (SELECT 1 FROM winners w WHERE w.device_model_id = ?1 AND w.problem_id = p.id)"
                              " ORDER BY p.json");
  statement.bind(1, *device_id);
  while (statement.executeStep()) problems.push_back(statement.getColumn(0).getString());
  return problems;
}

void sign_winners(SQLite::Database& database) {
  SQLite::Statement statement(
      database, "SELECT device_model_id, problem_id, shape_id, policy, trial_id, fastest_trial_id FROM winners");
  std::vector<std::pair<Key, ChosenTrials>> winners;
  while (statement.executeStep()) {
    winners.emplace_back(read_key(statement), ChosenTrials{.winner = statement.getColumn(4).getInt64(),
                                                           .fastest = statement.getColumn(5).getInt64()});
  }
  statement.tryReset();
  WinnerWriter writer(database);
  for (const auto& [key, chosen] : winners) writer.write(key, chosen);
}

std::vector<Winner> read_winners(SQLite::Database& database, const DeviceModel& device,
                                 std::optional<std::string_view> problem, const Software& now, int& damaged) {
  std::vector<Winner> winners;
  const auto device_id = find_device(database, device);
  if (!device_id) return winners;
  const auto problem_id = problem ? find_text(database, "problems", *problem) : std::nullopt;
  if (problem && !problem_id) return winners;
  const Software software{now.environment ? now.environment : newest_environment(database, *device_id),
                          now.kernel_revision};
  Sessions sessions(database);
  std::map<std::string, std::vector<std::pair<std::int64_t, double>>> limits;
  SQLite::Statement next(
      database, std::string("SELECT t.session_id, t.digest, ") + kTrialColumns +
                    " FROM trials t JOIN sessions s ON s.id = t.session_id JOIN problems p ON p.id = t.problem_id"
                    " JOIN shapes h ON h.id = t.shape_id JOIN configs c ON c.id = t.config_id"
                    " WHERE t.problem_id = ?1 AND t.shape_id = ?2 AND t.policy = ?3 AND t.status = 'ok' AND"
                    " s.device_model_id = ?4 AND t.config_id <> ?5 AND NOT EXISTS (SELECT 1 FROM trials x"
                    " JOIN sessions y ON y.id = x.session_id WHERE x.problem_id = t.problem_id AND"
                    " x.shape_id = t.shape_id AND x.policy = t.policy AND x.config_id = t.config_id AND"
                    " x.status = 'incorrect' AND y.device_model_id = s.device_model_id)"
                    " ORDER BY t.median_us, c.json");
  const auto next_of = [&](const SQLite::Statement& winner, const std::string& policy) -> std::optional<Trial> {
    next.tryReset();
    for (int i = 0; i < 2; ++i) next.bind(i + 1, winner.getColumn(i + 5).getInt64());
    next.bind(3, policy);
    next.bind(4, *device_id);
    next.bind(5, winner.getColumn(7).getInt64());
    while (next.executeStep()) {
      const auto& session = sessions.of(next.getColumn(0).getInt64());
      Trial trial = read_trial(next, 2);
      if (session && check_trial(trial) && read_digest(next, 1) == trial_digest(*session, trial)) return trial;
    }
    return std::nullopt;
  };
  // LEFT JOINs, so that a winner that points nowhere is counted.
  constexpr int kTrialAt = 8;
  SQLite::Statement statement(
      database,
      std::string("SELECT t.session_id, t.digest, f.digest, w.digest, t.problem_id = w.problem_id AND"
                  " t.shape_id = w.shape_id AND t.policy = w.policy, t.problem_id, t.shape_id, t.config_id, ") +
          kTrialColumns +
          " FROM winners w LEFT JOIN trials t ON t.id = w.trial_id LEFT JOIN trials f ON f.id = w.fastest_trial_id"
          " LEFT JOIN problems p ON p.id = w.problem_id LEFT JOIN shapes h ON h.id = w.shape_id"
          " LEFT JOIN configs c ON c.id = t.config_id WHERE w.device_model_id = ?1" +
          (problem ? " AND w.problem_id = ?2 ORDER BY h.json, w.policy" : " ORDER BY p.json, h.json, w.policy"));
  statement.bind(1, *device_id);
  if (problem) statement.bind(2, *problem_id);
  while (statement.executeStep()) {
    const auto& session = sessions.of(statement.getColumn(0).getInt64());
    Trial trial = read_trial(statement, kTrialAt);
    const Digest digest = read_digest(statement, 1);
    const bool sound = session && session->device == device && statement.getColumn(4).getInt() == 1 &&
                       trial.status == TrialStatus::ok && (!problem || trial.problem == *problem) &&
                       check_trial(trial) && digest == trial_digest(*session, trial) &&
                       read_digest(statement, 3) == winner_digest(device, trial.problem, trial.shape, trial.policy,
                                                                  digest, read_digest(statement, 2));
    if (!sound) {
      ++damaged;
      continue;
    }
    const auto [known, made] = limits.try_emplace(trial.policy);
    if (made) {
      int unknown = 0;  // a read limit that is damaged is one that was not measured
      known->second = read_limits_of(database, device, trial.policy, unknown);
    }
    std::optional<Trial> runner_up = next_of(statement, trial.policy);
    winners.push_back({.problem = std::move(trial.problem),
                       .shape = std::move(trial.shape),
                       .policy = std::move(trial.policy),
                       .config = std::move(trial.config),
                       .trial_uuid = std::move(trial.uuid),
                       .median_us = trial.median_us,
                       .low_us = trial.low_us,
                       .high_us = trial.high_us,
                       .next_config = runner_up ? std::move(runner_up->config) : std::string(),
                       .next_us = runner_up ? runner_up->median_us : 0,
                       .read_limit_us = interpolate_read_limit(known->second, trial.bytes),
                       .environment = session->environment,
                       .kernel_revision = std::move(trial.kernel_revision),
                       .library_version = session->library_version});
    winners.back().stale = !same_software(winners.back(), software);
  }
  return winners;
}

double interpolate_read_limit(const std::vector<std::pair<std::int64_t, double>>& limits, std::int64_t bytes) {
  const auto above = std::lower_bound(limits.begin(), limits.end(), bytes,
                                      [](const auto& limit, std::int64_t wanted) { return limit.first < wanted; });
  if (bytes <= 0 || above == limits.end()) return 0;
  if (above->first == bytes) return above->second;
  if (above == limits.begin()) return 0;
  const auto below = std::prev(above);
  const double share = static_cast<double>(bytes - below->first) / static_cast<double>(above->first - below->first);
  return below->second + share * (above->second - below->second);
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
