// report_parts.hpp -- where a winner's time goes, by the schedule model fitted to the trials around it. For report.cpp.
// Pure functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/cost_model.hpp"
#include "runtime/device.hpp"
#include "tuner/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The GPU of a database row as far as the row says. Errors: those of facts_for_arch and parse_arch.
Result<DeviceFacts> facts_of(const DeviceModel& model);

/// CTAs of a kernel with this many registers a thread (0: unknown) that one SM holds; at least 1.
int resident_ctas(const DeviceFacts& device, const KernelSpec& spec, int registers);

/// The parts of `winner`'s median and what its grid does to the GPU.
TimeParts time_parts(const ModelParameters& parameters, const DeviceFacts& device, const ReportedWinner& winner,
                     int resident);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
