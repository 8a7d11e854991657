// looked_up.hpp -- what look-ups answer before a search, which then takes part in it to the end: a winner that was not
// compared with it could be slower. One thread, the session's. Internal to tuner/search.
#pragma once

#include <string>
#include <vector>

#include "runtime/cuda/device.hpp"
#include "tuner/search/measurer.hpp"
#include "tuner/search/tune_request.hpp"

namespace leanattn {
inline namespace v1 {

struct LookedUp {
  /// For each shape of the request what an engine tries to launch, in its order, as launches of the problem's kind.
  std::vector<std::vector<Config>> configs = {};
  std::vector<std::string> warnings = {};  ///< of winners that could not be read
};

/// What look-ups answer. `environment` is what runs now. Errors: database_busy (another process kept some of the
/// winners locked, so that the answers are not known), others of the database.
Result<LookedUp> looked_up_configs(const TuneRequest& request, const DeviceFacts& device, const DeviceModel& model,
                                   const Environment& environment, TuningDb& db);

/// Asks the compiler first of all for what the shape's look-up answers, waits for it until the shape's time is over,
/// and times it: adds it to `timed`, and sets context.looked_up and the moment when the search starts. Where it cannot
/// run here, what an engine launches next follows. False when time or the caller ended this before one of them was
/// timed; true without one when none of them can run. Errors: those of the backend that end a session.
Result<bool> try_looked_up(ShapeContext& context, const CostModel& model, Measurer& measurer, TimedCandidates& timed);

}  // namespace v1
}  // namespace leanattn
