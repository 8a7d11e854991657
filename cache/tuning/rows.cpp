#include "cache/tuning/rows.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "leanattn/leanattn.h"

namespace leanattn {
inline namespace v1 {

namespace {

/// What one side does not know counts as the same.
template <class T>
bool same_or_unknown(const T& a, const T& b) {
  return a == b || a == T{} || b == T{};
}

bool same_driver_and_nvrtc(const Environment& a, const Environment& b) {
  return same_or_unknown(a.driver_version, b.driver_version) && same_or_unknown(a.driver_release, b.driver_release) &&
         same_or_unknown(a.nvrtc_version, b.nvrtc_version);
}

template <class Measured>
bool has_same_kernel(const Measured& measured, const Software& now) {
  if (!measured.kernel_revision.empty())
    return !now.kernel_revision || measured.kernel_revision == now.kernel_revision(measured.config);
  return !now.environment || same_or_unknown(measured.environment.library_revision, now.environment->library_revision);
}

template <class Measured>
bool has_same_software(const Measured& measured, const Software& now) {
  return (!now.environment || same_driver_and_nvrtc(measured.environment, *now.environment)) &&
         has_same_kernel(measured, now);
}

}  // namespace

bool same_software(const Environment& a, const Environment& b) {
  return same_driver_and_nvrtc(a, b) && same_or_unknown(a.library_revision, b.library_revision);
}

bool same_kernel(const Winner& winner, const Software& now) { return has_same_kernel(winner, now); }
bool same_software(const Winner& winner, const Software& now) { return has_same_software(winner, now); }
bool same_software(const Trial& trial, const Software& now) { return has_same_software(trial, now); }

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

const int kLibraryVersion = LEANATTN_VERSION_MAJOR * 1000000 + LEANATTN_VERSION_MINOR * 1000 + LEANATTN_VERSION_PATCH;

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

/// Far below what a connection accepts of one row (Schema::longest_value).
constexpr std::size_t kLongestTexts = 8 << 20;

Sha256& add_device(Sha256& sha, const DeviceModel& device) {
  sha.text(device.name).text(device.arch).number(device.sm_count).number(device.l2_bytes).number(device.memory_bytes);
  return sha.text(device.mig_profile);
}

constexpr const char* kFindDevice =
    "SELECT id FROM device_models WHERE name = ?1 AND arch = ?2 AND sm_count = ?3 AND l2_bytes = ?4 AND memory_bytes = "
    "?5"
    " AND mig_profile = ?6";

}  // namespace

Digest trial_digest(const SessionRow& session, const Trial& trial) {
  const Environment& environment = session.environment;
  Sha256 sha;
  add_device(sha.text("leanattn trial 1").text(session.uuid), session.device);
  sha.number(environment.driver_version).text(environment.driver_release).text(environment.nvrtc_version);
  sha.number(environment.clock_khz).number(environment.memory_clock_khz).number(environment.power_limit_mw);
  sha.number(environment.ecc ? 1 : 0).text(environment.library_revision);
  sha.text(trial.uuid).text(trial.problem).text(trial.shape).text(trial.policy).text(trial.config);
  sha.text(to_string(trial.status)).text(trial.reason).number(trial.samples);
  sha.real(trial.median_us).real(trial.mad_us).real(trial.low_us).real(trial.high_us);
  sha.text(trial.samples_json).text(trial.throttle).number(trial.registers).real(trial.compile_ms);
  sha.number(trial.bytes).text(trial.created);
  // Sessions of before these were noted keep the digests that they have.
  if (session.library_version != 0 || session.schema_version != 0)
    sha.number(session.library_version).number(session.schema_version);
  // So do trials of before kernels had revisions.
  if (!trial.kernel_revision.empty()) sha.text(trial.kernel_revision);
  return sha.finish();
}

Digest winner_digest(const DeviceModel& device, std::string_view problem, std::string_view shape,
                     std::string_view policy, const Digest& trial, const Digest& fastest_trial) {
  Sha256 sha;
  add_device(sha.text("leanattn winner 1"), device).text(problem).text(shape).text(policy);
  return sha.text(hex(trial)).text(hex(fastest_trial)).finish();
}

Digest read_limit_digest(const DeviceModel& device, std::string_view policy, std::int64_t bytes, double us,
                         std::string_view measured) {
  Sha256 sha;
  return add_device(sha.text("leanattn read limit 1"), device)
      .text(policy)
      .number(bytes)
      .real(us)
      .text(measured)
      .finish();
}

std::string next_timestamp(SQLite::Database& database) {
  auto when = std::chrono::system_clock::now();
  SQLite::Statement newest(database,
                           "SELECT max(coalesce((SELECT max(started) FROM sessions WHERE started <= ?1), ''),"
                           " coalesce((SELECT max(created) FROM trials WHERE created <= ?1), ''))");
  newest.bind(1, utc_timestamp(when + std::chrono::seconds(1)));  // clocks of threads and hosts differ by less
  const std::string last = newest.executeStep() ? text_at(newest, 0) : std::string();
  while (utc_timestamp(when) <= last) when += std::chrono::milliseconds(1);
  return utc_timestamp(when);
}

Result<void> check_policy(std::string_view policy) {
  if (policy == "cold" || policy == "warm") return {};
  return fail(ErrorCode::invalid_argument, "policy is '" + std::string(policy) + "'; it must be cold or warm");
}

Result<void> check_trial(const Trial& trial) {
  if (auto policy = check_policy(trial.policy); !policy) return policy;
  for (const auto& [name, text] :
       {std::pair{"problem", &trial.problem}, {"shape", &trial.shape}, {"config", &trial.config}}) {
    if (text->empty()) return fail(ErrorCode::invalid_argument, std::string("a trial needs a ") + name);
  }
  std::size_t bytes = 0;
  for (const auto* text : {&trial.uuid, &trial.problem, &trial.shape, &trial.config, &trial.reason, &trial.samples_json,
                           &trial.throttle, &trial.created, &trial.kernel_revision}) {
    bytes += text->size();
  }
  if (bytes > kLongestTexts) {
    return fail(ErrorCode::invalid_argument, "a trial's texts have " + std::to_string(bytes) + " bytes; " +
                                                 std::to_string(kLongestTexts) + " are the most");
  }
  for (const auto& [name, value] : {std::pair{"median_us", trial.median_us},
                                    {"mad_us", trial.mad_us},
                                    {"low_us", trial.low_us},
                                    {"high_us", trial.high_us},
                                    {"compile_ms", trial.compile_ms},
                                    {"samples", static_cast<double>(trial.samples)},
                                    {"registers", static_cast<double>(trial.registers)},
                                    {"bytes", static_cast<double>(trial.bytes)}}) {
    if (!std::isfinite(value) || value < 0) {
      return fail(ErrorCode::invalid_argument, std::string("a trial's ") + name + " is " + std::to_string(value));
    }
  }
  if (trial.status == TrialStatus::ok && !(trial.median_us > 0)) {
    return fail(ErrorCode::invalid_argument, "an ok trial needs a median_us above 0");
  }
  return {};
}

Result<void> check_read_limit(std::string_view policy, std::int64_t bytes, double us) {
  if (auto valid = check_policy(policy); !valid) return valid;
  if (bytes > 0 && std::isfinite(us) && us > 0) return {};
  return fail(ErrorCode::invalid_argument,
              "a read limit of " + std::to_string(us) + " us for " + std::to_string(bytes) + " bytes makes no sense");
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
          .environment = read_environment(statement, first + 10),
          .library_version = int_at(statement, first + 18),
          .schema_version = int_at(statement, first + 19)};
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
          .kernel_revision = text_at(statement, first + 18),
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

void bind_digest(SQLite::Statement& statement, int index, const Digest& digest) {
  statement.bind(index, digest.data(), static_cast<int>(digest.size()));
}

void write_read_limit(SQLite::Database& database, const DeviceModel& device, std::string_view policy,
                      std::int64_t bytes, double us, const std::string& measured) {
  const std::int64_t device_id = RowWriter(database).device(device);
  SQLite::Statement insert(database,
                           "INSERT OR REPLACE INTO read_limits(device_model_id, policy, bytes, us, measured, digest)"
                           " VALUES(?1, ?2, ?3, ?4, ?5, ?6)");
  insert.bind(1, device_id);
  insert.bind(2, std::string(policy));
  insert.bind(3, bytes);
  insert.bind(4, us);
  insert.bind(5, measured);
  bind_digest(insert, 6, read_limit_digest(device, policy, bytes, us, measured));
  insert.exec();
}

std::vector<std::pair<std::int64_t, double>> read_limits_of(SQLite::Database& database, const DeviceModel& device,
                                                            std::string_view policy, int& damaged) {
  std::vector<std::pair<std::int64_t, double>> limits;
  const auto device_id = find_device(database, device);
  if (!device_id) return limits;
  SQLite::Statement statement(database,
                              "SELECT bytes, us, measured, digest FROM read_limits"
                              " WHERE device_model_id = ?1 AND policy = ?2 ORDER BY bytes");
  statement.bind(1, *device_id);
  statement.bind(2, std::string(policy));
  while (statement.executeStep()) {
    const std::int64_t bytes = int64_at(statement, 0);
    const double us = real_at(statement, 1);
    const bool sound = check_read_limit(policy, bytes, us) &&
                       read_digest(statement, 3) == read_limit_digest(device, policy, bytes, us, text_at(statement, 2));
    if (sound) {
      limits.emplace_back(bytes, us);
    } else {
      ++damaged;
    }
  }
  return limits;
}

void sign_read_limits(SQLite::Database& database) {
  SQLite::Statement read(database, std::string("SELECT ") + kDeviceColumns +
                                       ", r.policy, r.bytes, r.us, r.measured FROM read_limits r"
                                       " JOIN device_models d ON d.id = r.device_model_id");
  struct Limit {
    DeviceModel device;
    std::string policy;
    std::int64_t bytes;
    double us;
    std::string measured;
  };
  std::vector<Limit> limits;
  while (read.executeStep()) {
    limits.push_back({read_device(read, 0), text_at(read, 6), int64_at(read, 7), real_at(read, 8), text_at(read, 9)});
  }
  read.tryReset();
  for (const Limit& limit : limits)
    write_read_limit(database, limit.device, limit.policy, limit.bytes, limit.us, limit.measured);
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
  SQLite::Statement& find = prepared(
      "SELECT id, device_model_id, environment_id, finished, library_version, schema_version FROM sessions"
      " WHERE uuid = ?1");
  find.bind(1, session.uuid);
  if (find.executeStep()) {
    const std::int64_t id = find.getColumn(0).getInt64();
    const bool same = find.getColumn(1).getInt64() == device_id && find.getColumn(2).getInt64() == environment_id &&
                      find.getColumn(4).getInt() == session.library_version &&
                      find.getColumn(5).getInt() == session.schema_version;
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
      "INSERT INTO sessions(uuid, device_model_id, environment_id, started, finished, command, library_version,"
      " schema_version) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
  insert.bind(1, session.uuid);
  insert.bind(2, device_id);
  insert.bind(3, environment_id);
  insert.bind(4, session.started);
  insert.bind(5, session.finished);
  insert.bind(6, session.command);
  insert.bind(7, session.library_version);
  insert.bind(8, session.schema_version);
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
      " low_us, high_us, samples_json, throttle, registers, compile_ms, bytes, created, digest, kernel_revision)"
      " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)"
      " ON CONFLICT(uuid) DO UPDATE SET session_id = excluded.session_id, problem_id = excluded.problem_id,"
      " shape_id = excluded.shape_id, policy = excluded.policy, config_id = excluded.config_id, status = "
      "excluded.status,"
      " reason = excluded.reason, samples = excluded.samples, median_us = excluded.median_us, mad_us = excluded.mad_us,"
      " low_us = excluded.low_us, high_us = excluded.high_us, samples_json = excluded.samples_json, throttle = "
      "excluded.throttle,"
      " registers = excluded.registers, compile_ms = excluded.compile_ms, bytes = excluded.bytes, created = "
      "excluded.created,"
      " digest = excluded.digest, kernel_revision = excluded.kernel_revision");
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
  bind_digest(write, 20, digest);
  write.bind(21, trial.kernel_revision);
  write.exec();
  return exists ? Outcome::replaced : Outcome::added;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
