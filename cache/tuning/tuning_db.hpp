// tuning_db.hpp -- tuning.db: device models, environments, problems, configs, sessions, trials, winners. Knows no
// kernel: problems, shapes and configs are opaque canonical JSON. One TuningDb is used from one thread at a time;
// several processes and several TuningDbs may share a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// A GPU model as tuning sees it: equal rows share winners.
struct DeviceModel {
  std::string name;  ///< "NVIDIA H200"
  std::string arch;  ///< "sm_90a"
  int sm_count = 0;  ///< visible SMs
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  std::string mig_profile;  ///< empty without MIG
  bool operator==(const DeviceModel&) const = default;
};

/// What a measurement was taken under.
struct Environment {
  int driver_version = 0;           ///< 13000
  std::string driver_release = {};  ///< "580.159.04"
  std::string nvrtc_version = {};   ///< "13.0"
  int clock_khz = 0;
  int memory_clock_khz = 0;
  int power_limit_mw = 0;  ///< 0: unknown
  bool ecc = false;
  std::string library_revision = {};  ///< generator_revision()
  bool operator==(const Environment&) const = default;
};

/// Whether times measured under both were measured alike, so that they may be compared: the same driver, NVRTC and
/// library revision. What one of them does not know (0, an empty text) counts as the same.
bool same_software(const Environment& a, const Environment& b);

enum class TrialStatus { ok, compile_fail, launch_fail, incorrect, timeout, pruned };
std::string_view to_string(TrialStatus status);

/// One candidate, tried once. Times in microseconds.
struct Trial {
  std::string uuid;     ///< empty on insert: one is made
  std::string problem;  ///< canonical JSON
  std::string shape;    ///< canonical JSON
  std::string policy;   ///< "cold" or "warm" L2: part of the winner key
  std::string config;   ///< canonical JSON, self-describing
  TrialStatus status = TrialStatus::ok;
  std::string reason;  ///< for anything but ok
  int samples = 0;
  double median_us = 0;
  double mad_us = 0;
  double low_us = 0;  ///< bootstrap confidence interval of the median, 95 %
  double high_us = 0;
  std::string samples_json;  ///< raw samples, JSON array; may be empty
  std::string throttle;      ///< throttle reasons seen, empty when none
  int registers = 0;
  double compile_ms = 0;
  std::string kernel_revision;   ///< kernel_revision() of the configuration's kernel; empty: not known
  std::string created;           ///< ISO 8601 UTC; empty on insert: now
  std::int64_t bytes = 0;        ///< bytes of K and V the step must read, for the read limit; 0: unknown
  Environment environment = {};  ///< the session's; filled by trials(), ignored on insert
};

/// The best trial per (device model, problem, shape, policy): derived, rebuilt from trials at any time.
struct Winner {
  std::string problem, shape, policy, config;
  std::string trial_uuid = {};
  double median_us = 0, low_us = 0, high_us = 0;
  /// The fastest other configuration that was measured for the same key, whatever the software, and never incorrect;
  /// empty: there is none. It is what runs where the winner does not.
  std::string next_config = {};
  double next_us = 0;        ///< its median
  double read_limit_us = 0;  ///< measured pure-read time of the trial's bytes, interpolated; 0: unknown
  /// Measured with another driver, NVRTC or kernel than runs now: same_software() for the Software that the reader
  /// gave.
  bool stale = false;
  Environment environment = {};      ///< what it was measured under
  std::string kernel_revision = {};  ///< of the kernel that was measured; empty: not known
  int library_version = 0;           ///< of the library that measured it (0.2.1 is 2001); 0: not known
};

/// What runs now, as far as it decides whether a winner is stale.
struct Software {
  /// Driver, NVRTC and library revision; nullopt: as in the newest session of the device model.
  std::optional<Environment> environment = {};
  /// The present revision of the kernel of a configuration, which is given as its text; empty where the library has no
  /// such kernel. Null: not known. Quick, because it is asked for every winner that is read.
  std::function<std::string(const std::string& config)> kernel_revision = {};
};

/// Whether a winner's kernel is as it was when it was measured: of the same revision or, where that of the winner is
/// not known, of a library of the same revision. What cannot be told counts as the same.
bool same_kernel(const Winner& winner, const Software& now);
/// Whether a time says what to expect now, so that the winner is not stale: the same driver, NVRTC and kernel.
bool same_software(const Winner& winner, const Software& now);
bool same_software(const Trial& trial, const Software& now);

struct SessionInfo {
  std::string uuid, started, finished, command;
  std::int64_t trials = 0;
};

/// What a database holds of one device model.
struct DeviceStats {
  DeviceModel model;
  std::int64_t sessions = 0, trials = 0, winners = 0;
};

struct DbStats {
  std::int64_t device_models = 0, environments = 0, problems = 0, configs = 0, sessions = 0, trials = 0, winners = 0,
               bytes = 0;
  std::vector<DeviceStats> devices = {};  ///< in the order of device_models()
};

/// Which trials garbage collection may drop: those that are too old, then the oldest until the file is small enough.
struct GarbageLimits {
  std::optional<int> keep_days = {};
  std::optional<std::int64_t> max_bytes = {};
};
struct GarbageCollected {
  std::int64_t trials = 0;  ///< dropped
  std::int64_t bytes = 0;   ///< of the file now: above the limit when what must stay needs more
};

