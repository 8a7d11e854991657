// recurrent_session.hpp -- RecurrentSession: what all sizes of a step share while operation `recurrent` is tuned, and
// how trials are kept. One thread, the session's. Internal to tuner/search.
#pragma once

#include <atomic>
#include <span>
#include <string>

#include "tuner/backend/recurrent_backend.hpp"
#include "tuner/search/recurrent_tune.hpp"
#include "tuner/search/trial_writer.hpp"

namespace leanattn {
inline namespace v1 {

struct RecurrentSession {
  const RecurrentTuneRequest& request;
  const DeviceFacts& device;
  const DeviceModel model;
  RecurrentBackend& backend;
  TuningDb& db;
  TrialWriter& trials;
  const RecurrentProgressSink& progress;
  const std::atomic<bool>* cancel;

  bool cancelled() const { return cancel != nullptr && cancel->load(std::memory_order_relaxed); }
  void report(const char* phase, int batch, int done, int total) const {
    if (progress) progress({phase, batch, done, total});
  }
  RecurrentSpec spec_of(const RecurrentTunables& tunables) const {
    return {.arch = device.arch, .problem = request.problem, .tunables = tunables};
  }
};

/// What is kept of a candidate, or of the copy beside it.
struct RecurrentTrial {
  int batch = 1;
  std::string config;
  std::string kernel_revision = {};
  int registers = 0;
  TrialStatus status = TrialStatus::ok;
  std::string reason = {};
  std::span<const double> samples = {};
  std::string noise = {};
};

/// The same of a kernel.
RecurrentTrial trial_of(const RecurrentSpec& spec, int batch, TrialStatus status, std::string reason);
void keep(const RecurrentSession& session, RecurrentTrial trial);

}  // namespace v1
}  // namespace leanattn
