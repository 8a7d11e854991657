// timed_round.hpp -- time_round: a round of a Race on a GPU. One thread at a time, with the owning context current.
#pragma once

#include <span>
#include <string>

#include "tuner/measure/graph_timer.hpp"
#include "tuner/measure/race.hpp"

namespace leanattn {
inline namespace v1 {

/// A replay of each graph, in order, and of the sentinel before and after them. The clock and reasons for a slow one
/// are those of the GPU with this UUID. neighbours and stays_in_l2 are left to the caller. Errors: launch_failed,
/// context_lost.
Result<RoundTimes> time_round(GraphTimer& timer, const TimedGraph& sentinel, std::span<const TimedGraph* const> graphs,
                              const Stream& stream, const std::string& uuid);

}  // namespace v1
}  // namespace leanattn
