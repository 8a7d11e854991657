// compare.cpp -- NaN and infinities are compared first, then the largest error, the mean error and LSE.
#include "tuner/oracle/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tuner/oracle/random_data.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::uint16_t kPoison16 = 0xFFFF;
constexpr double kLargestPassingRatio = 2.0;

bool is_poison(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits == 0xFFFFFFFFu;
}

/// Whether both are NaN, both the same infinity, or both finite.
bool same_pattern(double got, double expected) {
  if (std::isnan(got) || std::isnan(expected)) return std::isnan(got) == std::isnan(expected);
  if (std::isinf(got) || std::isinf(expected)) return got == expected;
  return true;
}

double ratio(double error, double allowed) {
  return error == 0 ? 0 : allowed > 0 ? error / allowed : std::numeric_limits<double>::infinity();
}

void note(ComparisonReport& report, std::string text) {
  if (report.first_failure.empty()) report.first_failure = std::move(text);
}

/// A row of [query tokens, q_heads] as messages name it: "request 3, query token 1, query head 5".
std::string name_of_row(const Reference& reference, std::int64_t row) {
  std::int64_t token = row / reference.q_heads;
  int request = 0;
  while (request + 1 < reference.batch && token >= query_tokens_of(reference, request))
    token -= query_tokens_of(reference, request++);
  const std::string of_token = query_tokens_of(reference, request) > 1 ? fmt::format(", query token {}", token) : "";
  return fmt::format("request {}{}, query head {}", request, of_token, row % reference.q_heads);
}

/// Calls body(request, begin, end) with the elements of O that each yardstick is of.
template <class Body>
void for_each_yardstick(const Reference& reference, Body body) {
  const std::int64_t token_elements = std::int64_t{reference.q_heads} * reference.head_dim;
  std::int64_t begin = 0;
  for (int request = 0; request < reference.batch; ++request) {
    int left = query_tokens_of(reference, request);
    do {
      const int tokens = std::min(left, kTokensOfYardstick);
      body(request, begin, begin + tokens * token_elements);
      begin += tokens * token_elements, left -= tokens;
    } while (left > 0);
  }
}

void compare_elements(const Reference& reference, const Yardstick& yardstick, int request, std::int64_t begin,
                      std::int64_t end, std::span<const std::uint16_t> o, ComparisonReport& report) {
  if (begin == end) return;
  double sum = 0, worst = 0;
  std::int64_t worst_at = begin;
  for (std::int64_t i = begin; i < end; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double expected = reference.o[at];
    const double got = value_of(reference.dtype, o[at]);
    const auto where = [&] {
      if (!report.first_failure.empty()) return std::string();  // Only the first failure is reported.
      return fmt::format("{}, column {}", name_of_row(reference, i / reference.head_dim), i % reference.head_dim);
    };
    if (o[at] == kPoison16) {
      ++report.unwritten;
      note(report, fmt::format("{} was never written; the oracle has {:.6g}", where(), expected));
    } else if (!same_pattern(got, expected)) {
      ++report.pattern_mismatches;
      note(report, fmt::format("{} is {}, but the oracle has {:.6g}", where(), got, expected));
    } else {
      const double error = std::abs(got - expected);
      sum += error;
      if (error > worst) {
        worst = error;
        worst_at = i;
      }
    }
  }
  report.elements += end - begin;
  const double error_ratio = ratio(worst, yardstick.largest);
  if (error_ratio > kLargestPassingRatio) {
    const auto at = static_cast<std::size_t>(worst_at);
    note(report, fmt::format("{}, column {} is {:.6g}, but the oracle has {:.6g}; the error {:.3g} is {:.2f} times the "
                             "yardstick {:.3g}",
                             name_of_row(reference, worst_at / reference.head_dim), worst_at % reference.head_dim,
                             value_of(reference.dtype, o[at]), reference.o[at], worst, error_ratio, yardstick.largest));
  }
  const double mean = sum / static_cast<double>(end - begin);
  const double mean_ratio = ratio(mean, yardstick.mean);
  if (mean_ratio > kLargestPassingRatio) {
    note(report, fmt::format("the mean error {:.3g} of request {} is {:.2f} times the yardstick {:.3g}", mean, request,
                             mean_ratio, yardstick.mean));
  }
  report.error_ratio = std::max(report.error_ratio, error_ratio);
  report.mean_ratio = std::max(report.mean_ratio, mean_ratio);
}

