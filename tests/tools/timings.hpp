// timings.hpp -- the committed timings of single configurations (tests/tools/timings.py), and how a model of time is
// judged by them. Plain data and pure functions; one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/device.hpp"
#include "runtime/lookup/costs.hpp"
#include "runtime/problem.hpp"

namespace leanattn {

struct Timing {
  std::string source;  ///< one run, or runs that are compared
  std::string kind;    ///< as in timings.py
  bool h200 = false;   ///< else an H100
  DecodeProblem problem;
  Shape shape;
  Config config;
  int resident = 1;  ///< CTAs that one SM holds, as look-ups guess
  double us = 0;
};
/// The GPUs of the timings.
const DeviceFacts& timed_gpu(bool h200);
/// Fails the program where the file is not such a list.
std::vector<Timing> read_timings(const std::string& path);

/// A step with prefill on the H200, as the configuration that look-ups answer ran.
struct MixedTiming {
  std::string name;
  DecodeProblem problem;
  Shape shape = {};
  Config config = {};  ///< with the usual segment cost
  double us = 0;
};
std::vector<MixedTiming> read_mixed_timings(const std::string& path);

/// The configurations of one step in one source, at least two different ones: indices of timings. Where the caller
/// allows dependent launches, they include those of ordinary ones.
using TimedStep = std::vector<std::size_t>;
std::vector<TimedStep> timed_steps(std::span<const Timing> timings);

/// Microseconds of all timings by the model with these costs.
std::vector<double> modelled(std::span<const Timing> timings, const Costs& costs);

/// By how much the configuration of least predicted time is slower than the best of its step, for each step.
std::vector<double> regrets(std::span<const Timing> timings, std::span<const TimedStep> steps,
                            std::span<const double> predicted_us);
/// |predicted / measured - 1|.
std::vector<double> errors(std::span<const Timing> timings, std::span<const double> predicted_us);
/// The value at this share of the sorted list.
double quantile(std::vector<double> values, double share);
double mean(std::span<const double> values);

/// What the fit of the costs makes small: the mean regret over the steps, where configurations that are predicted to be
/// within some percent of the least one count, too; and some of the mean error, so that times are right as well.
double fit_objective(std::span<const Timing> timings, std::span<const TimedStep> steps,
                     std::span<const double> predicted_us);

}  // namespace leanattn
