// model_sample.hpp -- ModelSample: a measured launch, to which cost models are fitted. One thread, as the
// database.
#pragma once

#include <string_view>
#include <vector>

#include "cache/tuning/tuning_db.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

struct ModelSample {
  DecodeProblem problem;
  Shape shape;
  Config config;
  int resident = 1;  ///< CTAs that one SM held
  double us = 0;
};

/// What was measured for a problem on a device model, without trials that this version cannot read. Errors: of the
/// database.
Result<std::vector<ModelSample>> measured_samples(TuningDb& db, const DeviceModel& model, const DeviceFacts& device,
                                                  const DecodeProblem& problem, std::string_view policy);

}  // namespace v1
}  // namespace leanattn
