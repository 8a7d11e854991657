// refine.hpp -- the refinement, the third phase of a shape's search: neighbours of the best kernels, and other segment
// costs and L2 promotions of the best configurations. One thread, the session's. Internal to tuner/search.
#pragma once

#include "tuner/search/measurer.hpp"
#include "tuner/search/model_trust.hpp"

namespace leanattn {
inline namespace v1 {

/// `timed` with the neighbours of the best kernels, with their twins that have the other fix-up, and in the next
/// generation with the neighbours of those that are the best then. Stops early, without an error, when `until_s` has
/// come or the caller has cancelled. Errors: those of the backend that end a session.
Result<TimedCandidates> refine(const ShapeContext& context, const CostModel& model, const ModelTrust& trust,
                               Measurer& measurer, TimedCandidates timed, double until_s);

/// `timed` with the best candidates at smaller and larger segment costs: what a segment costs depends on the device.
/// Only a ragged shape has anything to balance with them. Stops early and errors: as refine().
Result<TimedCandidates> try_segment_costs(const ShapeContext& context, Measurer& measurer, TimedCandidates timed,
                                          double until_s);

/// `timed` with the best candidates of load path tensor at the other L2 promotion. It compiles nothing. Stops early and
/// errors: as refine().
Result<TimedCandidates> try_l2_promotions(const ShapeContext& context, Measurer& measurer, TimedCandidates timed,
                                          double until_s);

}  // namespace v1
}  // namespace leanattn
