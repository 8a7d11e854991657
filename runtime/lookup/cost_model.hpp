// cost_model.hpp -- a formula for the time of (device, problem, shape, config). The tuner ranks candidates with it
// before anything runs, and look-ups rank the grids of untuned shapes. Pure functions of plain data; any thread.
//
//   time = start + stretch * memory + wait * excess + segment * segments + fix-up
//   memory: all bytes of KV, and a share of those of q and O, over the memory's rate. Tensor copies bring whole runs of
//           pages and, of ragged batches, half a copy more for each context. What several row blocks read comes from L2
//           where the schedule has them together, and else from memory.
//   excess: how much longer than KV alone would take the busiest SM takes for its own bytes, summed over the waves. By
//           Little's law an SM pulls at most its bytes in flight (CTAs x warps x stages x KV of one step) over the time
//           until a stage is filled again. A warp takes some time for each of its steps, and of many query rows an SM
//           attends to so many tokens in a microsecond and no more. CTAs of later waves have to start and to end. A
//           dependent launch that leaves a part of the room for CTAs free delays the launch after it.
//   segments: the segments of the busiest CTA after its first, and a tenth of the refills of a ring of one stage. From
//           the fourth on they count by 0.6 where an SM has three CTAs or more at once; not with load paths tensor and
//           ldg, nor over latent caches.
//   fix-up: a constant where output tiles have several contributors, a cost for each merged partial, and a constant for
//           the second level of a ticket tree.
// The part of the schedule is exact for batches of equal lengths (templates/line/schedule.cuh), and an average for
// ragged ones. Rates and latency are facts of the device. Look-ups take the default costs; a session of the tuner fits
// those of load paths and kernels to its trials (tuner/model/cost_model_fit.hpp).
#pragma once

#include <array>
#include <cstdint>

#include "generator/kernel_layout.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// Microseconds, except for stretch and wait, which are factors. The defaults are those of an H200.
struct Costs {
  double start = 3.8;       ///< launch, schedule, first bytes
  double stretch = 1.06;    ///< of the time at the memory's rate: measured over ideal
  double wait = 0.8;        ///< of what the busiest SM takes beyond that: measured over ideal
  double segment = 0.9;     ///< for each segment of the busiest CTA after its first: the pipeline drains and refills
  double fix_up = 0.35;     ///< once, when output tiles are shared
  double partial = 0.1;     ///< for each partial, when they are merged one after the other
  double tree_level = 0.4;  ///< once, when partials merge in two levels

  bool operator==(const Costs&) const = default;
};
/// The microseconds by which this launch starts sooner than an ordinary one, because it overlaps with the one before
/// it: while a dependent launch waits, only a producer warp goes on. CTAs that wait for each other hold their SMs
/// longer, and without a producer warp they save nothing.
double saved_at_start(const KernelSpec& spec);
inline constexpr std::size_t kCosts = 7;
std::array<double, kCosts> as_array(const Costs& costs);
Costs costs_of(const std::array<double, kCosts>& values);

/// Rates in bytes per microsecond (10^6 B/s).
struct ModelParameters {
  double memory_rate = 4.6e6;  ///< all SMs together
  double sm_rate = 76e3;       ///< the most that one SM pulls while the others pull, too
  double latency = 1.5;        ///< microseconds that a memory access takes under load
  Costs costs;

  bool operator==(const ModelParameters&) const = default;
};

/// Guesses for a device that was not measured, from its generation, the size of its memory and the number of SMs.
ModelParameters default_parameters(const DeviceFacts& device);
/// The same for one kernel, whose load path, cache and kind of launch have costs of their own. Look-ups go by these.
/// They are those of an H200 and some of an H100, with the rates of `device`.
ModelParameters default_parameters(const DeviceFacts& device, const KernelSpec& spec);

/// What the model knows of one launch: the coefficients of the fitted costs.
struct ModelFeatures {
  double memory = 0;    ///< microseconds of all KV and a share of q and O at the memory's rate
  double excess = 0;    ///< microseconds that the busiest SM takes beyond those of KV
  double segments = 0;  ///< of the busiest CTA, after its first
  double hidden = 0;    ///< of these: so many take no time, because other CTAs on the SM stream meanwhile
  double shared = 0;    ///< 1 when an output tile has several contributors
  double partials = 0;  ///< so many would take as long as the merge does, if they were merged one after the other
  double tree = 0;      ///< 1 when partials merge in two levels
  double refills = 0;   ///< of registers or a ring of one stage, which drain and refill as at a new segment
  bool idle = false;    ///< more than an eighth of the SMs have no CTA
};
std::array<double, kCosts> as_array(const ModelFeatures& features);

/// How a grid cuts the line: output tiles stay whole, are cut evenly, or are crossed by ranges; and whether SMs stay
/// idle. The model's error differs more between these kinds than between grids of one kind.
enum class GridKind { whole, even, crossing, idle_whole, idle_even, idle_crossing };
inline constexpr std::array kGridKinds = {GridKind::whole,      GridKind::even,      GridKind::crossing,
                                          GridKind::idle_whole, GridKind::idle_even, GridKind::idle_crossing};
constexpr bool leaves_idle(GridKind kind) { return kind >= GridKind::idle_whole; }
GridKind kind_of(const ModelFeatures& features);

/// The features of one kernel at one shape, for any grid. What grids have in common is worked out once.
class LaunchModel {
 public:
  /// resident: CTAs of this kernel that one SM holds (>= 1). Problem, shape and spec must be valid. Parameters and spec
  /// must outlive this.
  LaunchModel(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
              const Shape& shape, const KernelSpec& spec, int resident);
  ModelFeatures features(std::int64_t grid) const;

 private:
  /// How many times a grid reads KV from memory: more than once where several row blocks do so at different times.
  double reads_of_kv(std::int64_t grid) const;

  const ModelParameters& parameters_;
  const KernelSpec& spec_;
  KernelLayout layout_;
  int readers_ = 1;  // row blocks that read the KV of a head each at a time of their own
  std::int64_t sms_, held_;
  std::int64_t tiles_ = 1, tiles_per_output_ = 1, step_tokens_ = 1;
  double token_bytes_ = 0, tokens_per_output_ = 1, bytes_ = 0, rows_bytes_ = 0, l2_bytes_ = 0, attended_rate_ = 1,
         warp_step_us_ = 0;
};

/// The same for one grid.
ModelFeatures model_features(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                             const Shape& shape, const Config& config, int resident);

/// Microseconds.
double predict_us(const ModelParameters& parameters, const ModelFeatures& features);
double predict_us(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                  const Shape& shape, const Config& config, int resident);

}  // namespace v1
}  // namespace leanattn
