// fitted_costs.hpp -- written by tests/tools/fit_costs from the timings in bench/results. Do not edit.
#pragma once

#include "runtime/lookup/costs.hpp"

namespace leanattn {
inline namespace v1 {

inline constexpr int kFittedClockKhz = 1980000;  ///< of the GPUs that were measured
inline constexpr Costs kFittedCosts{
    .start = {3.28, 3.08, 3.69},
    .work = {0.246, 0.536, 0.0383},
    .step = 0.454,
    .convert = 0.177,
    .lone_row = 0.0538,
    .latency = 1.25,
    .cta = 3.54,
    .segment = 0.644,
    .row = 0.0625,
    .partial = 0.123,
    .exchange = 0.306,
    .dependent = 2.23,
    .late = 0.251,
    .reread = 0.232,
    .sm_rate = 2.97,
};

}  // namespace v1
}  // namespace leanattn
