// recurrent_winners.hpp -- RecurrentWinner: what was tuned for steps of operation `recurrent`. Plain data; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/layers.hpp"
#include "generator/recurrent/recurrent_spec.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// The winner of a problem for one batch.
struct RecurrentWinner {
  RecurrentSpec spec;
  std::optional<RecurrentSpec> next;  ///< the fastest other one that was measured for the batch
  int batch = 1;
  L2Policy policy = L2Policy::cold;
  double us = 0;       ///< its median
  std::string layer;   ///< "user", "site" or "shipped"
  bool stale = false;  ///< it was measured with another driver or NVRTC than run now
};

/// Those among these rows of a problem, in their order. Left out are winners whose kernel has changed since, because
/// tunables follow from a rule that goes with the kernels; and, counted in `skipped`, rows that are not of the problem,
/// or have no kernel on this device.
std::vector<RecurrentWinner> recurrent_winners(const DeviceFacts& device, const RecurrentProblem& problem,
                                               std::span<const LayeredWinners::Entry> rows, std::size_t& skipped);

}  // namespace v1
}  // namespace leanattn
