// won_problems.hpp -- WonProblems: which problems have winners, and these winners, read when a look-up first needs
// them. Internal to this folder. Thread-safe: a lock is taken only while winners are read from the databases.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/lookup/problem_winners.hpp"
#include "runtime/lookup/recurrent_winners.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

class WonProblems {
 public:
  /// Parses the texts of the problems, but none of their winners. A problem that cannot be parsed is left out, and its
  /// winners count as skipped.
  WonProblems(const DeviceFacts& device, WinnersByProblem source);

  /// The winners of this very problem (canonical), which live as long as this object; null where it has none.
  const ProblemWinners* find(const DecodeProblem& problem) const;
  /// The winners of a problem of operation `recurrent`, which live as long as this object. Takes a lock.
  std::span<const RecurrentWinner> find(const RecurrentProblem& problem) const;
  /// The winners of all problems that are `wanted`, in the order of the source.
  std::vector<const ProblemWinners*> find_all(const std::function<bool(const DecodeProblem&)>& wanted) const;

  /// How many winners have been read, and how many rows were skipped meanwhile.
  std::size_t size() const { return size_.load(std::memory_order_relaxed); }
  std::size_t skipped() const { return skipped_.load(std::memory_order_relaxed); }
  /// Whether a layer of winners was missing from what has been read, because other processes kept it locked.
  bool locked() const { return locked_.load(std::memory_order_relaxed); }
  /// The warnings of the source, and of each time it was read; each text once.
  std::vector<std::string> warnings() const;

 private:
  struct Problem {
    explicit Problem(DecodeProblem decoded) : problem(std::move(decoded)) {}

    DecodeProblem problem;
    std::vector<std::string> texts;  ///< usually one; another version may write the same problem differently
    std::unique_ptr<const ProblemWinners> owned;
    std::atomic<const ProblemWinners*> winners = nullptr;  ///< `owned`, once it has been read
  };
  struct RecurrentWon {
    RecurrentProblem problem;
    std::vector<std::string> texts = {};
    bool read = false;
    std::vector<RecurrentWinner> winners = {};
  };
  struct Hash {
    std::size_t operator()(const LookupKey& key) const noexcept { return hash(key); }
  };

  void read(const std::vector<Problem*>& problems) const;
  RecurrentWon* find_won(const RecurrentProblem& problem) const;  ///< null where it has no winners
  void warn(std::vector<std::string> more) const;

  DeviceFacts device_;
  mutable std::deque<Problem> problems_;
  std::unordered_map<LookupKey, Problem*, Hash> by_key_;
  mutable std::atomic<std::size_t> size_ = 0, skipped_ = 0;
  mutable std::atomic<bool> locked_ = false;
  mutable std::mutex mutex_;  ///< guards what follows, and Problem::owned
  mutable std::deque<RecurrentWon> recurrent_;
  WinnersByProblem source_;
  mutable std::vector<std::string> warnings_;
};

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
