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

/// The median of a non-empty set. If the count is even, it is the mean of the middle two.
double median(std::span<const double> samples);

/// The median absolute deviation from the median, in the samples' unit (not scaled to a standard deviation).
double median_absolute_deviation(std::span<const double> samples);

/// A closed interval.
struct Interval {
  double low = 0, high = 0;
};

/// The percentile bootstrap interval of the median. The same samples and seed always give the same interval. The
/// interval of one sample is that sample. confidence is in (0, 1).
Interval bootstrap_median(std::span<const double> samples, double confidence = 0.95, std::uint64_t seed = 1,
                          int resamples = 1000);

/// A description of a set of samples. Everything is zero for no samples.
struct Summary {
  int samples = 0;
  double median = 0, mad = 0, low = 0, high = 0;  ///< low and high are the 95 % interval of the median
};
Summary summarize(std::span<const double> samples);

/// How much longer `a` takes than `b`, from samples taken side by side in the same rounds: the median of a[i] / b[i]
/// and its interval. What slows a whole round (clocks, neighbours) cancels. `a` and `b` have the same size; everything
/// is zero for no samples.
struct PairedRatio {
  int pairs = 0;
  double ratio = 0, low = 0, high = 0;

  bool slower(double tolerance) const { return pairs > 0 && low > 1 + tolerance; }  ///< a is slower than b beyond doubt
};
PairedRatio paired_ratio(std::span<const double> a, std::span<const double> b, double confidence = 0.95);

/// The same for samples that were not taken side by side: the ratio of the medians, where each side is resampled on its
/// own. `pairs` is the smaller count. A side of one sample is not resampled. Everything is zero when a side has none.
PairedRatio independent_ratio(std::span<const double> a, std::span<const double> b, double confidence = 0.95);

}  // namespace v1
}  // namespace leanattn
