// model_fit.cpp -- the model's costs from measured trials.
#include <algorithm>
#include <array>
#include <cmath>

#include "tuner/model.hpp"
#include "tuner/statistics.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kCosts = 6;
constexpr std::size_t kFewestSamples = 8;
constexpr double kPriorWeight = 0.3;  // of one sample, on a relative error of the parameter itself
constexpr int kReweightings = 4;

using Costs = std::array<double, kCosts>;

Costs costs_of(const ModelParameters& p) { return {p.start, p.stretch, p.segment, p.fix_up, p.partial, p.tree_level}; }

ModelParameters with_costs(ModelParameters p, const Costs& c) {
  p.start = c[0], p.stretch = c[1], p.segment = c[2], p.fix_up = c[3], p.partial = c[4], p.tree_level = c[5];
  return p;
}

Costs row_of(const ModelFeatures& f) { return {1, f.stream, f.segments, f.shared, f.partials, f.tree}; }

/// Minimises 1/2 x'Ax - b'x over x >= 0 by coordinate descent: A is positive definite thanks to the prior, so this
/// converges.
Costs solve_non_negative(const std::array<Costs, kCosts>& a, const Costs& b, Costs x) {
  for (int sweep = 0; sweep < 500; ++sweep) {
    for (std::size_t i = 0; i < kCosts; ++i) {
      double rest = b[i];
      for (std::size_t j = 0; j < kCosts; ++j) rest -= j == i ? 0 : a[i][j] * x[j];
      x[i] = std::max(rest / a[i][i], 0.0);
    }
  }
  return x;
}

}  // namespace

ModelParameters fit_parameters(const ModelParameters& prior, const DeviceFacts& device,
                               std::span<const ModelSample> samples,
                               std::span<const std::pair<std::int64_t, double>> read_limits) {
  ModelParameters parameters = prior;
  double best_rate = 0;
  for (const auto& [bytes, us] : read_limits) {
    // Small reads are all latency, and those that fit the L2 say nothing of memory.
    if (us > 0 && bytes > 2 * device.l2_bytes) best_rate = std::max(best_rate, static_cast<double>(bytes) / us);
  }
  if (best_rate > 0) {
    parameters.sm_rate *= best_rate / parameters.memory_rate;
    parameters.memory_rate = best_rate;
  }
  if (samples.size() < kFewestSamples) return parameters;

  const Costs prior_costs = costs_of(parameters);
  Costs costs = prior_costs;
  // Squares follow outliers (a kernel limited by something the model does not know): samples that fit badly are
  // weighted down.
  for (int pass = 0; pass < kReweightings; ++pass) {
    std::array<Costs, kCosts> a{};
    Costs b{};
    for (std::size_t i = 0; i < kCosts; ++i) {
      const double scale = kPriorWeight / std::max(prior_costs[i], 1e-3);
      a[i][i] += scale * scale;
      b[i] += scale * scale * prior_costs[i];
    }
    const ModelParameters current = with_costs(parameters, costs);
    for (const ModelSample& sample : samples) {
      if (!(sample.us > 0)) continue;
      const ModelFeatures features =
          model_features(parameters, device, sample.problem, sample.shape, sample.config, sample.resident);
      const double error = std::abs(predict_us(current, features) / sample.us - 1);
      const double weight = pass == 0 ? 1.0 : 0.1 / std::max(error, 0.1);
      Costs row = row_of(features);
      for (double& value : row) value /= sample.us;
      for (std::size_t i = 0; i < kCosts; ++i) {
        for (std::size_t j = 0; j < kCosts; ++j) a[i][j] += weight * row[i] * row[j];
        b[i] += weight * row[i];
      }
    }
    costs = solve_non_negative(a, b, costs);
  }
  return with_costs(parameters, costs);
}

double model_error(const ModelParameters& parameters, const DeviceFacts& device, std::span<const ModelSample> samples) {
  std::vector<double> errors;
  for (const ModelSample& s : samples) {
    if (s.us > 0)
      errors.push_back(std::abs(predict_us(parameters, device, s.problem, s.shape, s.config, s.resident) / s.us - 1));
  }
  return errors.empty() ? 0 : median(errors);
}

}  // namespace v1
}  // namespace leanattn
