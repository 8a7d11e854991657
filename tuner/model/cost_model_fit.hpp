// cost_model_fit.hpp -- CostModel: how far the cost model is off for a problem on a device, its families of kernels and
// single kernels, fitted to measured launches.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/lookup/cost_model.hpp"
#include "tuner/model/model_sample.hpp"

namespace leanattn {
inline namespace v1 {

/// Kernels that load and merge in the same way.
struct MeasuredFamily {
  LoadPath load = LoadPath::ldg;
  FixUp fixup = FixUp::ticket;

  auto operator<=>(const MeasuredFamily&) const = default;
};
inline MeasuredFamily measured_family_of(const KernelSpec& spec) { return {spec.load, spec.fixup}; }

/// The factors of the parts of time that were fitted to one problem's trials on one device.
struct CostModel {
  ModelParameters device;
  std::map<MeasuredFamily, PartFactors> families;  ///< those that were measured
  std::map<std::string, PartFactors> kernels;      ///< those that were measured, by kernel_name

  /// The parameters for this kernel: with its own factors, else with those of its family, else with the device's.
  ModelParameters of(const KernelSpec& spec) const;
};

/// The model of a device that nobody measured.
inline CostModel default_model(const DeviceFacts& device) {
  return {.device = default_parameters(device), .families = {}, .kernels = {}};
}

/// Least squares of relative errors, level by level: the device's factors are pulled towards `prior`, each family's
/// towards the device's, and each kernel's towards its family's. A level with few samples thus stays near the one above
/// it. No factor is negative, and samples that fit badly are weighted down. read_limits are (bytes, us) of pure reads
/// on this device; they give the memory rate. Fewer than eight samples change the rate only.
CostModel fit_model(const ModelParameters& prior, const DeviceFacts& device, std::span<const ModelSample> samples,
                    std::span<const std::pair<std::int64_t, double>> read_limits);

/// The median of |predicted / measured - 1|; 0 for no samples.
double model_error(const CostModel& model, const DeviceFacts& device, std::span<const ModelSample> samples);

}  // namespace v1
}  // namespace leanattn
