// recurrent_race.hpp -- the race among the kernels of a step of operation `recurrent`, and its end. One thread, the
// session's. Internal to tuner/search; tuner/measure/race.hpp has the rules.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tuner/measure/graph_timer.hpp"
#include "tuner/search/recurrent_session.hpp"

namespace leanattn {
inline namespace v1 {

/// A kernel, and its launches.
struct RecurrentEntrant {
  const RecurrentKernel* kernel;
  TimedGraph graph;
};

/// One size of a step: what it is measured with, and what came of it so far.
struct RecurrentStep {
  const CopyGraph& copy;
  std::string neighbours;
  std::vector<RecurrentSpec> stay;  ///< are confirmed however slow they were in the race: what look-ups may answer
  TunedRecurrentStep& result;
  GraphTimer timer = {};

  bool stays(const RecurrentSpec& spec) const { return std::find(stay.begin(), stay.end(), spec) != stay.end(); }
};

/// Races all entrants, confirms those that are left on samples of their own, and keeps a trial of each and of the copy.
/// Where the caller cancels, what some rounds have decided is kept. Errors: launch_failed, context_lost.
Result<void> find_fastest(const RecurrentSession& session, RecurrentStep& step,
                          const std::vector<RecurrentEntrant>& entrants);

}  // namespace v1
}  // namespace leanattn
