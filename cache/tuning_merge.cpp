#include "cache/tuning_merge.hpp"

#include <sqlite3.h>

#include <limits>

#include "cache/tuning_rows.hpp"
#include "cache/tuning_winners.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

/// Failures to read the source must not be mistaken for failures to write the destination, which always end the merge.
bool next_row(SQLite::Statement& statement, bool salvage, bool& failed) {
  const int result = statement.tryExecuteStep();
  if (result == SQLITE_ROW) return true;
  if (result != SQLITE_DONE) {
    if (!salvage)
      throw SQLite::Exception("cannot read the database to merge: " + std::string(sqlite3_errstr(result)), result);
    failed = true;
  }
  return false;
}

/// Sessions with trials come with their trials, whose digests vouch for them.
void merge_empty_sessions(SQLite::Database& source, RowWriter& writer) {
  SQLite::Statement statement(source,
                              std::string("SELECT ") + kSessionColumns +
                                  " FROM sessions s JOIN device_models d ON d.id = s.device_model_id"
                                  " JOIN environments e ON e.id = s.environment_id"
                                  " WHERE NOT EXISTS(SELECT 1 FROM trials t WHERE t.session_id = s.id) ORDER BY s.id");
  while (statement.executeStep()) writer.session(read_session(statement, 0));
}

/// Reads on behind an unreadable row: by one id, then by twice as many each time until something can be read again.
void merge_trials(SQLite::Database& source, RowWriter& writer, bool salvage, MergeCounts& counts) {
  SQLite::Statement statement(source, std::string("SELECT t.id, t.digest, ") + kSessionColumns + ", " + kTrialColumns +
                                          kTrialJoin + "WHERE t.id > ?1 ORDER BY t.id");
  std::int64_t last = 0, step = 1;
  bool failed = true;
  while (failed) {
    failed = false;
    statement.tryReset();
    statement.bind(1, last);
    while (next_row(statement, salvage, failed)) {
      last = statement.getColumn(0).getInt64();
      step = 1;
      const SessionRow session = read_session(statement, 2);
      const Trial trial = read_trial(statement, 2 + kSessionColumnCount);
      const Digest digest = read_digest(statement, 1);
      const bool intact = digest == trial_digest(session, trial) && (trial.policy == "cold" || trial.policy == "warm");
      const auto session_id = intact ? writer.session(session) : std::nullopt;
      if (!session_id) {
        ++counts.damaged;
      } else if (writer.trial(*session_id, trial, digest) == RowWriter::Outcome::added) {
        ++counts.added;
      }
    }
    if (last > std::numeric_limits<std::int64_t>::max() - step || step > (std::int64_t{1} << 40)) break;
    last += step;
    step *= 2;
  }
}

/// The later measurement of two counts; of two at the same time, the smaller.
void merge_read_limits(SQLite::Database& source, SQLite::Database& destination, RowWriter& writer, bool salvage) {
  SQLite::Statement statement(
      source,
      "SELECT d.name, d.arch, d.sm_count, d.l2_bytes, d.memory_bytes, d.mig_profile, r.policy, r.bytes, r.us, "
      "r.measured"
      " FROM read_limits r JOIN device_models d ON d.id = r.device_model_id ORDER BY d.id, r.policy, r.bytes");
  SQLite::Statement write(
      destination,
      "INSERT INTO read_limits(device_model_id, policy, bytes, us, measured) VALUES(?1, ?2, ?3, ?4, ?5)"
      " ON CONFLICT DO UPDATE SET us = excluded.us, measured = excluded.measured"
      " WHERE excluded.measured > measured OR (excluded.measured = measured AND excluded.us < us)");
  bool failed = false;
  while (next_row(statement, salvage, failed)) {
    const std::string policy = statement.getColumn(6).getString();
    const std::int64_t bytes = statement.getColumn(7).getInt64();
    const double us = statement.getColumn(8).getDouble();
    if ((policy != "cold" && policy != "warm") || bytes <= 0 || !(us > 0)) continue;
    write.tryReset();
    write.bind(1, writer.device(read_device(statement, 0)));
    write.bind(2, policy);
    write.bind(3, bytes);
    write.bind(4, us);
    write.bind(5, statement.getColumn(9).getString());
    write.exec();
  }
}

/// Preparing a statement reads the schema, which may be what is damaged.
template <class Part>
void attempt(bool salvage, Part&& part) {
  try {
    part();
  } catch (const SQLite::Exception& exception) {
    const int code = exception.getErrorCode() & 0xff;
    if (!salvage || (code != SQLITE_CORRUPT && code != SQLITE_NOTADB && code != SQLITE_ERROR)) throw;
  }
}

}  // namespace

MergeCounts merge(SQLite::Database& source, SQLite::Database& destination, bool salvage) {
  MergeCounts counts;
  {
    RowWriter writer(destination);
    attempt(salvage, [&] { merge_trials(source, writer, salvage, counts); });
    if (!salvage) merge_empty_sessions(source, writer);
    attempt(salvage, [&] { merge_read_limits(source, destination, writer, salvage); });
  }
  rebuild_all_winners(destination);
  // Fitted to fewer trials than there are now; whoever knows kernels fits them anew.
  if (counts.added > 0) destination.exec("DELETE FROM cost_models");
  return counts;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
