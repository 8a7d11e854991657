// candidate.hpp -- Candidate and TimedCandidates: what the phases of a shape's search pass on to each other. Plain
// data; any thread. Internal to tuner/search.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/problem.hpp"
#include "tuner/backend/backend.hpp"

namespace leanattn {
inline namespace v1 {

/// A configuration that is, or may be, measured.
struct Candidate {
  Config config;
  CompiledSpec compiled = {};
  double us = 0;           ///< its time in the screen, as if the sentinel had taken exactly the read limit
  bool known = false;      ///< its time is an earlier session's
  std::string tried = {};  ///< when it was first timed, as Trial::created; empty: its trial begins when it is recorded
};

/// The candidates that were timed and not dropped. Distinct configurations.
class TimedCandidates {
 public:
  void add(Candidate candidate);

  /// The time of the fastest one; 0 when there are none.
  double best_us() const { return best_us_; }
  bool empty() const { return list_.empty(); }
  /// Whether one of them was timed in this session.
  bool anything_new() const;
  /// The one with this configuration, or null.
  const Candidate* find(const Config& config) const;
  /// In the order in which they were added.
  const std::vector<Candidate>& in_order() const { return list_; }
  std::vector<Candidate> fastest_first() const;
  /// The kernels and the grids of the fastest ones, `count` at most, without repetition.
  std::vector<KernelSpec> best_specs(std::size_t count) const;
  std::vector<std::int64_t> best_grids(std::size_t count) const;

 private:
  std::vector<Candidate> list_;
  double best_us_ = 0;
};

}  // namespace v1
}  // namespace leanattn
