// answer.hpp -- the answer to a shape: what the database says once a search has ended, or where there was none. One
// thread, the session's.
#pragma once

#include <string>
#include <string_view>

#include "cache/tuning/tuning_db.hpp"
#include "tuner/search/tune_request.hpp"
#include "tuner/search/tune_summary.hpp"

namespace leanattn {
inline namespace v1 {

/// The stored winner of a shape that was not searched, or the default; not finished in either case.
TunedShape known_answer(const TuneRequest& request, const DeviceFacts& device, const Shape& shape, TuningDb& db);

/// Which shape has no winner of this session, what stays, why, and what helps: a line for people. shape.no_winner is
/// not empty.
std::string no_winner_text(const TunedShape& shape);

/// Which shape's winner is meant, as the database has it.
struct WinnerKey {
  const DeviceModel& device_model;
  std::string_view problem, shape, policy;
};

/// Derives the shape's winner from all trials, this search's and earlier ones', since a look-up will use what the
/// database says: puts it into `tuned`, where there is one. Errors: of the database.
Result<TunedShape> stored_answer(TuningDb& db, const WinnerKey& key, TunedShape tuned);

}  // namespace v1
}  // namespace leanattn
