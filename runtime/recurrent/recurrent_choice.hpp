// recurrent_choice.hpp -- which tunables a step of operation `recurrent` is launched with. Pure functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "generator/recurrent/recurrent_spec.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/lookup/winner_table.hpp"

namespace leanattn {
inline namespace v1 {

/// The search space, what is expected to be fastest for steps of about `batch` requests first: CTAs are small enough to
/// fill the SMs of the GPU evenly, and beyond that tunables are near `like` or, where it is null, the usual ones.
/// `problem` is valid.
std::vector<RecurrentTunables> ranked_tunables(const DeviceFacts& device, const RecurrentProblem& problem, int batch,
                                               const RecurrentTunables* like = nullptr);

/// The spec with the first of these, or with default tunables where the problem has no kernel.
RecurrentSpec default_spec(const DeviceFacts& device, const RecurrentProblem& problem, int batch,
                           const RecurrentTunables* like = nullptr);

/// What a look-up answers, and on what that rests.
struct RecurrentChoice {
  RecurrentSpec spec;
  Provenance provenance = Provenance::fallback;  ///< exact, nearest or fallback
  std::optional<RecurrentWinner> winner = {};    ///< nullopt: nothing was tuned near
};

/// What to launch for steps of about `batch` requests, in order, where kernels do not compile or load. None twice.
///   1. exact: the winner of this batch. Then the next best that was measured for it.
///   2. nearest: the first of ranked_tunables() like the winner of the nearest batch, which is the one with the least
///      quotient of both batches, at most 2; of two, the larger.
///   3. fallback: default_spec().
/// Winners that were measured with a cold L2 go before warm ones of the same batch. `winners` are those of the problem.
std::vector<RecurrentChoice> recurrent_launch_order(const DeviceFacts& device, const RecurrentProblem& problem,
                                                    int batch, std::span<const RecurrentWinner> winners);

}  // namespace v1
}  // namespace leanattn
