#include "tuner/measure/statistics.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace {

/// SplitMix64. The standard library's distributions differ between implementations, which an interval must not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t bound) {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    // The high half of a 32 x 32 bit product has hardly any modulo bias for sample counts.
    return static_cast<std::size_t>(((z >> 32) * static_cast<std::uint64_t>(bound)) >> 32);
  }

 private:
  std::uint64_t state_;
};

/// Reorders `values`.
double median_in_place(std::vector<double>& values) {
  const std::size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (*std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle)) + upper) / 2;
}

}  // namespace

double median(std::span<const double> samples) {
  assert(!samples.empty());
  std::vector<double> copy(samples.begin(), samples.end());
  return median_in_place(copy);
}

double median_absolute_deviation(std::span<const double> samples) {
  const double center = median(samples);
  std::vector<double> distances;
  distances.reserve(samples.size());
  for (const double sample : samples) distances.push_back(std::abs(sample - center));
  return median_in_place(distances);
}

namespace {

/// The values between which this share of a bootstrap distribution lies. Reorders `values`.
Interval percentiles(std::vector<double>& values, double confidence) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double quantile) {
    const auto last = static_cast<double>(values.size() - 1);
    return values[static_cast<std::size_t>(std::lround(std::clamp(quantile * last, 0.0, last)))];
  };
  return {at((1 - confidence) / 2), at((1 + confidence) / 2)};
}

}  // namespace

Interval bootstrap_median(std::span<const double> samples, double confidence, std::uint64_t seed, int resamples) {
  assert(!samples.empty() && confidence > 0 && confidence < 1 && resamples > 0);
  if (samples.size() == 1) return {samples[0], samples[0]};
  Random random(seed);
  std::vector<double> medians, draw(samples.size());
  medians.reserve(static_cast<std::size_t>(resamples));
  for (int i = 0; i < resamples; ++i) {
    for (double& value : draw) value = samples[random.below(samples.size())];
    medians.push_back(median_in_place(draw));
  }
  return percentiles(medians, confidence);
}

Summary summarize(std::span<const double> samples) {
  if (samples.empty()) return {};
  const Interval interval = bootstrap_median(samples);
  return {.samples = static_cast<int>(samples.size()),
          .median = median(samples),
          .mad = median_absolute_deviation(samples),
          .low = interval.low,
          .high = interval.high};
}

PairedRatio paired_ratio(std::span<const double> a, std::span<const double> b, double confidence) {
  assert(a.size() == b.size());
  if (a.empty()) return {};
  std::vector<double> ratios;
  ratios.reserve(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  const Interval interval = bootstrap_median(ratios, confidence);
  return {
      .pairs = static_cast<int>(ratios.size()), .ratio = median(ratios), .low = interval.low, .high = interval.high};
}

PairedRatio independent_ratio(std::span<const double> a, std::span<const double> b, double confidence) {
  constexpr int kResamples = 1000;
  if (a.empty() || b.empty()) return {};
  PairedRatio result{
      .pairs = static_cast<int>(std::min(a.size(), b.size())), .ratio = median(a) / median(b), .low = 0, .high = 0};
  Random random(1);
  std::vector<double> ratios, draw_a(a.size()), draw_b(b.size());
  for (int i = 0; i < kResamples; ++i) {
    for (double& value : draw_a) value = a[random.below(a.size())];
    for (double& value : draw_b) value = b[random.below(b.size())];
    ratios.push_back(median_in_place(draw_a) / median_in_place(draw_b));
  }
  const Interval interval = percentiles(ratios, confidence);
  result.low = interval.low, result.high = interval.high;
  return result;
}

}  // namespace v1
}  // namespace leanattn
