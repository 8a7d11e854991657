// offline.hpp -- tune_offline: the part of tuning that needs no GPU. One call at a time, from any thread; it starts
// threads that compile.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "tuner/search/tune_progress.hpp"
#include "tuner/search/tune_request.hpp"

namespace leanattn {
inline namespace v1 {

/// A candidate that was compiled and ranked, but not measured.
struct OfflineCandidate {
  Config config;
  bool accepted = false;
  std::string reason;  ///< why it was not accepted
  int registers = 0, spill_bytes = 0, shared_bytes = 0, resident_ctas = 0;
  double compile_ms = 0;
  double predicted_us = 0;  ///< by the cost model, which ranks the candidates
};
struct OfflineShape {
  Shape shape;
  std::vector<OfflineCandidate> candidates;  ///< by predicted_us; those that were not accepted come last
  int skipped = 0;                           ///< candidates that the budget's end or an interrupt left out
};

/// Candidates that the cost model cannot tell apart.
struct OfflineTie {
  std::size_t first = 0, count = 0;  ///< in OfflineShape::candidates
};
/// The accepted candidates in groups, the fastest first. A group's predictions lie within kModelResolution
/// (tuner/model/search_space.hpp) of its first.
std::vector<OfflineTie> model_ties(const OfflineShape& shape);

/// Generates and compiles candidates, reads what the compiler says of them, and ranks them by the cost model. The
/// cubins are stored. A dry run compiles nothing, starts no thread and says nothing of its progress. Errors:
/// nvrtc_missing, invalid_argument, unsupported.
Result<std::vector<OfflineShape>> tune_offline(const TuneRequest& request, const DeviceFacts& device,
                                               CubinCache* cubins, const ProgressSink& progress,
                                               const std::atomic<bool>* cancel);

}  // namespace v1
}  // namespace leanattn
