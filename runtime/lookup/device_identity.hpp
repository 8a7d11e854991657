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

/// The part of current_environment() that decides whether a winner is stale (same_software). nullopt for a device that
/// this machine does not have.
std::optional<Environment> current_software(const DeviceFacts& device);

}  // namespace v1
}  // namespace leanattn
