// launch_phases.hpp -- where the time of one tuned launch goes. One thread at a time; needs a GPU.
#pragma once

#include <nlohmann/json.hpp>

#include "cache/cubin/cubin_db.hpp"
#include "cache/layers.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {

/// A row of "launches" in phases.json: the launch that a look-up with these winners chooses for the shape, beside the
/// read limit, beside itself without its merge, and with stamps, which say when its CTAs reach each moment. The
/// unchanged kernel is compared with the oracle first. Errors: wrong_result, and those of GpuBackend.
Result<nlohmann::ordered_json> launch_phases(const DeviceFacts& device, const DecodeProblem& problem,
                                             const Shape& shape, const LayeredWinners& winners, CubinCache* cubins);

}  // namespace leanattn
