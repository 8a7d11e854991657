#include "cache/tuning_rows.hpp"

#include <algorithm>
#include <cstring>

namespace leanattn {
inline namespace v1 {

bool same_software(const Environment& a, const Environment& b) {
  const auto same = []<class T>(const T& x, const T& y) { return x == y || x == T{} || y == T{}; };
  return same(a.driver_version, b.driver_version) && same(a.driver_release, b.driver_release) &&
         same(a.nvrtc_version, b.nvrtc_version) && same(a.library_revision, b.library_revision);
}

std::string_view to_string(TrialStatus status) {
  switch (status) {
    case TrialStatus::ok: return "ok";
    case TrialStatus::compile_fail: return "compile_fail";
    case TrialStatus::launch_fail: return "launch_fail";
    case TrialStatus::incorrect: return "incorrect";
    case TrialStatus::timeout: return "timeout";
    case TrialStatus::pruned: return "pruned";
  }
  return "unknown";
}

namespace detail {
namespace {

std::string text_at(SQLite::Statement& statement, int column) { return statement.getColumn(column).getString(); }
int int_at(SQLite::Statement& statement, int column) { return statement.getColumn(column).getInt(); }
std::int64_t int64_at(SQLite::Statement& statement, int column) { return statement.getColumn(column).getInt64(); }
double real_at(SQLite::Statement& statement, int column) { return statement.getColumn(column).getDouble(); }

void bind_environment(SQLite::Statement& statement, int first, const Environment& environment) {
  statement.bind(first + 0, environment.driver_version);
  statement.bind(first + 1, environment.driver_release);
  statement.bind(first + 2, environment.nvrtc_version);
  statement.bind(first + 3, environment.clock_khz);
  statement.bind(first + 4, environment.memory_clock_khz);
  statement.bind(first + 5, environment.power_limit_mw);
  statement.bind(first + 6, environment.ecc ? 1 : 0);
  statement.bind(first + 7, environment.library_revision);
}

/// The first row's first column; the statement is left reset, so that it holds no lock.
std::optional<std::int64_t> first_id(SQLite::Statement& statement) {
  std::optional<std::int64_t> id;
  if (statement.executeStep()) id = statement.getColumn(0).getInt64();
  statement.tryReset();
  return id;
}

constexpr const char* kFindDevice =
    "SELECT id FROM device_models WHERE name = ?1 AND arch = ?2 AND sm_count = ?3 AND l2_bytes = ?4 AND memory_bytes = "
    "?5"
    " AND mig_profile = ?6";

}  // namespace

Digest trial_digest(const SessionRow& session, const Trial& trial) {
  const DeviceModel& device = session.device;
  const Environment& environment = session.environment;
  Sha256 sha;
  sha.text("leanattn trial 1").text(session.uuid);
  sha.text(device.name).text(device.arch).number(device.sm_count).number(device.l2_bytes).number(device.memory_bytes);
  sha.text(device.mig_profile);
  sha.number(environment.driver_version).text(environment.driver_release).text(environment.nvrtc_version);
  sha.number(environment.clock_khz).number(environment.memory_clock_khz).number(environment.power_limit_mw);
  sha.number(environment.ecc ? 1 : 0).text(environment.library_revision);
  sha.text(trial.uuid).text(trial.problem).text(trial.shape).text(trial.policy).text(trial.config);
  sha.text(to_string(trial.status)).text(trial.reason).number(trial.samples);
  sha.real(trial.median_us).real(trial.mad_us).real(trial.low_us).real(trial.high_us);
  sha.text(trial.samples_json).text(trial.throttle).number(trial.registers).real(trial.compile_ms);
  sha.number(trial.bytes).text(trial.created);
  return sha.finish();
}

std::optional<TrialStatus> parse_status(std::string_view text) {
  for (const auto status : {TrialStatus::ok, TrialStatus::compile_fail, TrialStatus::launch_fail,
                            TrialStatus::incorrect, TrialStatus::timeout, TrialStatus::pruned}) {
    if (to_string(status) == text) return status;
  }
  return std::nullopt;
}

DeviceModel read_device(SQLite::Statement& statement, int first) {
  return {.name = text_at(statement, first),
          .arch = text_at(statement, first + 1),
          .sm_count = int_at(statement, first + 2),
          .l2_bytes = int64_at(statement, first + 3),
          .memory_bytes = int64_at(statement, first + 4),
          .mig_profile = text_at(statement, first + 5)};
}

Environment read_environment(SQLite::Statement& statement, int first) {
  return {.driver_version = int_at(statement, first),
          .driver_release = text_at(statement, first + 1),
          .nvrtc_version = text_at(statement, first + 2),
          .clock_khz = int_at(statement, first + 3),
          .memory_clock_khz = int_at(statement, first + 4),
          .power_limit_mw = int_at(statement, first + 5),
          .ecc = int_at(statement, first + 6) != 0,
          .library_revision = text_at(statement, first + 7)};
}

SessionRow read_session(SQLite::Statement& statement, int first) {
  return {.uuid = text_at(statement, first),
          .started = text_at(statement, first + 1),
          .finished = text_at(statement, first + 2),
          .command = text_at(statement, first + 3),
          .device = read_device(statement, first + 4),
          .environment = read_environment(statement, first + 10)};
}

Trial read_trial(SQLite::Statement& statement, int first) {
  // A damaged status reads as pruned, which can neither win nor pass its digest.
  return {.uuid = text_at(statement, first),
          .problem = text_at(statement, first + 1),
          .shape = text_at(statement, first + 2),
          .policy = text_at(statement, first + 3),
          .config = text_at(statement, first + 4),
          .status = parse_status(text_at(statement, first + 5)).value_or(TrialStatus::pruned),
          .reason = text_at(statement, first + 6),
          .samples = int_at(statement, first + 7),
          .median_us = real_at(statement, first + 8),
          .mad_us = real_at(statement, first + 9),
          .low_us = real_at(statement, first + 10),
          .high_us = real_at(statement, first + 11),
          .samples_json = text_at(statement, first + 12),
          .throttle = text_at(statement, first + 13),
          .registers = int_at(statement, first + 14),
          .compile_ms = real_at(statement, first + 15),
          .created = text_at(statement, first + 17),
          .bytes = int64_at(statement, first + 16)};
}

Digest read_digest(SQLite::Statement& statement, int column) {
  Digest digest{};
  const SQLite::Column value = statement.getColumn(column);
  const void* blob = value.getBlob();
  if (blob != nullptr && static_cast<std::size_t>(value.getBytes()) == digest.size())
    std::memcpy(digest.data(), blob, digest.size());
  return digest;
}

void bind_device(SQLite::Statement& statement, int first, const DeviceModel& device) {
  statement.bind(first + 0, device.name);
  statement.bind(first + 1, device.arch);
  statement.bind(first + 2, device.sm_count);
  statement.bind(first + 3, device.l2_bytes);
  statement.bind(first + 4, device.memory_bytes);
  statement.bind(first + 5, device.mig_profile);
}

void write_cost_model(SQLite::Database& database, const DeviceModel& device, const FittedModel& model,
                      const std::string& now) {
  RowWriter writer(database);
  SQLite::Statement insert(database,
                           "INSERT OR REPLACE INTO cost_models(device_model_id, problem_id, policy, json, fitted)"
                           " VALUES(?1, ?2, ?3, ?4, ?5)");
  insert.bind(1, writer.device(device));
  insert.bind(2, writer.problem(model.problem));
  insert.bind(3, model.policy);
  insert.bind(4, model.json);
  insert.bind(5, now);
  insert.exec();
}

std::vector<FittedModel> read_cost_models(SQLite::Database& database, std::int64_t device_id) {
  SQLite::Statement statement(
      database,
      "SELECT p.json, m.policy, m.json FROM cost_models m JOIN problems p ON p.id = m.problem_id"
      " WHERE m.device_model_id = ?1 ORDER BY m.problem_id, m.policy");
  statement.bind(1, device_id);
  std::vector<FittedModel> models;
  while (statement.executeStep()) {
    models.push_back({.problem = statement.getColumn(0).getString(),
                      .policy = statement.getColumn(1).getString(),
                      .json = statement.getColumn(2).getString()});
  }
  return models;
}

std::optional<std::int64_t> find_device(SQLite::Database& database, const DeviceModel& device) {
  SQLite::Statement statement(database, kFindDevice);
  bind_device(statement, 1, device);
  return first_id(statement);
}

SQLite::Statement& RowWriter::prepared(const std::string& sql) {
  auto found = statements_.find(sql);
  if (found == statements_.end()) found = statements_.try_emplace(sql, database_, sql).first;
  found->second.tryReset();
  return found->second;
}

std::int64_t RowWriter::device(const DeviceModel& device) {
  SQLite::Statement& find = prepared(kFindDevice);
  bind_device(find, 1, device);
  if (const auto known = first_id(find)) return *known;
  SQLite::Statement& insert = prepared(
      "INSERT INTO device_models(name, arch, sm_count, l2_bytes, memory_bytes, mig_profile) VALUES(?1, ?2, ?3, ?4, ?5, "
      "?6)");
  bind_device(insert, 1, device);
  insert.exec();
  return database_.getLastInsertRowid();
}

std::int64_t RowWriter::environment(const Environment& environment) {
  SQLite::Statement& find = prepared(
      "SELECT id FROM environments WHERE driver_version = ?1 AND driver_release = ?2 AND nvrtc_version = ?3 AND "
      "clock_khz = ?4"
      " AND memory_clock_khz = ?5 AND power_limit_mw = ?6 AND ecc = ?7 AND library_revision = ?8");
  bind_environment(find, 1, environment);
  if (const auto known = first_id(find)) return *known;
  SQLite::Statement& insert = prepared(
      "INSERT INTO environments(driver_version, driver_release, nvrtc_version, clock_khz, memory_clock_khz, "
      "power_limit_mw, ecc,"
      " library_revision) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
  bind_environment(insert, 1, environment);
  insert.exec();
  return database_.getLastInsertRowid();
}

std::optional<std::int64_t> RowWriter::session(const SessionRow& session) {
  const std::int64_t device_id = device(session.device);
  const std::int64_t environment_id = environment(session.environment);
  SQLite::Statement& find =
      prepared("SELECT id, device_model_id, environment_id, finished FROM sessions WHERE uuid = ?1");
  find.bind(1, session.uuid);
  if (find.executeStep()) {
    const std::int64_t id = find.getColumn(0).getInt64();
    const bool same = find.getColumn(1).getInt64() == device_id && find.getColumn(2).getInt64() == environment_id;
    const bool finished_later = find.getColumn(3).getString() < session.finished;
    find.tryReset();
    if (!same) return std::nullopt;
    if (finished_later) {
      SQLite::Statement& update = prepared("UPDATE sessions SET finished = ?2 WHERE id = ?1");
      update.bind(1, id);
      update.bind(2, session.finished);
      update.exec();
    }
    return id;
  }
  SQLite::Statement& insert = prepared(
      "INSERT INTO sessions(uuid, device_model_id, environment_id, started, finished, command) VALUES(?1, ?2, ?3, ?4, "
      "?5, ?6)");
  insert.bind(1, session.uuid);
  insert.bind(2, device_id);
  insert.bind(3, environment_id);
  insert.bind(4, session.started);
  insert.bind(5, session.finished);
  insert.bind(6, session.command);
  insert.exec();
  return database_.getLastInsertRowid();
}

std::int64_t RowWriter::text(const char* table, std::string_view json) {
  std::pair<std::string, std::string> key{table, json};
  if (const auto found = texts_.find(key); found != texts_.end()) return found->second;
  SQLite::Statement& find = prepared("SELECT id FROM " + key.first + " WHERE json = ?1");
  find.bind(1, key.second);
  std::optional<std::int64_t> id = first_id(find);
  if (!id) {
    SQLite::Statement& insert = prepared("INSERT INTO " + key.first + "(json) VALUES(?1)");
    insert.bind(1, key.second);
    insert.exec();
    id = database_.getLastInsertRowid();
  }
  texts_.emplace(std::move(key), *id);
  return *id;
}

RowWriter::Outcome RowWriter::trial(std::int64_t session_id, const Trial& trial, const Digest& digest) {
  SQLite::Statement& find = prepared("SELECT digest FROM trials WHERE uuid = ?1");
  find.bind(1, trial.uuid);
  const bool exists = find.executeStep();
  const bool keep = exists && read_digest(find, 0) <= digest;
  find.tryReset();
  if (keep) return Outcome::known;
  SQLite::Statement& write = prepared(
      "INSERT INTO trials(uuid, session_id, problem_id, shape_id, policy, config_id, status, reason, samples, "
      "median_us, mad_us,"
      " low_us, high_us, samples_json, throttle, registers, compile_ms, bytes, created, digest)"
      " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)"
      " ON CONFLICT(uuid) DO UPDATE SET session_id = excluded.session_id, problem_id = excluded.problem_id,"
      " shape_id = excluded.shape_id, policy = excluded.policy, config_id = excluded.config_id, status = "
      "excluded.status,"
      " reason = excluded.reason, samples = excluded.samples, median_us = excluded.median_us, mad_us = excluded.mad_us,"
      " low_us = excluded.low_us, high_us = excluded.high_us, samples_json = excluded.samples_json, throttle = "
      "excluded.throttle,"
      " registers = excluded.registers, compile_ms = excluded.compile_ms, bytes = excluded.bytes, created = "
      "excluded.created,"
      " digest = excluded.digest");
  const std::int64_t problem_id = text("problems", trial.problem);
  const std::int64_t shape_id = text("shapes", trial.shape);
  const std::int64_t config_id = text("configs", trial.config);
  write.bind(1, trial.uuid);
  write.bind(2, session_id);
  write.bind(3, problem_id);
  write.bind(4, shape_id);
  write.bind(5, trial.policy);
  write.bind(6, config_id);
  write.bind(7, std::string(to_string(trial.status)));
  write.bind(8, trial.reason);
  write.bind(9, trial.samples);
  write.bind(10, trial.median_us);
  write.bind(11, trial.mad_us);
  write.bind(12, trial.low_us);
  write.bind(13, trial.high_us);
  write.bind(14, trial.samples_json);
  write.bind(15, trial.throttle);
  write.bind(16, trial.registers);
  write.bind(17, trial.compile_ms);
  write.bind(18, trial.bytes);
  write.bind(19, trial.created);
  write.bind(20, digest.data(), static_cast<int>(digest.size()));
  write.exec();
  return exists ? Outcome::replaced : Outcome::added;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