/// What a database is opened for. `maintain` is read_write for who only works on the trials that are there (rebuild,
/// garbage collection): a damaged file of which not one trial can be read is an error and stays as it is, where
/// read_write replaces it by an empty one, with a warning.
enum class OpenMode { read_write, read_only, maintain };

class TuningDb {
 public:
  /// Opens or creates directory/tuning.db, migrating forward. nullopt: in memory. `warning` receives at most one
  /// sentence (a damaged file was moved aside; what could be read of it is in the new one). Errors: database_newer,
  /// database_busy, cache_unavailable, out_of_memory; database_corrupt (read_only, maintain); not_found (read_only).
  static Result<std::unique_ptr<TuningDb>> open(const std::optional<std::filesystem::path>& directory, OpenMode mode,
                                                std::string* warning);

  /// As open for writing, but never fails: where the file cannot be used, the database is one in memory that starts
  /// with what the file says, if it can be read, and finish_session tries to write everything back once more. For
  /// callers whose work must go on without a cache (tune). `warning` says so.
  static std::unique_ptr<TuningDb> open_or_memory(const std::optional<std::filesystem::path>& directory,
                                                  std::string* warning);

  virtual ~TuningDb() = default;

  /// A sentence about something that went wrong since the last call and was survived: the disk filled up or the file
  /// stayed locked (begin_session, add_trial, set_read_limit and the one-key rebuild_winners then carry on in memory),
  /// damaged rows were left out.
  virtual std::optional<std::string> take_warning() = 0;

  /// Why what was written last is not in the file but in memory; nullopt where it is in the file, or there never was
  /// one.
  virtual std::optional<Error> not_kept() = 0;

  /// A tuning session: every trial inserted until finish belongs to it. Returns its uuid.
  virtual Result<std::string> begin_session(const DeviceModel& device, const Environment& environment,
                                            std::string_view command) = 0;
  virtual Result<void> finish_session(std::string_view session) = 0;
  /// Commits one trial in its own transaction. Returns its uuid. Errors: invalid_argument, not_found (no such session).
  virtual Result<std::string> add_trial(std::string_view session, const Trial& trial) = 0;
  /// Remembers the measured pure-read time of `bytes` on this device model; read_limits returns (bytes, us) by growing
  /// bytes.
  virtual Result<void> set_read_limit(const DeviceModel& device, std::string_view policy, std::int64_t bytes,
                                      double us) = 0;
  virtual Result<std::vector<std::pair<std::int64_t, double>>> read_limits(const DeviceModel& device,
                                                                           std::string_view policy) = 0;

  /// Picks the winner of every (device model, problem, shape, policy) from its trials: lowest median among `ok` trials
  /// under the same software as the newest of them, a configuration tried several times counting by its middle trial;
  /// within overlapping intervals (and 2 % of the median) the tie goes to the smaller config text.
  virtual Result<void> rebuild_winners() = 0;
  virtual Result<void> rebuild_winners(const DeviceModel& device, std::string_view problem, std::string_view shape,
                                       std::string_view policy) = 0;

  /// The texts of the problems that have a winner, sorted: a fraction of a millisecond, however many winners there are.
  virtual Result<std::vector<std::string>> won_problems(const DeviceModel& device) = 0;
  /// Of one problem, or of all. `now` decides which of them are stale.
  virtual Result<std::vector<Winner>> winners(const DeviceModel& device,
                                              std::optional<std::string_view> problem = std::nullopt,
                                              const Software& now = {}) = 0;
  virtual Result<std::vector<DeviceModel>> device_models() = 0;
  /// What this device model's sessions were measured under, oldest first, each once.
  virtual Result<std::vector<Environment>> environments(const DeviceModel& device) = 0;
  /// Trials of one (device model, problem, shape, policy), oldest first; empty strings match anything.
  virtual Result<std::vector<Trial>> trials(const DeviceModel& device, std::string_view problem, std::string_view shape,
                                            std::string_view policy) = 0;
  virtual Result<std::vector<SessionInfo>> sessions() = 0;

  virtual Result<DbStats> stats() = 0;
  /// integrity_check, foreign_key_check, application_id; one line per finding, empty when sound.
  virtual Result<std::vector<std::string>> check() = 0;
  /// A consistent copy (VACUUM INTO); refuses to overwrite. Errors: invalid_argument (exists), cache_unavailable.
  virtual Result<void> export_to(const std::filesystem::path& file) = 0;
  /// Union of trials (by uuid) with everything they refer to, then winners recomputed. Returns how many trials were
  /// new. Errors: not_found, database_newer, database_corrupt.
  virtual Result<std::int64_t> import_from(const std::filesystem::path& file) = 0;
  /// Drops trials beyond the limits, then shrinks the file; never those that made a winner what it is (every trial of
  /// the winning and of the fastest configuration). A configuration is as old as its youngest trial.
  virtual Result<GarbageCollected> collect_garbage(const GarbageLimits& limits) = 0;
};

}  // namespace v1
}  // namespace leanattn
