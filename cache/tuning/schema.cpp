#include "cache/tuning/schema.hpp"

#include "cache/tuning/rows.hpp"
#include "cache/tuning/winners.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

// Texts that repeat (problems, shapes, configs) are stored once. Trials and read limits are what was measured; winners
// are derived.
constexpr const char* kVersion1 = R"sql(
CREATE TABLE device_models(
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  arch TEXT NOT NULL,
  sm_count INTEGER NOT NULL,
  l2_bytes INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL,
  mig_profile TEXT NOT NULL,
  UNIQUE(name, arch, sm_count, l2_bytes, memory_bytes, mig_profile)
) STRICT;

CREATE TABLE environments(
  id INTEGER PRIMARY KEY,
  driver_version INTEGER NOT NULL,
  driver_release TEXT NOT NULL,
  nvrtc_version TEXT NOT NULL,
  clock_khz INTEGER NOT NULL,
  memory_clock_khz INTEGER NOT NULL,
  power_limit_mw INTEGER NOT NULL,
  ecc INTEGER NOT NULL CHECK(ecc IN (0, 1)),
  library_revision TEXT NOT NULL,
  UNIQUE(driver_version, driver_release, nvrtc_version, clock_khz, memory_clock_khz, power_limit_mw, ecc, library_revision)
) STRICT;

CREATE TABLE problems(id INTEGER PRIMARY KEY, json TEXT NOT NULL UNIQUE CHECK(json <> '')) STRICT;
CREATE TABLE shapes(id INTEGER PRIMARY KEY, json TEXT NOT NULL UNIQUE CHECK(json <> '')) STRICT;
CREATE TABLE configs(id INTEGER PRIMARY KEY, json TEXT NOT NULL UNIQUE CHECK(json <> '')) STRICT;

CREATE TABLE sessions(
  id INTEGER PRIMARY KEY,
  uuid TEXT NOT NULL UNIQUE,
  device_model_id INTEGER NOT NULL REFERENCES device_models(id),
  environment_id INTEGER NOT NULL REFERENCES environments(id),
  started TEXT NOT NULL,
  finished TEXT NOT NULL,
  command TEXT NOT NULL
) STRICT;
CREATE INDEX sessions_by_device ON sessions(device_model_id, started);

CREATE TABLE trials(
  id INTEGER PRIMARY KEY,
  uuid TEXT NOT NULL UNIQUE,
  session_id INTEGER NOT NULL REFERENCES sessions(id),
  problem_id INTEGER NOT NULL REFERENCES problems(id),
  shape_id INTEGER NOT NULL REFERENCES shapes(id),
  policy TEXT NOT NULL CHECK(policy IN ('cold', 'warm')),
  config_id INTEGER NOT NULL REFERENCES configs(id),
  status TEXT NOT NULL CHECK(status IN ('ok', 'compile_fail', 'launch_fail', 'incorrect', 'timeout', 'pruned')),
  reason TEXT NOT NULL,
  samples INTEGER NOT NULL,
  median_us REAL NOT NULL,
  mad_us REAL NOT NULL,
  low_us REAL NOT NULL,
  high_us REAL NOT NULL,
  samples_json TEXT NOT NULL,
  throttle TEXT NOT NULL,
  registers INTEGER NOT NULL,
  compile_ms REAL NOT NULL,
  bytes INTEGER NOT NULL,
  created TEXT NOT NULL,
  digest BLOB NOT NULL CHECK(length(digest) = 32)
) STRICT;
CREATE INDEX trials_by_key ON trials(problem_id, shape_id, policy, session_id);
CREATE INDEX trials_by_session ON trials(session_id);

CREATE TABLE winners(
  device_model_id INTEGER NOT NULL REFERENCES device_models(id),
  problem_id INTEGER NOT NULL REFERENCES problems(id),
  shape_id INTEGER NOT NULL REFERENCES shapes(id),
  policy TEXT NOT NULL,
  trial_id INTEGER NOT NULL REFERENCES trials(id),
  fastest_trial_id INTEGER NOT NULL REFERENCES trials(id),
  PRIMARY KEY(device_model_id, problem_id, shape_id, policy)
) STRICT, WITHOUT ROWID;
CREATE INDEX winners_by_trial ON winners(trial_id);
CREATE INDEX winners_by_fastest_trial ON winners(fastest_trial_id);

CREATE TABLE read_limits(
  device_model_id INTEGER NOT NULL REFERENCES device_models(id),
  policy TEXT NOT NULL CHECK(policy IN ('cold', 'warm')),
  bytes INTEGER NOT NULL CHECK(bytes > 0),
  us REAL NOT NULL CHECK(us > 0),
  measured TEXT NOT NULL,
  PRIMARY KEY(device_model_id, policy, bytes)
) STRICT, WITHOUT ROWID;
)sql";

// No table changes. The text of a problem may now say that its launches are dependent, which a library of version 1
// overlooks: it would take such a winner for one of ordinary launches, whose callers have promised less. So it must not
// read a file that may hold one.
constexpr const char* kVersion2 = "";

// Cost models fitted to a problem's trials: derived, like winners. Version 5 drops them.
constexpr const char* kVersion3 = R"sql(
CREATE TABLE cost_models(
  device_model_id INTEGER NOT NULL REFERENCES device_models(id),
  problem_id INTEGER NOT NULL REFERENCES problems(id),
  policy TEXT NOT NULL CHECK(policy IN ('cold', 'warm')),
  json TEXT NOT NULL CHECK(json <> ''),
  fitted TEXT NOT NULL,
  PRIMARY KEY(device_model_id, problem_id, policy)
) STRICT, WITHOUT ROWID;
)sql";

// Digests for what is derived or stands alone, as trials have them, and what wrote a session: versions order software
// where clocks cannot be trusted. Sessions of before have zeros.
constexpr const char* kVersion4 = R"sql(
ALTER TABLE sessions ADD COLUMN library_version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN schema_version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE winners ADD COLUMN digest BLOB NOT NULL DEFAULT x'';
ALTER TABLE read_limits ADD COLUMN digest BLOB NOT NULL DEFAULT x'';
ALTER TABLE cost_models ADD COLUMN digest BLOB NOT NULL DEFAULT x'';
)sql";

// Look-ups take the default costs, corrected by winners, and need no fitted ones.
constexpr const char* kVersion5 = "DROP TABLE cost_models;";

// Of the kernel that a trial launched. Trials of before have none: of them only the library's is known.
constexpr const char* kVersion6 = "ALTER TABLE trials ADD COLUMN kernel_revision TEXT NOT NULL DEFAULT '';";

constexpr const char* kMigrations[] = {kVersion1, kVersion2, kVersion3, kVersion4, kVersion5, kVersion6};

void finish_migration(SQLite::Database& database, int from) {
  constexpr int kFirstWithDigests = 4;
  if (from >= kFirstWithDigests) return;
  sign_winners(database);
  sign_read_limits(database);
}

constexpr Schema kSchema{.file_name = "tuning.db",
                         .application_id = kTuningApplicationId,
                         .migrations = kMigrations,
                         .finish_migration = finish_migration,
                         .longest_value = 16 << 20,
                         .precious = true};

}  // namespace

const Schema& tuning_schema() { return kSchema; }

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
