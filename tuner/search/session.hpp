// session.hpp -- a whole tuning session on any TuneBackend: tune() runs it on the GPU, and the tests run it on a
// simulated one. One thread; tune.hpp has the contract of the arguments.
#pragma once

#include <atomic>

#include "cache/tuning/tuning_db.hpp"
#include "tuner/backend/backend.hpp"
#include "tuner/backend/compile_pool.hpp"
#include "tuner/search/search_effort.hpp"
#include "tuner/search/shape_queue.hpp"
#include "tuner/search/tune_progress.hpp"
#include "tuner/search/tune_request.hpp"
#include "tuner/search/tune_summary.hpp"

namespace leanattn {
inline namespace v1 {

/// What a session shares with those that run on equal devices at the same time: the shapes that are still to be tuned,
/// and the kernels that are being compiled.
struct SessionWork {
  ShapeQueue& shapes;
  CompilePool& compiles;
};

/// Tunes the shapes that it gets from `work`, which other threads may share. The summary has all shapes of the request,
/// in its order; for those that this session did not tune it says what known_answer() says. A shape that does not fit
/// into the memory is left out, and the summary says so. One whose tuning fails otherwise goes back into the queue.
/// Errors: as tune(), without out_of_memory.
Result<TuneSummary> run_session(const TuneRequest& request, const DeviceFacts& device, const Environment& environment,
                                TuneBackend& backend, TuningDb& db, const SearchEffort& effort,
                                const ProgressSink& progress, const std::atomic<bool>* cancel, SessionWork work);

/// The same summary; out_of_memory where no shape was searched and one does not fit into the memory.
Result<TuneSummary> or_out_of_memory(Result<TuneSummary> summary);

/// Tunes all shapes of the request. Errors: as tune(); out_of_memory as or_out_of_memory().
Result<TuneSummary> run_session(const TuneRequest& request, const DeviceFacts& device, const Environment& environment,
                                TuneBackend& backend, TuningDb& db, const SearchEffort& effort,
                                const ProgressSink& progress, const std::atomic<bool>* cancel);

/// A dry run: says with how many candidates the search of each shape would start.
TuneSummary plan_session(const TuneRequest& request, const DeviceFacts& device, const SearchEffort& effort);

}  // namespace v1
}  // namespace leanattn