void compare_lse(const Reference& reference, std::span<const float> lse, ComparisonReport& report) {
  for (std::size_t i = 0; i < lse.size(); ++i) {
    const double expected = reference.lse[i];
    const double got = lse[i];
    const auto where = [&] {
      if (!report.first_failure.empty()) return std::string();
      return "LSE of " + name_of_row(reference, static_cast<std::int64_t>(i));
    };
    if (is_poison(lse[i])) {
      ++report.unwritten;
      note(report, fmt::format("{} was never written; the oracle has {:.7g}", where(), expected));
    } else if (!same_pattern(got, expected)) {
      ++report.pattern_mismatches;
      note(report, fmt::format("{} is {}, but the oracle has {:.7g}", where(), got, expected));
    } else if (std::isfinite(expected)) {
      const double lse_ratio = ratio(std::abs(got - expected), reference.lse_limits[i]);
      report.lse_ratio = std::max(report.lse_ratio, lse_ratio);
      if (lse_ratio > 1) {
        note(report, fmt::format("{} is {:.7g}, but the oracle has {:.7g}; the error {:.3g} is more than {:.3g}",
                                 where(), got, expected, std::abs(got - expected), reference.lse_limits[i]));
      }
    }
  }
  report.elements += static_cast<std::int64_t>(lse.size());
}

}  // namespace

double lse_limit(double lse, bool exact_weights) {
  if (!std::isfinite(lse)) return 0;
  return (exact_weights ? 2e-6 : 1e-4) + std::ldexp(std::abs(lse), -21);
}

int query_tokens_of(const Reference& reference, int request) {
  return reference.query_tokens.empty() ? 1 : reference.query_tokens[static_cast<std::size_t>(request)];
}

std::int64_t query_tokens_before(const Reference& reference, int request) {
  if (reference.query_tokens.empty()) return request;
  return std::accumulate(reference.query_tokens.begin(), reference.query_tokens.begin() + request, std::int64_t{0});
}

Reference make_reference(DType dtype, int batch, int q_heads, int head_dim, std::vector<double> oracle_o,
                         std::vector<double> oracle_lse, std::span<const std::uint16_t> plain_o, bool exact_weights,
                         std::vector<int> query_tokens) {
  Reference reference{.dtype = dtype,
                      .batch = batch,
                      .q_heads = q_heads,
                      .head_dim = head_dim,
                      .o = std::move(oracle_o),
                      .lse = std::move(oracle_lse),
                      .yardsticks = {},
                      .lse_limits = {},
                      .query_tokens = std::move(query_tokens)};
  [[maybe_unused]] const std::size_t token_elements =
      static_cast<std::size_t>(q_heads) * static_cast<std::size_t>(head_dim);
  assert(reference.query_tokens.empty() || reference.query_tokens.size() == static_cast<std::size_t>(batch));
  assert(reference.o.size() == token_elements * static_cast<std::size_t>(query_tokens_before(reference, batch)) &&
         plain_o.size() == reference.o.size());
  for_each_yardstick(reference, [&](int, std::int64_t begin, std::int64_t end) {
    double largest = 0, sum = 0, squares = 0, magnitude = 0;
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const double error = std::abs(value_of(dtype, plain_o[i]) - reference.o[i]);
      largest = std::max(largest, error);
      sum += error;
      squares += error * error;
      magnitude = std::max(magnitude, std::abs(reference.o[i]));
    }
    const double count = static_cast<double>(std::max<std::int64_t>(end - begin, 1));
    const double ulp = unit_in_last_place(dtype, magnitude);
    reference.yardsticks.push_back({.largest = std::max({largest, 3 * std::sqrt(squares / count), ulp / 2}),
                                    .mean = std::max(sum / count, ulp / 8)});
  });
  for (const double lse : reference.lse)
    reference.lse_limits.push_back(static_cast<float>(lse_limit(lse, exact_weights)));
  return reference;
}

bool ComparisonReport::passed() const {
  // The comparisons are written so that a ratio that is NaN fails.
  return unwritten == 0 && pattern_mismatches == 0 && stray_writes == 0 && workspace_left == 0 && wrong_appended == 0 &&
         unequal_repeats == 0 && error_ratio <= kLargestPassingRatio && mean_ratio <= kLargestPassingRatio &&
         lse_ratio <= 1;
}

ComparisonReport compare(const Reference& reference, std::span<const std::uint16_t> o, std::span<const float> lse) {
  assert(o.size() == reference.o.size() && (lse.empty() || lse.size() == reference.lse.size()));
  ComparisonReport report;
  std::size_t yardstick = 0;
  for_each_yardstick(reference, [&](int request, std::int64_t begin, std::int64_t end) {
    compare_elements(reference, reference.yardsticks[yardstick++], request, begin, end, o, report);
  });
  compare_lse(reference, lse, report);
  return report;
}

void merge(ComparisonReport& into, const ComparisonReport& other) {
  into.elements += other.elements;
  into.unwritten += other.unwritten;
  into.pattern_mismatches += other.pattern_mismatches;
  into.stray_writes += other.stray_writes;
  into.workspace_left += other.workspace_left;
  into.wrong_appended += other.wrong_appended;
  into.unequal_repeats += other.unequal_repeats;
  into.error_ratio = std::max(into.error_ratio, other.error_ratio);
  into.mean_ratio = std::max(into.mean_ratio, other.mean_ratio);
  into.lse_ratio = std::max(into.lse_ratio, other.lse_ratio);
  if (into.first_failure.empty()) into.first_failure = other.first_failure;
}

}  // namespace v1
}  // namespace leanattn
