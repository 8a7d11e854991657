// tune_output.hpp -- what `leanattn tune` prints: winners that were measured, or candidates that were compiled and
// ranked; as tables or as JSON. Main thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cli/shape_flags.hpp"
#include "runtime/device.hpp"
#include "tuner/tune.hpp"

namespace leanattn {
inline namespace v1 {

/// Prints a document, or adds it to `tunings`: where several works are tuned, their documents become one, which is
/// printed at the end.
void put(nlohmann::ordered_json document, nlohmann::ordered_json* tunings);

/// "NVIDIA H200 (devices 0, 1), ...: tuned in 12.3 s, cold L2" and the table below it.
void print_model(const Workload& workload, const TuneRequest& request, const ModelSummary& model);
/// One document for GPUs of one model, as ever; of several models each has its own in a list.
void print_winners_json(const Workload& workload, const std::vector<ModelSummary>& models,
                        nlohmann::ordered_json* tunings);

/// The first candidates of each shape by the model.
void print_candidates(const std::vector<OfflineShape>& shapes);
/// All of them.
void print_candidates_json(const Workload& workload, const DeviceFacts& facts, const std::vector<OfflineShape>& offline,
                           bool interrupted, nlohmann::ordered_json* tunings);

}  // namespace v1
}  // namespace leanattn
