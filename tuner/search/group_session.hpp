// group_session.hpp -- tuning of groups: sessions for the part of one rank alone, and then one in the group. One thread
// calls them; docs/how-tuning-works.md says why it goes in this order. Internal to tuner/search and its tests.
#pragma once

#include <span>

#include "tuner/search/devices.hpp"

namespace leanattn {
inline namespace v1 {

/// The request for the part of one rank alone. It resumes: what is known of it with today's software is not measured
/// again. It has a share of the budget.
TuneRequest part_request(const TuneRequest& request);
/// The same without the shapes that have a winner which was measured with this software. Errors: database errors.
Result<TuneRequest> part_request_of_untuned(const TuneRequest& request, const DeviceFacts& device,
                                            const Environment& environment, TuningDb& db);
/// The request for the group itself: its problem says which link the ranks have, and the budget is what is left, or
/// the share that is kept for it. seconds: those that the part has taken. Errors: unsupported (the ranks' GPUs are not
/// of one device model).
Result<TuneRequest> group_request(const TuneRequest& request, std::span<const DeviceFacts> devices, double seconds);

/// tune() of a problem of a group, in this process.
Result<TuneSummary> tune_group(const TuneRequest& request, const DeviceFacts& first, const SearchEffort& effort,
                               TuningDb& db, CubinCache* cubins, const ProgressSink& progress,
                               const std::atomic<bool>* cancel);

/// tune_in_workers() of a problem of a group. devices: those of request.rank_devices, each once, rank 0's first. The
/// summary is that of the group.
Result<std::vector<ModelSummary>> tune_group_devices(const TuneRequest& request, std::span<const DeviceToTune> devices,
                                                     const WorkerOptions& workers, const OpenTuningDb& open_db,
                                                     const SearchEffort& effort, const ProgressSink& progress,
                                                     const std::atomic<bool>* cancel);

}  // namespace v1
}  // namespace leanattn
