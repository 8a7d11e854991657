#include "tuner/model/cost_model_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
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
// How far a level's factors may be from those of the level above, relative to them, for the price of one sample that is
// off by kUsualError.
constexpr double kDeviceSpread = 0.3, kFamilySpread = 0.15, kKernelSpread = 0.1;
constexpr double kLeast = 0.1;  // of the level above, where its factor is less
// No launch takes this many times as long to start: where all samples read the same bytes, the rest that they have in
// common is of the stream, not of the start.
constexpr PartFactors kMost = {2.5, 1e3, 1e3, 1e3};

/// One equation, parts * factors = 1. Its error is a relative one.
struct Row {
  PartFactors parts;
  double weight = 1;
};

/// A sample with the best time of its shape. A sample that is far behind it is of little interest.
struct RatedSample {
  const ModelSample* sample;
  double best_us;
};

/// Minimises 1/2 x'Ax - b'x over 0 <= x <= kMost by coordinate descent: A is positive definite thanks to the prior, so
/// this converges.
PartFactors solve_bounded(const std::array<PartFactors, kTimeParts>& a, const PartFactors& b, PartFactors x) {
  for (int sweep = 0; sweep < 300; ++sweep) {
    double moved = 0;
    for (std::size_t i = 0; i < kTimeParts; ++i) {
      double rest = b[i];
      for (std::size_t j = 0; j < kTimeParts; ++j) rest -= j == i ? 0 : a[i][j] * x[j];
      const double next = std::clamp(rest / a[i][i], 0.0, kMost[i]);
      moved = std::max(moved, std::abs(next - x[i]) / std::max(std::abs(next), kLeast));
      x[i] = next;
    }
    if (moved < 1e-6) break;
  }
  return x;
}

PartFactors fit_level(const PartFactors& above, double spread, const std::vector<Row>& rows) {
  PartFactors factors = above;
  for (int pass = 0; pass < kReweightings; ++pass) {
    std::array<PartFactors, kTimeParts> a{};
    PartFactors b{};
    for (std::size_t i = 0; i < kTimeParts; ++i) {
      const double scale = kUsualError / (spread * std::max(above[i], kLeast));
      a[i][i] += scale * scale;
      b[i] += scale * scale * above[i];
    }
    for (const auto& [parts, interest] : rows) {
      const double error = std::abs(std::inner_product(parts.begin(), parts.end(), factors.begin(), -1.0));
      const double weight = interest * (pass == 0 ? 1.0 : kUsualError / std::max(error, kUsualError));
      for (std::size_t i = 0; i < kTimeParts; ++i) {
        for (std::size_t j = 0; j < kTimeParts; ++j) a[i][j] += weight * parts[i] * parts[j];
        b[i] += weight * parts[i];
      }
    }
    factors = solve_bounded(a, b, factors);
  }
  return factors;
}

std::vector<Row> rows_of(ModelParameters parameters, const DeviceFacts& device,
                         const std::vector<RatedSample>& samples) {
  parameters.factors = {1, 1, 1, 1};
  std::vector<Row> rows;
  rows.reserve(samples.size());
  for (const auto& [s, best_us] : samples) {
    const ModelledTime time = modelled_time(parameters, {device, s->problem, s->shape}, s->config, s->resident);
    rows.push_back({{time.start / s->us, time.stream / s->us, time.segments / s->us, time.merge / s->us},
                    std::pow(best_us / s->us, kInterest)});
  }
  return rows;
}

ModelParameters with_rates(ModelParameters parameters, const DeviceFacts& device,
                           std::span<const std::pair<std::int64_t, double>> read_limits) {
  double best_rate = 0;
  for (const auto& [bytes, us] : read_limits) {
    // Small reads are all latency, and those that fit into the L2 say nothing about memory.
    if (us > 0 && bytes > 2 * device.l2_bytes) best_rate = std::max(best_rate, static_cast<double>(bytes) / us);
  }
  if (best_rate > 0) parameters.memory_rate = best_rate;
  return parameters;
}

}  // namespace

ModelParameters CostModel::of(const KernelSpec& spec) const {
  ModelParameters parameters = device;
  if (const auto family = families.find(measured_family_of(spec)); family != families.end())
    parameters.factors = family->second;
  if (const auto kernel = kernels.find(kernel_name(spec)); kernel != kernels.end()) parameters.factors = kernel->second;
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
  const auto fitted = [&](const PartFactors& above, double spread, const std::vector<RatedSample>& of) {
    return fit_level(above, spread, rows_of(model.device, device, of));
  };
  model.device.factors = fitted(prior.factors, kDeviceSpread, all);
  for (const auto& [family, of_family] : by_family)
    model.families[family] = fitted(model.device.factors, kFamilySpread, of_family);
  for (const auto& [name, of_kernel] : by_kernel) {
    const MeasuredFamily family = measured_family_of(of_kernel.front().sample->config.spec);
    model.kernels[name] = fitted(model.families.at(family), kKernelSpread, of_kernel);
  }
  return model;
}

double model_error(const CostModel& model, const DeviceFacts& device, std::span<const ModelSample> samples) {
  std::vector<double> errors;
  for (const ModelSample& s : samples) {
    if (s.us > 0) {
      const double us = predict_us(model.of(s.config.spec), {device, s.problem, s.shape}, s.config, s.resident);
      errors.push_back(std::abs(us / s.us - 1));
    }
  }
  return errors.empty() ? 0 : median(errors);
}

}  // namespace v1
}  // namespace leanattn
