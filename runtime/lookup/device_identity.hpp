// device_identity.hpp -- a GPU and its software as the tuning database names them. Any thread.
#pragma once

#include <optional>

#include "cache/tuning/tuning_db.hpp"
#include "runtime/cuda/device.hpp"

namespace leanattn {
inline namespace v1 {

/// The device model under which the database keeps what is measured on this GPU. GPUs that are equal to the tuner have
/// equal ones.
DeviceModel device_model(const DeviceFacts& device);

/// Driver, NVRTC, clocks, power limit and ECC as they are now. The driver's fields are 0 where there is no driver.
Environment current_environment(const DeviceFacts& device);

/// An environment with the kernels of this library, which decide together whether a winner is stale.
Software with_kernels(std::optional<Environment> environment);
/// What runs on this device. It has no environment for a device that this machine does not have.
Software current_software(const DeviceFacts& device);

}  // namespace v1
}  // namespace leanattn
