// tune_session.hpp -- a whole tuning session on any TuneBackend: what tune() runs on the GPU and the tests run on a
// simulated one. One thread; see tune.hpp for the contract of every argument.
#pragma once

#include <atomic>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tuner/model_fit.hpp"
#include "tuner/shape_queue.hpp"
#include "tuner/tune.hpp"
#include "tuner/tune_backend.hpp"
#include "tuner/tune_compile.hpp"
#include "tuner/tune_trials.hpp"

namespace leanattn {
inline namespace v1 {

/// How much is tried. The budget cuts this short; it never lengthens it.
struct SearchEffort {
  std::size_t specs = 96;          ///< kernels compiled for the session
  std::size_t grids_per_spec = 3;  ///< timed of each before the promising ones are looked at closely
  std::size_t sweep_specs = 8;     ///< kernels whose every promising grid is timed
  std::size_t refine_specs = 3;    ///< kernels whose neighbours are compiled and timed
  std::size_t twin_specs = 20;     ///< kernels whose twin with the other fix-up is
  int refine_generations = 2;
  std::size_t race_size = 24;  ///< candidates that enter the race
  std::size_t finalists = 4;   ///< that are confirmed, besides the default
  int confirm_rounds_min = 12,
      confirm_rounds_max = 28;  ///< the minimum is more than a race has: it marks a finished search
  bool every_grid = false;      ///< of every kernel and every neighbour, instead of those that the model likes
  double reach = std::numeric_limits<double>::infinity();  ///< with every_grid: predictions above so many times the
                                                           ///< kernel's best are left out all the same
};

/// Specs in proportion to what `threads` compile in a few seconds.
SearchEffort effort_for(int compile_threads);

/// Everything: `specs` kernels (default: all there are) at every useful grid (that is not predicted to take more than
/// `reach` times the kernel's best), a long race, all neighbours of the best. What other searches are measured against.
SearchEffort exhaustive_effort(std::size_t specs = std::numeric_limits<std::size_t>::max(),
                               double reach = std::numeric_limits<double>::infinity());

/// What the searches of one session's shapes share.
struct SessionState {
  const TuneRequest& request;
  const DeviceFacts& device;
  DeviceModel device_model;
  TuneBackend& backend;
  TuningDb& db;
  TrialWriter& trials;
  CompilePool& compiles;
  SearchEffort effort;
  const Environment& environment;                            ///< resume counts trials of the same software only
  ModelParameters prior;                                     ///< before anything was measured
  CostModel model;                                           ///< fitted to `samples`
  std::vector<std::pair<std::int64_t, double>> read_limits;  ///< (bytes, us) on this device model
  std::vector<ModelSample> samples;  ///< measured on this device model, earlier sessions' included
  std::vector<KernelSpec> specs;     ///< to screen, most promising first; shapes add what they found by refining
  const ProgressSink& progress;
  const std::atomic<bool>* cancel = nullptr;
  double started_s = 0;
  double ends_s = std::numeric_limits<double>::infinity();  ///< when the budget is spent

  bool cancelled() const { return cancel != nullptr && cancel->load(); }
  const char* policy() const { return request.policy == L2Policy::cold ? "cold" : "warm"; }
};

/// What a session shares with those that run on equal devices at the same time: the shapes still to tune, and the
/// kernels that are being compiled.
struct SessionWork {
  ShapeQueue& shapes;
  CompilePool& compiles;
};

/// Tunes shape number `index` until `deadline_s`. Errors: context_lost, out_of_memory, database errors.
Result<TunedShape> tune_shape(SessionState& state, int index, double deadline_s);

/// Of a shape that was not reached: what the database says, or the default.
TunedShape known_answer(const TuneRequest& request, const DeviceFacts& device, const Shape& shape, TuningDb& db);

/// Whether the device can do what the request asks for. Errors: unsupported (pdl before sm_90).
Result<void> require_launches(const DeviceFacts& device, const DecodeProblem& problem);

/// The shapes that it gets from `work`, which other threads may share. In the summary they stand at their places in the
/// request, the others as unreached. A shape whose tuning fails is given back. Errors: as tune().
Result<TuneSummary> run_session(const TuneRequest& request, const DeviceFacts& device, const Environment& environment,
                                TuneBackend& backend, TuningDb& db, const SearchEffort& effort,
                                const ProgressSink& progress, const std::atomic<bool>* cancel, SessionWork work);

/// All shapes. Errors: as tune().
Result<TuneSummary> run_session(const TuneRequest& request, const DeviceFacts& device, const Environment& environment,
                                TuneBackend& backend, TuningDb& db, const SearchEffort& effort,
                                const ProgressSink& progress, const std::atomic<bool>* cancel);

/// The dry run: which specs, and how many candidates each shape starts with.
TuneSummary plan_session(const TuneRequest& request, const DeviceFacts& device, const SearchEffort& effort);

/// Errors: invalid_argument, unsupported: of the problem, of a shape, no shapes at all, a budget that is not positive.
Result<void> validate(const TuneRequest& request);

}  // namespace v1
}  // namespace leanattn
