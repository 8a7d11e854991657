#include "tuner/model/cost_model_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "tuner/measure/statistics.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kFewestSamples = 8;
constexpr int kReweightings = 4;
constexpr double kInterest = 3;       // a sample weighs as much as this power of (best time of its shape / its time)
constexpr double kNoInterest = 4;     // samples of more than this many times that best time are left out
constexpr double kUsualError = 0.05;  // of a prediction, relative; samples with larger ones weigh less
// How far a level's costs may be from those of the level above, relative to them, for the price of one sample that is
// off by kUsualError.
constexpr double kDeviceSpread = 1.0, kFamilySpread = 0.5, kKernelSpread = 0.3;

using Values = std::array<double, kCosts>;

/// By how much a cost may be in doubt where the level above has none of it, in the costs' units.
constexpr Values kLeast = {0.5, 0.1, 0.1, 0.1, 0.2, 0.01, 0.2};

/// The largest value of each cost. No launch takes this long to start: where all samples read the same bytes, the rest
/// that they have in common is the cost of the stream, not of the start.
constexpr Values kMost = [] {
  Values most;
  most.fill(std::numeric_limits<double>::infinity());
  most[0] = 10;  // start, in microseconds
  return most;
}();

/// One equation, counts * costs = 1. Its error is a relative one.
struct Row {
  Values counts;
  double weight = 1;
};

/// A sample with the best time of its shape. A sample that is far behind it is of little interest.
struct RatedSample {
  const ModelSample* sample;
  double best_us;
};

/// Minimises 1/2 x'Ax - b'x over 0 <= x <= kMost by coordinate descent: A is positive definite thanks to the prior, so
/// this converges.
Values solve_bounded(const std::array<Values, kCosts>& a, const Values& b, Values x) {
  for (int sweep = 0; sweep < 300; ++sweep) {
    double moved = 0;
    for (std::size_t i = 0; i < kCosts; ++i) {
      double rest = b[i];
      for (std::size_t j = 0; j < kCosts; ++j) rest -= j == i ? 0 : a[i][j] * x[j];
      const double next = std::clamp(rest / a[i][i], 0.0, kMost[i]);
      moved = std::max(moved, std::abs(next - x[i]) / std::max(std::abs(next), kLeast[i]));
      x[i] = next;
    }
    if (moved < 1e-6) break;
  }
  return x;
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < kCosts; ++i) sum += a[i] * b[i];
  return sum;
}

Values fit_level(const Values& above, double spread, const std::vector<Row>& rows) {
  Values costs = above;
  for (int pass = 0; pass < kReweightings; ++pass) {
    std::array<Values, kCosts> a{};
    Values b{};
    for (std::size_t i = 0; i < kCosts; ++i) {
      const double scale = kUsualError / (spread * std::max(above[i], kLeast[i]));
      a[i][i] += scale * scale;
      b[i] += scale * scale * above[i];
    }
    for (const auto& [counts, interest] : rows) {
      const double error = std::abs(dot(counts, costs) - 1);
      const double weight = interest * (pass == 0 ? 1.0 : kUsualError / std::max(error, kUsualError));
      for (std::size_t i = 0; i < kCosts; ++i) {
        for (std::size_t j = 0; j < kCosts; ++j) a[i][j] += weight * counts[i] * counts[j];
        b[i] += weight * counts[i];
      }
    }
    costs = solve_bounded(a, b, costs);
  }
  return costs;
}

std::vector<Row> rows_of(const ModelParameters& parameters, const DeviceFacts& device,
                         const std::vector<RatedSample>& samples) {
  std::vector<Row> rows;
  rows.reserve(samples.size());
  for (const auto& [s, best_us] : samples) {
    Row row{as_array(model_features(parameters, device, s->problem, s->shape, s->config, s->resident)),
            std::pow(best_us / s->us, kInterest)};
    for (double& value : row.counts) value /= s->us;
    rows.push_back(row);
  }
  return rows;
}

double mean_error(const Values& costs, const std::vector<Row>& rows) {
  double sum = 0, weights = 0;
  for (const Row& row : rows) {
    sum += row.weight * std::min(std::abs(dot(row.counts, costs) - 1), 4 * kUsualError);
    weights += row.weight;
  }
  return sum / weights;
}

