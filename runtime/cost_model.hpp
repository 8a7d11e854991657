// cost_model.hpp -- an analytic time for (device, problem, shape, config). Ranks candidates for the tuner before
// anything runs, and grids for look-ups of shapes that nobody measured. Pure functions of plain data; any thread.
//
//   time = start + stretch * memory + wait * excess + segments * segment + fix-up
//   memory: all bytes over the memory's rate. excess: how much longer the busiest SM takes for its bytes, wave by wave
//           (with a soft corner). What an SM can pull follows Little's law: bytes in flight (CTAs x warps x stages x KV
//           of one step) over the latency of memory.
//   segments: that the busiest CTA crosses into, and refills of a ring of one stage.
//   fix-up: a constant once an output tile has several contributors, a cost per merged partial, a constant for the
//           second tree level.
// What the schedule does is exact for even batches (templates/schedule.cuh) and an average for ragged ones. Rates and
// latency are facts of the device; the costs are fitted to measured trials, per device, family of kernels and kernel
// (tuner/model_fit.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "runtime/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// Microseconds, except stretch. The defaults are an H200's.
struct Costs {
  double start = 3.8;       ///< launch, schedule, first bytes
  double stretch = 1.06;    ///< time at the memory's rate, measured over ideal
  double wait = 0.8;        ///< what the busiest SM takes beyond that, measured over ideal
  double segment = 0.9;     ///< per segment of the busiest CTA after its first: drain and refill of the pipeline
  double fix_up = 0.35;     ///< once, when output tiles are shared
  double partial = 0.1;     ///< per partial merged in a row
  double tree_level = 0.4;  ///< once, when the merge takes two levels

  bool operator==(const Costs&) const = default;
};
inline constexpr std::size_t kCosts = 7;
std::array<double, kCosts> as_array(const Costs& costs);
Costs costs_of(const std::array<double, kCosts>& values);

/// Rates in bytes per microsecond (10^6 B/s).
struct ModelParameters {
  double memory_rate = 4.6e6;  ///< all SMs together
  double sm_rate = 76e3;       ///< the most one SM pulls while the others pull too, whatever is in flight
  double latency = 1.5;        ///< of a memory access under load, in microseconds
  Costs costs;

  bool operator==(const ModelParameters&) const = default;
};

/// Guesses for a device nobody measured: rates by architecture generation and SM count.
ModelParameters default_parameters(const DeviceFacts& device);

/// What the model sees of one launch: the coefficients of the fitted costs.
struct ModelFeatures {
  double memory = 0;    ///< microseconds of all bytes at the memory's rate
  double excess = 0;    ///< microseconds that the busiest SM takes beyond that
  double segments = 0;  ///< of the busiest CTA, after the first
  double shared = 0;    ///< 1 when an output tile has several contributors
  double partials = 0;  ///< that would take as long as the merge, were they merged one by one
  double tree = 0;      ///< 1 with a second level
  double refills = 0;   ///< of a ring of one stage, or of registers: each drains and fills, as a segment does
  bool idle = false;    ///< SMs have no CTA
};
std::array<double, kCosts> as_array(const ModelFeatures& features);

/// How a grid cuts the line: output tiles whole, in even pieces, or with CTAs that cross from one into the next; and
/// whether it leaves SMs without a CTA. What the model gets wrong differs more between these than from grid to grid.
enum class GridKind { whole, even, crossing, idle_whole, idle_even, idle_crossing };
inline constexpr std::array kGridKinds = {GridKind::whole,      GridKind::even,      GridKind::crossing,
                                          GridKind::idle_whole, GridKind::idle_even, GridKind::idle_crossing};
constexpr bool leaves_idle(GridKind kind) { return kind >= GridKind::idle_whole; }
std::string_view to_string(GridKind kind);
GridKind kind_of(const ModelFeatures& features);

/// resident: CTAs of this kernel that one SM holds (>= 1). Valid problem, shape and config.
ModelFeatures model_features(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                             const Shape& shape, const Config& config, int resident);

/// Microseconds.
double predict_us(const ModelParameters& parameters, const ModelFeatures& features);
double predict_us(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                  const Shape& shape, const Config& config, int resident);

}  // namespace v1
}  // namespace leanattn
