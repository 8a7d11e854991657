// device_identity.cpp -- from the facts of a GPU to its device model and environment.
#include "runtime/lookup/device_identity.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "generator/generator.hpp"
#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/nvml.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// "1g.18gb" of "NVIDIA H200 MIG 1g.18gb": the driver appends the profile of a MIG slice to the name of the device.
std::string mig_profile(const std::string& device_name) {
  constexpr std::string_view kMark = " MIG ";
  const auto at = device_name.find(kMark);
  return at == std::string::npos ? std::string() : device_name.substr(at + kMark.size());
}

/// That of a configuration's kernel; empty where the library has no such kernel.
std::string revision_of(const std::string& text) {
  if (const auto config = config_from_json(text)) return kernel_revision(config->spec);
  const auto recurrent = recurrent_spec_from_json(text);
  return recurrent ? kernel_revision(*recurrent) : "";
}

Environment software_here(const DeviceFacts& device) {
  Environment environment;
  environment.driver_version = device.driver_version;
  environment.driver_release = device.driver_release;
  environment.nvrtc_version = nvrtc_version(device.arch).value_or("");
  environment.library_revision = generator_revision();
  return environment;
}

}  // namespace

DeviceModel device_model(const DeviceFacts& device) {
  // Drivers differ by some megabytes in the memory that they report for one product. Rounding keeps its winners.
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  return {.name = device.name,
          .arch = to_string(device.arch),
          .sm_count = device.sm_count,
          .l2_bytes = device.l2_bytes,
          .memory_bytes = (device.memory_bytes + kGiB / 2) / kGiB * kGiB,
          .mig_profile = mig_profile(device.name)};
}

Software with_kernels(std::optional<Environment> environment) {
  struct Known {
    std::mutex mutex;
    std::map<std::string, std::string, std::less<>> revisions;
  };
  return {std::move(environment), [known = std::make_shared<Known>()](const std::string& text) {
            // Winners of attention differ mostly in their grids, which come first in the text. Each kernel is read
            // once.
            const std::size_t spec = text.find("\"spec\"");
            const std::string_view kernel = std::string_view(text).substr(spec == std::string::npos ? 0 : spec);
            const std::lock_guard lock(known->mutex);
            auto found = known->revisions.find(kernel);
            if (found == known->revisions.end()) found = known->revisions.emplace(kernel, revision_of(text)).first;
            return found->second;
          }};
}

Software current_software(const DeviceFacts& device) {
  return with_kernels(device.ordinal < 0 ? std::nullopt : std::optional(software_here(device)));
}

Environment current_environment(const DeviceFacts& device) {
  Environment environment = software_here(device);
  environment.clock_khz = device.clock_khz;
  environment.memory_clock_khz = device.memory_clock_khz;
  if (!device.uuid.empty()) environment.power_limit_mw = gpu_state(device.uuid).power_limit_mw;
  environment.ecc = device.ecc;
  return environment;
}

}  // namespace v1
}  // namespace leanattn
