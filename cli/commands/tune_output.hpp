// tune_output.hpp -- prints the winners that `leanattn tune` measured, or the candidates that it compiled and ranked,
// as tables or as JSON. Main thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cli/flags/shape_flags.hpp"
#include "runtime/cuda/device.hpp"
#include "tuner/search/tune.hpp"

namespace leanattn {
inline namespace v1 {

/// Prints a document; adds it to `tunings` instead if that is not null. The documents of several works become one in
/// this way, which is printed at the end.
void put(nlohmann::ordered_json document, nlohmann::ordered_json* tunings);

/// Prints "NVIDIA H200 (devices 0, 1), ...: tuned in 12.3 s, cold L2" and the table below it.
void print_model(const Workload& workload, const TuneRequest& request, const ModelSummary& model);
/// Puts the winners as one document. With GPUs of several models the document is a list with one document for each.
void print_winners_json(const Workload& workload, const std::vector<ModelSummary>& models,
                        nlohmann::ordered_json* tunings);

/// Prints which GPU was assumed, and of each shape the candidates that the cost model ranks first: one line for those
/// that it cannot tell apart.
void print_candidates(const Workload& workload, const DeviceFacts& facts, const std::vector<OfflineShape>& shapes,
                      bool dry_run);
/// How a run without a GPU went.
struct OfflineRun {
  bool dry_run = false, interrupted = false;
  std::string not_kept = {};  ///< why kernels that were compiled are not in cubin.db; empty where all are
};
/// Puts all candidates as one document.
void print_candidates_json(const Workload& workload, const DeviceFacts& facts, const std::vector<OfflineShape>& offline,
                           const OfflineRun& run, nlohmann::ordered_json* tunings);

}  // namespace v1
}  // namespace leanattn
