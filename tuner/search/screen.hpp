// screen.hpp -- the screen, the first phase of a shape's search: one sample each of a few grids of many kernels. One
// thread, the session's. Internal to tuner/search.
#pragma once

#include "tuner/search/earlier_results.hpp"
#include "tuner/search/measurer.hpp"
#include "tuner/search/model_trust.hpp"
#include "tuner/search/session_knowledge.hpp"

namespace leanattn {
inline namespace v1 {

struct Screened {
  TimedCandidates timed = {};
  ModelTrust trust = {};
};

/// Times the configurations that have to be beaten (earlier winners and the default), then what won elsewhere, then the
/// kernels of `knowledge`, whose samples `measurer` adds to. The result begins with `timed`. Stops early, without an
/// error, when `until_s` has come or the caller has cancelled. Errors: those of the backend that end a session.
Result<Screened> screen(const ShapeContext& context, const EarlierResults& earlier, const SessionKnowledge& knowledge,
                        Measurer& measurer, TimedCandidates timed, double until_s);

}  // namespace v1
}  // namespace leanattn
