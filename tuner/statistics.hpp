// statistics.hpp -- robust statistics of timing samples: median, MAD, bootstrap interval, paired ratios. Pure
// functions; any thread.
//
// Timing noise is one-sided and heavy-tailed: interrupts, clock changes and neighbours only ever add time. A mean
// follows the tail, a minimum rewards the luckiest sample and never converges; the median does neither, and half of the
// samples may be spoilt.
#pragma once

#include <cstdint>
#include <span>

namespace leanattn {
inline namespace v1 {

/// Of a non-empty set; the mean of the middle two when the count is even.
double median(std::span<const double> samples);

/// Median absolute deviation from the median, in the samples' unit (not scaled to a standard deviation).
double median_absolute_deviation(std::span<const double> samples);

/// Closed interval.
struct Interval {
  double low = 0, high = 0;
};

/// Percentile bootstrap interval of the median: the same samples and seed always give the same interval. One sample
/// gives a degenerate one. confidence in (0, 1).
Interval bootstrap_median(std::span<const double> samples, double confidence = 0.95, std::uint64_t seed = 1,
                          int resamples = 1000);

/// A set of samples, described. All zero for no samples.
struct Summary {
  int samples = 0;
  double median = 0, mad = 0, low = 0, high = 0;  ///< low, high: 95 % bootstrap interval of the median
};
Summary summarize(std::span<const double> samples);

/// How much longer `a` takes than `b`, from samples taken side by side in the same rounds: the median of a[i] / b[i]
/// and its interval. What slows a whole round (clocks, neighbours) cancels. Equal sizes; zero for no samples.
struct PairedRatio {
  int pairs = 0;
  double ratio = 0, low = 0, high = 0;

  bool slower(double tolerance) const { return pairs > 0 && low > 1 + tolerance; }  ///< a is slower than b beyond doubt
};
PairedRatio paired_ratio(std::span<const double> a, std::span<const double> b, double confidence = 0.95);

/// The same of samples that were not taken side by side: the ratio of the medians, each side resampled on its own.
/// `pairs` is the smaller count; one sample on a side gives a degenerate interval. Zero for no samples on a side.
PairedRatio independent_ratio(std::span<const double> a, std::span<const double> b, double confidence = 0.95);

}  // namespace v1
}  // namespace leanattn
