// winners.hpp -- winners derived from trials, and read back. Internal to cache/. Throws SQLite::Exception; the
// caller owns transactions. One thread per database.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/tuning/tuning_db.hpp"

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

/// Gives every winner the digest of what it says.
void sign_winners(SQLite::Database& database);

/// The winners of a device model, or of one problem on it, in the order of problem, shape and policy. Left out, and
/// counted in `damaged`, are those that fail their digest, or whose trial fails its own, is not `ok`, is of another
/// device model, problem, shape or policy, or holds values that add_trial refuses.
std::vector<Winner> read_winners(SQLite::Database& database, const DeviceModel& device,
                                 std::optional<std::string_view> problem, const Software& now, int& damaged);

/// Time to read `bytes`: measured, or linear between the neighbours; 0 outside of what was measured.
double interpolate_read_limit(const std::vector<std::pair<std::int64_t, double>>& limits, std::int64_t bytes);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
