// group_screen.hpp -- the screen of a shape's search in a group: what is best for a rank's part alone is timed on all
// ranks together. One thread, the session's. Internal to tuner/search.
#pragma once

#include "tuner/search/earlier_results.hpp"
#include "tuner/search/session_knowledge.hpp"

namespace leanattn {
inline namespace v1 {

/// Checks and times, in the group:
///   1. earlier winners of the group, and the kernels that were fastest for the part alone, with the grids that they
///      were fastest with, cut to what is resident beside the other ranks; the default comes second among these;
///   2. the fastest of these with the other fix-up, and with further grids that the model likes.
/// Kernels that send columns in another order than the default's are left out, because ranks need one order. Stops
/// early, without an error, when `until_s` has come or the caller has cancelled. Errors: launch_failed (no candidate
/// passed its check; the message has the last reason), database errors, those of the backend that end a session.
/// Adds to `timed`, which is returned.
Result<TimedCandidates> screen_in_group(const ShapeContext& context, const EarlierResults& earlier,
                                        const SessionKnowledge& knowledge, Measurer& measurer, TimedCandidates timed,
                                        double until_s);

/// The configuration with no more CTAs than are resident beside the other ranks on the GPU.
Config cut_for_group(const ShapeContext& context, Config config, const CompiledSpec& compiled);

}  // namespace v1
}  // namespace leanattn
