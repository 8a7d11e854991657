// rows.hpp -- rows of tuning.db as values: reading trials with all they refer to, writing them back, their
// digests. Internal to cache/. Everything throws SQLite::Exception; the caller owns transactions. One thread per
// database.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest.hpp"
#include "cache/tuning/tuning_db.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

struct SessionRow {
  std::string uuid = {}, started = {}, finished = {}, command = {};
  DeviceModel device;
  Environment environment;
  int library_version = 0;  ///< kLibraryVersion of what wrote it; 0: before these were noted
  int schema_version = 0;   ///< user_version of the database it was written to
};

/// This library's, as a number that grows: 0.2.1 is 2001.
extern const int kLibraryVersion;

/// What add_trial refuses, and what is refused wherever trials are read: words that are none, texts that are missing or
/// too long, numbers out of their range. Errors: invalid_argument.
Result<void> check_policy(std::string_view policy);
Result<void> check_trial(const Trial& trial);
Result<void> check_read_limit(std::string_view policy, std::int64_t bytes, double us);

/// Over everything a trial says and everything it was measured under, so that damage to any row it refers to is noticed
/// as well.
Digest trial_digest(const SessionRow& session, const Trial& trial);

Digest winner_digest(const DeviceModel& device, std::string_view problem, std::string_view shape,
                     std::string_view policy, const Digest& trial, const Digest& fastest_trial);
Digest read_limit_digest(const DeviceModel& device, std::string_view policy, std::int64_t bytes, double us,
                         std::string_view measured);

/// Gives every read limit the digest of what it says.
void sign_read_limits(SQLite::Database& database);

/// Now, or the millisecond after the newest stamp in the database where the clock has not passed it: so what is begun
/// later sorts later.
std::string next_timestamp(SQLite::Database& database);

/// nullopt for a word that is no status.
std::optional<TrialStatus> parse_status(std::string_view text);

/// Column lists for SELECT, and the readers that start at a given column.
inline constexpr const char* kEnvironmentColumns =
    "e.driver_version, e.driver_release, e.nvrtc_version, e.clock_khz, e.memory_clock_khz, e.power_limit_mw, e.ecc, "
    "e.library_revision";
inline const std::string kSessionColumns =
    std::string(
        "s.uuid, s.started, s.finished, s.command, d.name, d.arch, d.sm_count, d.l2_bytes, d.memory_bytes, "
        "d.mig_profile, ") +
    kEnvironmentColumns + ", s.library_version, s.schema_version";
inline constexpr int kSessionColumnCount = 20;
SessionRow read_session(SQLite::Statement& statement, int first);

inline constexpr const char* kTrialColumns =
    "t.uuid, p.json, h.json, t.policy, c.json, t.status, t.reason, t.samples, t.median_us, t.mad_us, t.low_us, "
    "t.high_us, "
    "t.samples_json, t.throttle, t.registers, t.compile_ms, t.bytes, t.created, t.kernel_revision";
inline constexpr int kTrialColumnCount = 19;
Trial read_trial(SQLite::Statement& statement, int first);

DeviceModel read_device(SQLite::Statement& statement, int first);
Environment read_environment(SQLite::Statement& statement, int first);

/// trials t with session s, device model d, environment e, problem p, shape h, config c.
inline constexpr const char* kTrialJoin =
    " FROM trials t JOIN sessions s ON s.id = t.session_id JOIN device_models d ON d.id = s.device_model_id"
    " JOIN environments e ON e.id = s.environment_id JOIN problems p ON p.id = t.problem_id"
    " JOIN shapes h ON h.id = t.shape_id JOIN configs c ON c.id = t.config_id ";

/// Ids of rows, found or made. Remembers what it saw, so use one per transaction.
class RowWriter {
 public:
  explicit RowWriter(SQLite::Database& database) : database_(database) {}

  std::int64_t device(const DeviceModel& device);
  std::int64_t problem(std::string_view json) { return text("problems", json); }
  std::int64_t environment(const Environment& environment);
  /// Makes the session, or keeps the later `finished` of the two. nullopt when a session of that uuid ran on something
  /// else.
  std::optional<std::int64_t> session(const SessionRow& session);
  /// What became of a trial: an equal one or, by a deterministic choice, the other of two that share a uuid may already
  /// be there.
  enum class Outcome { added, known, replaced };
  Outcome trial(std::int64_t session_id, const Trial& trial, const Digest& digest);

 private:
  std::int64_t text(const char* table, std::string_view json);
  SQLite::Statement& prepared(const std::string& sql);

  SQLite::Database& database_;
  std::map<std::string, SQLite::Statement> statements_;
  std::map<std::pair<std::string, std::string>, std::int64_t> texts_;
};

/// Replaces what is there.
void write_read_limit(SQLite::Database& database, const DeviceModel& device, std::string_view policy,
                      std::int64_t bytes, double us, const std::string& measured);
/// (bytes, us) by growing bytes. Those that fail their digest or hold impossible values are left out, and counted in
/// `damaged`.
std::vector<std::pair<std::int64_t, double>> read_limits_of(SQLite::Database& database, const DeviceModel& device,
                                                            std::string_view policy, int& damaged);

std::optional<std::int64_t> find_device(SQLite::Database& database, const DeviceModel& device);
void bind_device(SQLite::Statement& statement, int first, const DeviceModel& device);
void bind_digest(SQLite::Statement& statement, int index, const Digest& digest);
inline constexpr const char* kDeviceColumns = "d.name, d.arch, d.sm_count, d.l2_bytes, d.memory_bytes, d.mig_profile";
inline constexpr int kDeviceColumnCount = 6;
Digest read_digest(SQLite::Statement& statement, int column);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
