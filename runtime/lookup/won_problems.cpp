// won_problems.cpp -- winners read from the databases once for each problem, whichever thread comes first.
#include "runtime/lookup/won_problems.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "generator/recurrent/recurrent_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

WonProblems::WonProblems(const DeviceFacts& device, WinnersByProblem source)
    : device_(device), source_(std::move(source)) {
  warn(std::move(source_.warnings));
  locked_ = source_.locked;
  std::vector<std::string> unknown;
  for (std::string& text : source_.problems) {
    const auto problem = problem_from_json(text);
    if (!problem) {
      const auto recurrent = recurrent_problem_from_json(text);
      if (!recurrent) {
        unknown.push_back(std::move(text));
        continue;
      }
      if (find_won(*recurrent) == nullptr) recurrent_.push_back({.problem = *recurrent});
      find_won(*recurrent)->texts.push_back(std::move(text));
      continue;
    }
    Problem*& known = by_key_[make_lookup_key(*problem, {})];
    if (known == nullptr) known = &problems_.emplace_back(*problem);
    known->texts.push_back(std::move(text));
  }
  if (unknown.empty()) return;
  LayeredWinners rows = source_.read(unknown);
  skipped_ += rows.entries.size();
  if (rows.locked) locked_ = true;
  warn(std::move(rows.warnings));
}

const ProblemWinners* WonProblems::find(const DecodeProblem& problem) const {
  const auto found = by_key_.find(make_lookup_key(problem, {}));
  if (found == by_key_.end()) return nullptr;
  if (const ProblemWinners* winners = found->second->winners.load(std::memory_order_acquire)) return winners;
  read({found->second});
  return found->second->winners.load(std::memory_order_acquire);
}

std::span<const RecurrentWinner> WonProblems::find(const RecurrentProblem& problem) const {
  const std::lock_guard lock(mutex_);
  RecurrentWon* const won = find_won(problem);
  if (won == nullptr) return {};
  if (std::exchange(won->read, true)) return won->winners;
  LayeredWinners read = source_.read(won->texts);
  std::size_t skipped = 0;
  won->winners = recurrent_winners(device_, problem, read.entries, skipped);
  size_.fetch_add(won->winners.size(), std::memory_order_relaxed);
  skipped_.fetch_add(skipped, std::memory_order_relaxed);
  if (read.locked) locked_ = true;
  warn(std::move(read.warnings));
  return won->winners;
}

WonProblems::RecurrentWon* WonProblems::find_won(const RecurrentProblem& problem) const {
  const auto found = std::find_if(recurrent_.begin(), recurrent_.end(),
                                  [&](const RecurrentWon& won) { return won.problem == problem; });
  return found == recurrent_.end() ? nullptr : &*found;
}

std::vector<const ProblemWinners*> WonProblems::find_all(
    const std::function<bool(const DecodeProblem&)>& wanted) const {
  std::vector<Problem*> found;
  for (Problem& problem : problems_) {
    if (wanted(problem.problem)) found.push_back(&problem);
  }
  const auto winners_of = [](const Problem* problem) { return problem->winners.load(std::memory_order_acquire); };
  if (!std::all_of(found.begin(), found.end(), winners_of)) read(found);
  std::vector<const ProblemWinners*> winners(found.size());
  std::transform(found.begin(), found.end(), winners.begin(), winners_of);
  return winners;
}

/// Reads the winners of those problems that have not been read yet, in one visit to the databases.
void WonProblems::read(const std::vector<Problem*>& problems) const {
  const std::lock_guard lock(mutex_);
  std::unordered_map<std::string_view, std::size_t> index;  // from a text to its problem
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    if (problems[i]->owned) continue;  // another thread has read it meanwhile
    for (const std::string& text : problems[i]->texts) {
      texts.push_back(text);
      index.emplace(text, i);
    }
  }
  if (texts.empty()) return;
  LayeredWinners read = source_.read(texts);
  if (read.locked) locked_ = true;
  std::vector<std::vector<const LayeredWinners::Entry*>> rows(problems.size());
  for (const LayeredWinners::Entry& row : read.entries) {
    if (const auto of = index.find(row.winner.problem); of != index.end()) rows[of->second].push_back(&row);
  }
  for (std::size_t i = 0; i < problems.size(); ++i) {
    Problem& problem = *problems[i];
    if (problem.owned) continue;
    problem.owned = std::make_unique<const ProblemWinners>(device_, problem.problem, rows[i]);
    size_.fetch_add(problem.owned->size(), std::memory_order_relaxed);
    skipped_.fetch_add(problem.owned->skipped(), std::memory_order_relaxed);
    problem.winners.store(problem.owned.get(), std::memory_order_release);
  }
  warn(std::move(read.warnings));
}

std::vector<std::string> WonProblems::warnings() const {
  const std::lock_guard lock(mutex_);
  return warnings_;
}

/// Called with the lock held. Keeps each text once, because an unusable layer gives its warning at every visit.
void WonProblems::warn(std::vector<std::string> more) const {
  for (std::string& warning : more) {
    if (std::find(warnings_.begin(), warnings_.end(), warning) == warnings_.end())
      warnings_.push_back(std::move(warning));
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
