// tuning_winners.hpp -- winners derived from trials, and read back. Internal to cache/. Throws SQLite::Exception; the
// caller owns transactions. One thread per database.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/tuning_db.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Every winner anew.
void rebuild_all_winners(SQLite::Database& database);
/// The winner of one key anew; nothing when the device, problem or shape is unknown.
void rebuild_winner(SQLite::Database& database, const DeviceModel& device, std::string_view problem,
                    std::string_view shape, std::string_view policy);

/// The texts of the problems that have a winner on a device model, sorted. No digest vouches for them: they only name
/// what to read.
std::vector<std::string> read_won_problems(SQLite::Database& database, const DeviceModel& device);

/// The winners of a device model, or of one problem on it, in the order of problem, shape and policy. Those whose
/// trials fail their digest are left out and counted in `damaged`.
std::vector<Winner> read_winners(SQLite::Database& database, const DeviceModel& device,
                                 std::optional<std::string_view> problem, int& damaged);

/// (bytes, us) by growing bytes.
std::vector<std::pair<std::int64_t, double>> read_limits_of(SQLite::Database& database, std::int64_t device_id,
                                                            std::string_view policy);
/// Time to read `bytes`: measured, or linear between the neighbours; 0 outside of what was measured.
double interpolate_read_limit(const std::vector<std::pair<std::int64_t, double>>& limits, std::int64_t bytes);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
