// evaluation.cpp -- what follows from the cases of an evaluation: shares, regrets and differences.
#include "tuner/evaluate/evaluation.hpp"

#include <algorithm>
#include <cmath>

namespace leanattn {
inline namespace v1 {
namespace {

template <class Cases, class Value>
double largest(const Cases& cases, Value value) {
  double most = 0;
  for (const auto& one : cases) most = std::max(most, value(one));
  return most;
}

std::vector<double> sorted_regrets(const std::vector<RegretCase>& cases) {
  std::vector<double> regrets;
  regrets.reserve(cases.size());
  for (const RegretCase& one : cases) regrets.push_back(one.regret());
  std::sort(regrets.begin(), regrets.end());
  return regrets;
}

}  // namespace

double SearchCase::share_of_gpu_time() const {
  return exhaustive.gpu_seconds > 0 ? searched.gpu_seconds / exhaustive.gpu_seconds : 0;
}

double SearchEvaluation::share_of_gpu_time() const {
  double searched = 0, exhaustive = 0;
  for (const SearchCase& one : cases) searched += one.searched.gpu_seconds, exhaustive += one.exhaustive.gpu_seconds;
  return exhaustive > 0 ? searched / exhaustive : 0;
}

double SearchEvaluation::worst_ratio() const {
  return largest(cases, [](const SearchCase& one) { return one.duel.ratio.ratio; });
}

double RegretEvaluation::median_regret() const { return cases.empty() ? 0 : median(sorted_regrets(cases)); }

double RegretEvaluation::high_regret() const {
  if (cases.empty()) return 0;
  const std::vector<double> regrets = sorted_regrets(cases);
  return regrets[static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(regrets.size()))) - 1];
}

double RegretEvaluation::largest_regret() const {
  return largest(cases, [](const RegretCase& one) { return one.regret(); });
}

std::size_t RepeatEvaluation::differing() const {
  return static_cast<std::size_t>(
      std::count_if(cases.begin(), cases.end(), [](const RepeatCase& one) { return !one.same(); }));
}

double RepeatEvaluation::largest_difference() const {
  return largest(cases, [](const RepeatCase& one) { return one.same() ? 0 : std::abs(one.duel.ratio.ratio - 1); });
}

}  // namespace v1
}  // namespace leanattn
