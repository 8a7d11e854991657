// race.hpp -- Race: finds out from interleaved rounds which of several candidates is fastest. Losers drop out as soon
// as their interval says so. It knows no GPU: the caller takes the samples. One thread at a time.
//
// A round is one sample of every candidate that is still in the race, taken back to back. The order rotates, so that no
// candidate always runs first or after the same neighbour. Candidates are compared within rounds only (paired ratios):
// what slows a whole round cancels. A round does not count if it was throttled, or if its sentinel (a kernel that is
// timed before and after it) changed its time.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tuner/measure/statistics.hpp"

namespace leanattn {
inline namespace v1 {

/// One sample of each candidate of a round, in microseconds a launch, and what happened around it.
struct RoundTimes {
  std::vector<double> us = {};  ///< in the order in which they were asked for
  double sentinel_us = 0;       ///< the mean of before and after
  double sentinel_drift = 0;    ///< |after / before - 1|
  std::string throttle = {};    ///< reasons for slow clocks right after the round; empty when there are none
  int sm_clock_mhz = 0;         ///< right after the round; 0: unknown
  std::string neighbours = {};  ///< other processes on the GPU when the shape began; empty when there were none
  bool stays_in_l2 = false;     ///< what is read does, although it should come from memory (Rotation)
};

/// Rounds with a larger sentinel_drift do not count.
inline constexpr double kMostDrift = 0.05;
/// noise() mentions the SM clock when a counted round had less than this share of the highest one: paired ratios cancel
/// a slower clock, but absolute times do not.
inline constexpr double kSteadyClock = 0.9;
/// A larger relative difference is never a tie, however wide its interval is.
inline constexpr double kWidestTie = 0.01;

class Race {
 public:
  explicit Race(std::size_t candidates);

  /// The candidates that are still in the race, in the order in which to sample them next.
  std::vector<std::size_t> order() const;
  /// Takes the samples of a round; `order` is as order() gave it. False when the round does not count. If a GPU is
  /// never quiet, every third round counts all the same, and noise() says why.
  bool add(std::span<const std::size_t> order, const RoundTimes& times);

  /// Drops candidates that are slower than the leader beyond doubt (paired 95 % interval above 1 + tolerance).
  void drop_slower(double tolerance);
  /// Drops a candidate that cannot be sampled any more.
  void drop(std::size_t candidate) { alive_[candidate] = false; }
  /// Drops all but the `most` candidates with the lowest medians.
  void keep_best(std::size_t most);

  std::size_t alive() const;
  bool is_alive(std::size_t candidate) const { return alive_[candidate]; }
  int rounds() const { return rounds_; }  ///< rounds that counted
  int discarded() const { return discarded_; }
  /// Why the samples should be doubted: rounds that counted although they were not quiet, a clock that changed, other
  /// processes on the GPU (which may be idle, so that rounds beside them count), and data that stays in L2.
  std::string noise() const;
  /// The samples of a candidate: one for each counted round until it dropped out.
  std::span<const double> samples(std::size_t candidate) const { return samples_[candidate]; }
  /// The candidate with the lowest median among those that are still in, and the first among equals. At least one round
  /// must have counted.
  std::size_t leader() const;
  /// How much longer a takes than b, from the rounds in which both took part.
  PairedRatio ratio(std::size_t a, std::size_t b) const;
  /// The candidates still in that cannot be told from the leader: their paired ratio is within `tolerance` of 1, or its
  /// interval reaches 1 and it is within kWidestTie.
  std::vector<std::size_t> tied_with_leader(double tolerance) const;

 private:
  std::vector<std::vector<double>> samples_;
  std::vector<bool> alive_;
  int rounds_ = 0, discarded_ = 0, discarded_in_a_row_ = 0;
  int lowest_clock_mhz_ = 0, highest_clock_mhz_ = 0;  ///< in counted rounds; 0: unknown
  std::string noise_, neighbours_;
  bool stays_in_l2_ = false;
};

}  // namespace v1
}  // namespace leanattn
