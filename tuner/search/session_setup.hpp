// session_setup.hpp -- SessionSetup: what stays the same during a tuning session and all of its phases use. One
// thread, the session's. Internal to tuner/search.
#pragma once

#include <atomic>
#include <limits>
#include <string_view>
#include <vector>

#include "tuner/backend/backend.hpp"
#include "tuner/backend/compile_pool.hpp"
#include "tuner/search/search_effort.hpp"
#include "tuner/search/trial_writer.hpp"
#include "tuner/search/tune_progress.hpp"
#include "tuner/search/tune_request.hpp"

namespace leanattn {
inline namespace v1 {

/// Everything that is referred to outlives the session.
struct SessionSetup {
  const TuneRequest& request;
  const DeviceFacts& device;
  DeviceModel device_model;
  TuneBackend& backend;
  TuningDb& db;  ///< may be used only after trials.drain()
  TrialWriter& trials;
  CompilePool& compiles;
  SearchEffort effort;
  const Environment& environment;  ///< a resumed session counts trials of the same software only
  const ProgressSink& progress;
  const std::atomic<bool>* cancel = nullptr;
  std::vector<DecodeStep> steps = {};  ///< of the request's shapes, in its order
  /// Of each shape of the request, what an engine tried to launch before the session, in its order.
  std::vector<std::vector<Config>> looked_up = {};
  double started_s = 0;                                     ///< on the backend's clock
  double ends_s = std::numeric_limits<double>::infinity();  ///< when the budget is spent

  bool cancelled() const { return cancel != nullptr && cancel->load(); }
  std::string_view policy() const { return to_string(request.policy); }
};

}  // namespace v1
}  // namespace leanattn
