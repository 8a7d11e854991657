// tune.hpp -- tuning: candidates -> compile log -> model ranking -> oracle check -> interleaved race -> trials and
// winners. One call at a time per process, from any one thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/cubin_db.hpp"
#include "cache/tuning_db.hpp"
#include "runtime/device.hpp"
#include "runtime/problem.hpp"
#include "tuner/worker_options.hpp"

namespace leanattn {
inline namespace v1 {

enum class L2Policy { cold, warm };

/// What to tune, and within which limits. A problem with pdl is tuned for launches that follow each other with
/// programmatic dependent launch: every candidate has it, and a time is that of one link of such a chain.
struct TuneRequest {
  DecodeProblem problem;
  std::vector<Shape> shapes;
  int device = 0;
  L2Policy policy = L2Policy::cold;
  std::optional<std::chrono::milliseconds> budget;  ///< over all shapes; kept, with the best answer so far
  std::vector<double> weights;  ///< of the shapes, for their shares of the budget; empty: equal ones
  bool resume = false;          ///< skip candidates that were tried with this library revision, driver and NVRTC
  bool revalidate = false;      ///< no search: measure the stored winners, what ran them close and the defaults again
  bool dry_run = false;         ///< say what would be tried; touch nothing
  int compile_threads = 0;      ///< 0: one per core
  std::string command;          ///< recorded with the session
};

/// One line's worth of progress. `best_us` is 0 until something was measured.
struct TuneProgress {
  Shape shape;
  int device = -1;  ///< ordinal, where several are tuned at once; else -1
  int shape_index = 0, shape_count = 0;
  std::string phase;        ///< "screen", "sweep", "refine", "race", "confirm"; "revalidate"; offline: "compile"
  std::string candidate;    ///< short text of the candidate in hand
  int done = 0, total = 0;  ///< within the phase
  double best_us = 0;
  double elapsed_s = 0, eta_s = 0;
};
using ProgressSink = std::function<void(const TuneProgress&)>;

/// The answer for one shape.
struct TunedShape {
  Shape shape;
  Config winner;
  double median_us = 0, low_us = 0, high_us = 0;
  double read_limit_us = 0;  ///< measured on this device for the same bytes
  double default_us = 0;     ///< the untuned default configuration, same race
  double gpu_seconds = 0;    ///< spent checking and timing candidates
  int candidates = 0, compiled = 0, rejected = 0, incorrect = 0, raced = 0;
  std::string neighbours;  ///< who else was on the GPU meanwhile, in words; empty when nobody
  bool finished = true;    ///< false: the budget or an interrupt cut the search short
};

struct TuneSummary {
  DeviceFacts device;
  std::vector<TunedShape> shapes;
  double seconds = 0;
  bool interrupted = false;
};

/// Tunes on the GPU request.device, from this process: a kernel that breaks the CUDA context ends the session, one that
/// hangs never does. Every trial is committed as it ends. `cancel` (may be null) is polled; when set, the best so far
/// is kept and interrupted is true. Errors: no_driver, no_device, nvrtc_missing, invalid_argument, unsupported (pdl
/// before sm_90), database errors, context_lost.
Result<TuneSummary> tune(const TuneRequest& request, TuningDb& db, CubinCache* cubins, const ProgressSink& progress,
                         const std::atomic<bool>* cancel);

/// What the devices of one model found, which share the shapes among them.
struct ModelSummary {
  TuneSummary summary;  ///< `device` is the first of them
  std::vector<int> ordinals;
  std::vector<std::pair<int, Error>> failures;  ///< of devices that gave up, by ordinal; the others did their shapes
  std::vector<std::string> warnings;            ///< of the database
};
/// Another connection to the one database that all devices write to. Called from the devices' threads.
using OpenTuningDb = std::function<Result<std::unique_ptr<TuningDb>>()>;

/// Tunes on all of these devices at once, each in a worker process: whatever a candidate does costs that candidate
/// only. Equal devices (one DeviceModel) split the shapes and share what is compiled; different ones tune all shapes,
/// each for itself. request.device is ignored. Progress comes from one thread at a time. Errors: as tune(), of the
/// first device when all of them failed; those that failed beside others are in `failures`.
Result<std::vector<ModelSummary>> tune_in_workers(const TuneRequest& request, std::span<const int> ordinals,
                                                  const WorkerOptions& workers, const OpenTuningDb& open_db,
                                                  const ProgressSink& progress, const std::atomic<bool>* cancel);

/// One candidate of the offline part.
struct OfflineCandidate {
  Config config;
  bool accepted = false;
  std::string reason;  ///< why not
  int registers = 0, spill_bytes = 0, shared_bytes = 0, resident_ctas = 0;
  double compile_ms = 0;
  double predicted_us = 0;  ///< model's ranking
};
struct OfflineShape {
  Shape shape;
  std::vector<OfflineCandidate> candidates;
};  ///< candidates sorted by predicted_us, rejected last

/// The part that needs no GPU: generate, compile, read the log, occupancy, model ranking; cubins are stored.
/// Errors: nvrtc_missing, invalid_argument, unsupported.
Result<std::vector<OfflineShape>> tune_offline(const TuneRequest& request, const DeviceFacts& device,
                                               CubinCache* cubins, const ProgressSink& progress,
                                               const std::atomic<bool>* cancel);

}  // namespace v1
}  // namespace leanattn
