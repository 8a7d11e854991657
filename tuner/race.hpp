// race.hpp -- Race: which of several candidates is fastest, from interleaved rounds; losers drop out as soon as their
// interval says so. Knows no GPU: the caller takes the samples. One thread at a time.
//
// A round is one sample of every candidate still in the race, taken back to back; the order rotates so that no
// candidate always runs first or after the same neighbour. Candidates are compared within rounds only (paired ratios):
// what slows a whole round cancels. A round that was throttled, or whose sentinel (a fixed kernel timed before and
// after) moved, does not count.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tuner/statistics.hpp"

namespace leanattn {
inline namespace v1 {

/// One sample of each candidate asked for, and what happened around it. Microseconds a launch.
struct RoundTimes {
  std::vector<double> us = {};  ///< in the order asked for
  double sentinel_us = 0;       ///< mean of before and after
  double sentinel_drift = 0;    ///< |after / before - 1|
  std::string throttle = {};    ///< reasons for slow clocks seen right after the round; empty when none
  int sm_clock_mhz = 0;         ///< right after the round; 0: unknown
  std::string neighbours = {};  ///< who else was on the GPU when the shape began; empty when nobody
};

/// Rounds with a larger sentinel_drift do not count.
inline constexpr double kMostDrift = 0.05;
/// Counted rounds whose SM clock was below this share of the highest make noise(): paired ratios cancel it, absolute
/// times do not.
inline constexpr double kSteadyClock = 0.9;
/// Larger relative differences are never a tie, however wide the interval.
inline constexpr double kWidestTie = 0.01;

class Race {
 public:
  explicit Race(std::size_t candidates);

  /// Candidates still in, in the order to sample them next.
  std::vector<std::size_t> order() const;
  /// Takes the samples of a round, `order` as it was given out. False when the round does not count. Of a GPU that is
  /// never quiet, every third round counts all the same; noise() then says why.
  bool add(std::span<const std::size_t> order, const RoundTimes& times);

  /// Drops candidates that are slower than the leader beyond doubt (paired 95 % interval above 1 + tolerance).
  void drop_slower(double tolerance);
  /// Drops one that cannot be sampled any more.
  void drop(std::size_t candidate) { alive_[candidate] = false; }
  /// Drops all but the `most` lowest medians.
  void keep_best(std::size_t most);

  std::size_t alive() const;
  bool is_alive(std::size_t candidate) const { return alive_[candidate]; }
  int rounds() const { return rounds_; }  ///< that counted
  int discarded() const { return discarded_; }
  /// Why the samples should be doubted: rounds that counted although they should not have, other processes on the GPU
  /// (those may well be idle, so their rounds count).
  std::string noise() const;
  /// Samples of a candidate, one per counted round until it dropped out.
  std::span<const double> samples(std::size_t candidate) const { return samples_[candidate]; }
  /// Lowest median among those still in; the first of equals. At least one round must have counted.
  std::size_t leader() const;
  /// a over b, from the rounds that both took part in.
  PairedRatio ratio(std::size_t a, std::size_t b) const;
  /// Those still in that cannot be told from the leader: the paired ratio is within `tolerance` of 1, or its interval
  /// reaches 1 and it is within kWidestTie.
  std::vector<std::size_t> tied_with_leader(double tolerance) const;

 private:
  std::vector<std::vector<double>> samples_;
  std::vector<bool> alive_;
  int rounds_ = 0, discarded_ = 0, discarded_in_a_row_ = 0;
  int lowest_clock_mhz_ = 0, highest_clock_mhz_ = 0;  ///< of counted rounds; 0: unknown
  std::string noise_, neighbours_;
};

}  // namespace v1
}  // namespace leanattn
