// fix_up_cost.hpp -- what merging partial results across CTAs costs, per number of contributing CTAs. One thread at a
// time; needs a GPU.
#pragma once

#include <nlohmann/json.hpp>

#include "cache/cubin/cubin_db.hpp"
#include "leanattn/error.hpp"
#include "runtime/cuda/device.hpp"

namespace leanattn {

/// A row of "fix_up" in phases.json. Every CTA has an equal range of tiles, an SM has one CTA, and `contributors` CTAs
/// share each output tile. Timed are the whole kernel and one that stops once its partial results are stored, for both
/// kinds of fix-up; the whole kernel is compared with the oracle first. Errors: wrong_result, and those of GpuBackend.
Result<nlohmann::ordered_json> fix_up_cost(const DeviceFacts& device, int contributors, CubinCache* cubins);

}  // namespace leanattn
