// session_knowledge.hpp -- SessionKnowledge: what a tuning session knows about its device, and learns from shape to
// shape. One thread, the session's. Internal to tuner/search.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tuner/model/cost_model_fit.hpp"

namespace leanattn {
inline namespace v1 {

struct SessionKnowledge {
  ModelParameters prior;             ///< the costs before anything was measured
  std::vector<ModelSample> samples;  ///< what was measured on this device model, by earlier sessions, too
  std::vector<std::pair<std::int64_t, double>> read_limits;  ///< (bytes, us) on this device model
  CostModel model = {};                                      ///< fitted to the samples and read limits
  std::vector<KernelSpec> specs = {};  ///< the kernels to screen, most promising first; searches add what they found

  CostModel fitted(const DeviceFacts& device) const { return fit_model(prior, device, samples, read_limits); }
};

}  // namespace v1
}  // namespace leanattn
