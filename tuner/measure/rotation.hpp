// rotation.hpp -- Rotation: how many copies of K and V the launches of a graph take in turn, so that none of them finds
// its own in the L2 cache. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// Where query tokens select what they see, one of so many blocks of a context is selected in measurements.
inline constexpr int kMeasuredSpread = 4;

/// Bytes of K and V of requests of these lengths: what one launch reads, which a window makes less, and what the tokens
/// of one copy take, in which every request has room for the longest. Both are at least 1. With a selection the lengths
/// count what is selected, and a copy holds kMeasuredSpread times as much.
struct KvFootprint {
  std::int64_t read = 1, allocated = 1;
};
KvFootprint kv_footprint(const DecodeProblem& problem, std::span<const int> context_lengths);

/// The copies lie one after the other. The launches of a graph are a multiple of the copies.
struct Rotation {
  int copies = 1;
  int launches = 1;
  bool stays_in_l2 = false;  ///< cold times are asked for, but the copies are too few for them
};

/// What the copies take together, over the L2.
inline constexpr std::int64_t kColdFactor = 3;

/// Cold: copies x kv_bytes, those that a launch reads, is at least cold_factor times the L2. Twice would do if the L2
/// evicted the oldest line, which GPUs do not promise. There are at most 2048 copies, and they take at most
/// memory_bytes; where that makes them less than twice the L2, they stay in it. Warm: there is one copy. A graph lasts
/// about kGraphMicroseconds if a launch takes launch_us, an estimate.
Rotation rotation_for(std::int64_t kv_bytes, std::int64_t l2_bytes, std::int64_t memory_bytes, double launch_us,
                      bool cold, std::int64_t cold_factor = kColdFactor);

inline constexpr double kGraphMicroseconds = 300;

}  // namespace v1
}  // namespace leanattn