/// Fits the costs and the two rates of an SM. Predictions are not linear in the rates, so a coarse grid of rates around
/// those of the level above is tried.
ModelParameters fit_rates(const ModelParameters& above, const DeviceFacts& device, double spread,
                          const std::vector<RatedSample>& samples) {
  constexpr std::size_t kEnough = 1000;  // samples to choose rates by
  std::vector<RatedSample> some;
  for (std::size_t i = 0; i < samples.size(); i += 1 + samples.size() / kEnough) some.push_back(samples[i]);
  ModelParameters best = above;
  double least = std::numeric_limits<double>::infinity();
  for (const double rate : {0.7, 1.0, 1.4, 2.0, 2.8}) {
    for (const double latency : {0.5, 0.7, 1.0, 1.4, 2.0}) {
      ModelParameters tried = above;
      tried.sm_rate *= rate, tried.latency *= latency;
      const std::vector<Row> rows = rows_of(tried, device, some);
      const Values costs = fit_level(as_array(above.costs), spread, rows);
      // Rates far from those above have to be worth it.
      const double error = mean_error(costs, rows) + 0.002 / spread *
                                                         (std::abs(std::log(rate)) + std::abs(std::log(latency))) *
                                                         kFewestSamples / static_cast<double>(some.size());
      if (error >= least) continue;
      least = error;
      best = tried;
    }
  }
  best.costs = costs_of(fit_level(as_array(above.costs), spread, rows_of(best, device, samples)));
  return best;
}

ModelParameters with_rates(ModelParameters parameters, const DeviceFacts& device,
                           std::span<const std::pair<std::int64_t, double>> read_limits) {
  double best_rate = 0;
  for (const auto& [bytes, us] : read_limits) {
    // Small reads are all latency, and those that fit into the L2 say nothing about memory.
    if (us > 0 && bytes > 2 * device.l2_bytes) best_rate = std::max(best_rate, static_cast<double>(bytes) / us);
  }
  if (best_rate > 0) {
    parameters.sm_rate *= best_rate / parameters.memory_rate;
    parameters.memory_rate = best_rate;
  }
  return parameters;
}

}  // namespace

ModelParameters CostModel::of(const KernelSpec& spec) const {
  const auto family = families.find(measured_family_of(spec));
  ModelParameters parameters = family != families.end() ? family->second : device;
  if (const auto kernel = kernels.find(kernel_name(spec)); kernel != kernels.end()) parameters.costs = kernel->second;
  return parameters;
}

CostModel fit_model(const ModelParameters& prior, const DeviceFacts& device, std::span<const ModelSample> samples,
                    std::span<const std::pair<std::int64_t, double>> read_limits) {
  CostModel model{.device = with_rates(prior, device, read_limits), .families = {}, .kernels = {}};
  std::vector<RatedSample> all;
  std::map<MeasuredFamily, std::vector<RatedSample>> by_family;
  std::map<std::string, std::vector<RatedSample>> by_kernel;
  std::map<std::string, double> best;  // by problem and shape
  std::vector<double*> best_of;
  for (const ModelSample& sample : samples) {
    double& us = best.emplace(to_json(sample.problem) + to_json(sample.shape), sample.us).first->second;
    if (sample.us > 0) us = us > 0 ? std::min(us, sample.us) : sample.us;
    best_of.push_back(&us);
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const ModelSample& sample = samples[i];
    if (!(sample.us > 0)) continue;
    const RatedSample rated{&sample, *best_of[i]};
    if (sample.us > kNoInterest * rated.best_us) continue;
    all.push_back(rated);
    by_family[measured_family_of(sample.config.spec)].push_back(rated);
    by_kernel[kernel_name(sample.config.spec)].push_back(rated);
  }
  if (all.size() < kFewestSamples) return model;
  model.device = fit_rates(model.device, device, kDeviceSpread, all);
  for (const auto& [family, of_family] : by_family)
    model.families[family] = fit_rates(model.device, device, kFamilySpread, of_family);
  for (const auto& [name, of_kernel] : by_kernel) {
    const ModelParameters& family = model.families.at(measured_family_of(of_kernel.front().sample->config.spec));
    model.kernels[name] =
        costs_of(fit_level(as_array(family.costs), kKernelSpread, rows_of(family, device, of_kernel)));
  }
  return model;
}

double model_error(const CostModel& model, const DeviceFacts& device, std::span<const ModelSample> samples) {
  std::vector<double> errors;
  for (const ModelSample& s : samples) {
    if (s.us > 0) {
      const double us = predict_us(model.of(s.config.spec), device, s.problem, s.shape, s.config, s.resident);
      errors.push_back(std::abs(us / s.us - 1));
    }
  }
  return errors.empty() ? 0 : median(errors);
}

}  // namespace v1
}  // namespace leanattn
