// recurrent_tune.hpp -- tune_recurrent: finds the fastest tunables of operation `recurrent` for steps of several sizes,
// and keeps every trial. One call at a time.
//
// The search space is small enough to try all of it: some tens of kernels, which all sizes share. Each is compared with
// the oracle once. Then all of them race for each size, beside a copy of the same states; the slower ones leave, and
// those that are left are confirmed by samples of their own, with the default beside them.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "cache/tuning/tuning_db.hpp"
#include "generator/recurrent/recurrent_spec.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/problem.hpp"
#include "tuner/search/search_effort.hpp"

namespace leanattn {
inline namespace v1 {

struct RecurrentTuneRequest {
  RecurrentProblem problem;
  std::vector<int> batches;
  int device = 0;  ///< the CUDA ordinal
  L2Policy policy = L2Policy::cold;
  int compile_threads = 0;   ///< 0: one for each core
  std::string command = {};  ///< is kept with the session
  SearchEffort effort = {};  ///< of the race and the confirmation
};

/// What came of one size of a step.
struct TunedRecurrentStep {
  int batch = 1;
  std::optional<RecurrentSpec> winner = {};  ///< as the database has it; nullopt: it has none
  double median_us = 0, low_us = 0, high_us = 0;
  double copy_us = 0;          ///< of one read of the states, and one write of each that is stored, in the same rounds
  RecurrentSpec by_rule;       ///< what default_spec() says
  double by_rule_us = 0;       ///< 0: it was not timed
  int timed = 0;               ///< candidates that took part in the race
  std::string noise = {};      ///< why times should be doubted
  bool finished = false;       ///< false: the caller cancelled before the last round
  std::string no_memory = {};  ///< why nothing was timed, where its states do not fit into the GPU's memory
};

struct RecurrentTuneSummary {
  DeviceFacts device;
  std::vector<TunedRecurrentStep> steps = {};  ///< those that were begun, in the order of the request
  int candidates = 0;                          ///< kernels that were to be tried
  int rejected = 0, incorrect = 0;             ///< of these, that cannot be launched, and that give wrong results
  std::string failure = {};                    ///< why the last of those failed
  double seconds = 0;
  bool interrupted = false;
};

/// How far a tuning is.
struct RecurrentProgress {
  std::string phase;  ///< "check", "race", "confirm"
  int batch = 0;      ///< 0 during the check, which is for all sizes
  int done = 0, total = 0;
};
using RecurrentProgressSink = std::function<void(const RecurrentProgress&)>;

/// Every trial is committed as it ends. When `cancel` (may be null) is set, the best so far is kept where it was
/// compared in some rounds, and `interrupted` is true. A batch that does not fit into the memory is left out. `cubins`
/// and `progress` may be empty. Errors: those of validate(problem), no_driver, no_device, nvrtc_missing, out_of_memory
/// (where no batch fits), launch_failed, context_lost, database errors; trials of before stay.
Result<RecurrentTuneSummary> tune_recurrent(const RecurrentTuneRequest& request, TuningDb& db, CubinCache* cubins,
                                            const RecurrentProgressSink& progress, const std::atomic<bool>* cancel);

/// The batches of the request that have no winner measured with today's driver, NVRTC and kernel. Errors: those of the
/// database.
Result<std::vector<int>> missing_batches(const RecurrentTuneRequest& request, TuningDb& db, const DeviceFacts& device);

/// The config under which the time of a copy is kept among the trials of a step: {"copy":"128x4",...}. It never wins.
bool is_copy_config(std::string_view config);

}  // namespace v1
}  // namespace leanattn
