#include "tuner/search/candidate.hpp"

#include <algorithm>

namespace leanattn {
inline namespace v1 {
namespace {

/// The first `count` different values of a member of the candidates' configurations.
template <class Member>
std::vector<Member> distinct(const std::vector<Candidate>& candidates, Member Config::*member, std::size_t count) {
  std::vector<Member> values;
  for (const Candidate& candidate : candidates) {
    if (values.size() == count) break;
    const Member& value = candidate.config.*member;
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

}  // namespace

void TimedCandidates::add(Candidate candidate) {
  best_us_ = list_.empty() ? candidate.us : std::min(best_us_, candidate.us);
  list_.push_back(std::move(candidate));
}

bool TimedCandidates::anything_new() const {
  return std::any_of(list_.begin(), list_.end(), [](const Candidate& candidate) { return !candidate.known; });
}

const Candidate* TimedCandidates::find(const Config& config) const {
  const auto it =
      std::find_if(list_.begin(), list_.end(), [&](const Candidate& candidate) { return candidate.config == config; });
  return it == list_.end() ? nullptr : &*it;
}

std::vector<Candidate> TimedCandidates::fastest_first() const {
  std::vector<Candidate> sorted = list_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
  return sorted;
}

std::vector<KernelSpec> TimedCandidates::best_specs(std::size_t count) const {
  return distinct(fastest_first(), &Config::spec, count);
}

std::vector<std::int64_t> TimedCandidates::best_grids(std::size_t count) const {
  return distinct(fastest_first(), &Config::grid, count);
}

}  // namespace v1
}  // namespace leanattn
