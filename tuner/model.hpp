// model.hpp -- an analytic time for (device, problem, shape, config): ranks candidates before anything runs, offline
// and on the GPU. Pure functions of plain data; any thread.
//
//   time = start + stretch * stream + segments * segment + fix-up
//   stream: the busiest SM's bytes over what one SM can pull, or all bytes over the memory's rate, whichever is longer.
//   What an SM
//           can pull follows Little's law: bytes in flight (CTAs x warps x stages x KV of one step) over the latency of
//           memory.
//   fix-up: a constant once an output tile has several contributors, a cost per merged partial, a constant for the
//   second tree level.
// Rates and latency are facts of the device; the five costs are fitted to measured trials (model_fit.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// Times in microseconds, rates in bytes per microsecond (10^6 B/s). The defaults are an H200's, from public
/// measurements.
struct ModelParameters {
  double memory_rate = 4.6e6;  ///< all SMs together
  double sm_rate = 40e3;       ///< the most one SM pulls while the others pull too, whatever is in flight
  double latency = 1.1;        ///< of a memory access under load

  double start = 2.2;       ///< launch, schedule, first bytes
  double stretch = 1.0;     ///< streamed time, measured over ideal
  double segment = 0.7;     ///< per segment of the busiest CTA after its first: drain and refill of the pipeline
  double fix_up = 1.6;      ///< once, when output tiles are shared
  double partial = 0.05;    ///< per partial merged in a row
  double tree_level = 1.0;  ///< once, when the merge takes two levels

  bool operator==(const ModelParameters&) const = default;
};

/// Guesses for a device nobody measured: rates by architecture generation and SM count.
ModelParameters default_parameters(const DeviceFacts& device);

/// What the model sees of one launch. Coefficients of the five fitted costs; `stream` is in microseconds already.
struct ModelFeatures {
  double stream = 0;    ///< ideal streamed time
  double segments = 0;  ///< of the busiest CTA, after the first
  double shared = 0;    ///< 1 when an output tile has several contributors
  double partials = 0;  ///< merged one after the other, at most two tree levels' worth
  double tree = 0;      ///< 1 with a second level
};

/// resident: CTAs of this kernel that one SM holds (>= 1). Valid problem, shape and config.
ModelFeatures model_features(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                             const Shape& shape, const Config& config, int resident);

/// Microseconds.
double predict_us(const ModelParameters& parameters, const ModelFeatures& features);
double predict_us(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                  const Shape& shape, const Config& config, int resident);

/// One measured launch, for the fit.
struct ModelSample {
  DecodeProblem problem;
  Shape shape;
  Config config;
  int resident = 1;
  double us = 0;
};

/// Least squares of relative errors over the samples, pulled towards `prior` (so few samples move little) and kept
/// non-negative. read_limits: (bytes, us) of pure reads on this device; they give the memory rate. Fewer than eight
/// samples change the rate only.
ModelParameters fit_parameters(const ModelParameters& prior, const DeviceFacts& device,
                               std::span<const ModelSample> samples,
                               std::span<const std::pair<std::int64_t, double>> read_limits);

/// Median of |predicted / measured - 1|; 0 for no samples.
double model_error(const ModelParameters& parameters, const DeviceFacts& device, std::span<const ModelSample> samples);

}  // namespace v1
}  // namespace leanattn
