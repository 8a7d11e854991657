// time_parts.hpp -- computes TimeParts: where a winner's time goes by the cost model. Internal to tuner/report. Pure
// functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/cuda/device.hpp"
#include "runtime/lookup/cost_model.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The facts of a GPU as far as its device model says. Errors: those of facts_for_arch and parse_arch.
Result<DeviceFacts> facts_of(const DeviceModel& model);

/// The number of CTAs of a kernel that one SM holds, at least 1. `registers` are those of a thread; 0: unknown.
int resident_ctas(const DeviceFacts& device, const KernelSpec& spec, int registers);

/// The parts of a winner's median, and how its grid uses the GPU. `resident` is the number of CTAs that one SM holds.
TimeParts time_parts(const ModelParameters& parameters, const DeviceFacts& device, const ReportedWinner& winner,
                     int resident);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
