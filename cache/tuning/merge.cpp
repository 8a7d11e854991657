#include "cache/tuning/merge.hpp"

#include <sqlite3.h>

#include <limits>
#include <string>
#include <string_view>
#include <tuple>

#include "cache/digest.hpp"
#include "cache/sqlite/errors.hpp"
#include "cache/sqlite/identity.hpp"
#include "cache/tuning/rows.hpp"
#include "cache/tuning/winners.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

bool may_skip(int result, Unreadable unreadable) {
  return unreadable == Unreadable::skip_anything || (unreadable == Unreadable::skip_damage && proves_damage(result));
}

/// Failures to read the source must not be mistaken for failures to write the destination, which always end the merge.
bool next_row(SQLite::Statement& statement, Unreadable unreadable, bool& failed) {
  const int result = statement.tryExecuteStep();
  if (result == SQLITE_ROW) return true;
  if (result != SQLITE_DONE) {
    if (!may_skip(result, unreadable))
      throw SQLite::Exception("cannot read the database to merge: " + std::string(sqlite3_errstr(result)), result);
    failed = true;
  }
  return false;
}

/// A damaged file of an earlier version, which is not migrated first, lacks some columns.
struct SourceColumns {
  std::string session = kSessionColumns;
  std::string trial = kTrialColumns;
  std::string limit_digest = "r.digest";
  bool has_digests = true;
};

SourceColumns columns_of(SQLite::Database& source) {
  const auto has = [&](const std::string& table, const std::string& column) {
    const std::string sql = "SELECT count(*) FROM pragma_table_info('" + table + "') WHERE name = '" + column + "'";
    return ask_number(source, sql.c_str()) > 0;
  };
  const auto replace = [](std::string& columns, std::string_view missing, const char* by) {
    columns.replace(columns.find(missing), missing.size(), by);
  };
  SourceColumns columns;
  if (!has("sessions", "library_version")) {  // before version 4
    replace(columns.session, "s.library_version, s.schema_version", "0, 0");
    columns.limit_digest = "NULL";
    columns.has_digests = false;
  }
  if (!has("trials", "kernel_revision")) replace(columns.trial, "t.kernel_revision", "''");
  return columns;
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
void merge_trials(SQLite::Database& source, RowWriter& writer, Unreadable unreadable, MergeCounts& counts) {
  const SourceColumns columns = columns_of(source);
  SQLite::Statement statement(source, "SELECT t.id, t.digest, " + columns.session + ", " + columns.trial + kTrialJoin +
                                          "WHERE t.id > ?1 ORDER BY t.id");
  std::int64_t last = 0, step = 1;
  bool failed = true;
  while (failed) {
    failed = false;
    statement.tryReset();
    statement.bind(1, last);
    while (next_row(statement, unreadable, failed)) {
      last = statement.getColumn(0).getInt64();
      step = 1;
      const SessionRow session = read_session(statement, 2);
      const Trial trial = read_trial(statement, 2 + kSessionColumnCount);
      const Digest digest = read_digest(statement, 1);
      const bool intact = digest == trial_digest(session, trial) && check_trial(trial).has_value();
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

/// The later measurement of two counts; of two at the same time, the smaller. A time that is not credible is the
/// earliest.
void merge_read_limits(SQLite::Database& source, SQLite::Database& destination, Unreadable unreadable,
                       MergeCounts& counts) {
  const SourceColumns columns = columns_of(source);
  SQLite::Statement statement(source, std::string("SELECT ") + kDeviceColumns +
                                          ", r.policy, r.bytes, r.us, r.measured, " + columns.limit_digest +
                                          " FROM read_limits r JOIN device_models d ON d.id = r.device_model_id"
                                          " ORDER BY d.id, r.policy, r.bytes");
  SQLite::Statement known(destination,
                          "SELECT r.us, r.measured FROM read_limits r WHERE r.device_model_id = ?1 AND r.policy = ?2"
                          " AND r.bytes = ?3");
  const std::string latest_credible = latest_credible_timestamp();
  const auto moment = [&](const std::string& text) { return text <= latest_credible ? text : std::string(); };
  bool failed = false;
  while (next_row(statement, unreadable, failed)) {
    const DeviceModel device = read_device(statement, 0);
    const std::string policy = statement.getColumn(6).getString();
    const std::int64_t bytes = statement.getColumn(7).getInt64();
    const double us = statement.getColumn(8).getDouble();
    const std::string measured = statement.getColumn(9).getString();
    const bool sound =
        check_read_limit(policy, bytes, us) &&
        (!columns.has_digests || read_digest(statement, 10) == read_limit_digest(device, policy, bytes, us, measured));
    if (!sound) {
      ++counts.damaged_limits;
      continue;
    }
    known.tryReset();
    known.bind(1, RowWriter(destination).device(device));
    known.bind(2, policy);
    known.bind(3, bytes);
    if (known.executeStep()) {
      const double known_us = known.getColumn(0).getDouble();
      const std::string known_moment = moment(known.getColumn(1).getString());
      if (std::tuple(moment(measured), -us) <= std::tuple(known_moment, -known_us)) continue;
    }
    known.tryReset();
    write_read_limit(destination, device, policy, bytes, us, measured);
  }
}

/// Preparing a statement reads the schema, which may be what is damaged: then tables or columns are missing.
template <class Part>
void attempt(Unreadable unreadable, Part&& part) {
  try {
    part();
  } catch (const SQLite::Exception& exception) {
    const int code = exception.getErrorCode();
    const bool no_such_table = unreadable != Unreadable::is_an_error && (code & 0xff) == SQLITE_ERROR;
    if (!no_such_table && !may_skip(code, unreadable)) throw;
  }
}

}  // namespace

MergeCounts merge(SQLite::Database& source, SQLite::Database& destination, Unreadable unreadable) {
  MergeCounts counts;
  {
    RowWriter writer(destination);
    attempt(unreadable, [&] { merge_trials(source, writer, unreadable, counts); });
    if (unreadable == Unreadable::is_an_error) merge_empty_sessions(source, writer);
    attempt(unreadable, [&] { merge_read_limits(source, destination, unreadable, counts); });
  }
  rebuild_all_winners(destination);
  return counts;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
