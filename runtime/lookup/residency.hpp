// residency.hpp -- how many registers a kernel needs and gets, and how many of its CTAs an SM holds, for as long as the
// compiler has not said so. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "runtime/cuda/device.hpp"

namespace leanattn {
inline namespace v1 {

/// The registers that the launch bounds leave to a thread.
int register_limit(const KernelSpec& spec);
/// The registers below which a kernel surely spills, as its family says.
int least_registers(const KernelSpec& spec);

/// Whether the launch bounds leave fewer than those.
bool surely_spills(const KernelSpec& spec);

/// A guess of how many CTAs one SM will hold. At least 1.
int guess_resident(const DeviceFacts& device, const KernelSpec& spec);

/// More CTAs than this are never resident on the device at once, however few registers the kernel takes.
std::int64_t most_resident(const DeviceFacts& device, const KernelSpec& spec);

}  // namespace v1
}  // namespace leanattn
