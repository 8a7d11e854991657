// won_problems.hpp -- WonProblems: which problems have winners, and those winners, read when a look-up first needs
// them. Internal to the look-up (WinnerTable). Any thread: a lock is taken to read, none for what has been read.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/problem_winners.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

class WonProblems {
 public:
  /// Parses the problems' texts, not their winners. What cannot be parsed is skipped; its winners are counted.
  WonProblems(const DeviceFacts& device, WinnersByProblem source);

  /// The winners of this very problem (canonical); null where it has none. As long as this object.
  const ProblemWinners* find(const DecodeProblem& problem) const;
  /// Those of all the problems that are `wanted`, in the order of the source.
  std::vector<const ProblemWinners*> find_all(const std::function<bool(const DecodeProblem&)>& wanted) const;

  /// Of the winners that have been read.
  std::size_t size() const { return size_.load(std::memory_order_relaxed); }
  std::size_t skipped() const { return skipped_.load(std::memory_order_relaxed); }
  /// Of the source, and of what has been read from it; each once.
  std::vector<std::string> warnings() const;

 private:
  struct Problem {
    DecodeProblem problem;
    std::vector<std::string> texts;  ///< one, unless another version writes this problem otherwise
    std::unique_ptr<const ProblemWinners> owned = {};
    std::atomic<const ProblemWinners*> winners = nullptr;  ///< owned, once it has been read
  };
  struct Hash {
    std::size_t operator()(const LookupKey& key) const noexcept { return hash(key); }
  };

  void read(const std::vector<Problem*>& problems) const;
  void warn(std::vector<std::string> more) const;

  DeviceFacts device_;
  mutable std::deque<Problem> problems_;
  std::unordered_map<LookupKey, Problem*, Hash> by_key_;
  mutable std::atomic<std::size_t> size_ = 0, skipped_ = 0;
  mutable std::mutex mutex_;  ///< what follows, and Problem::owned
  WinnersByProblem source_;
  mutable std::vector<std::string> warnings_;
};

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
