// model_fit.hpp -- the cost model's costs from measured trials. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/tuning_db.hpp"
#include "runtime/cost_model.hpp"

namespace leanattn {
inline namespace v1 {

/// Kernels that load and merge in the same way.
struct Family {
  LoadPath load = LoadPath::ldg;
  FixUp fixup = FixUp::ticket;

  auto operator<=>(const Family&) const = default;
};
inline Family family_of(const KernelSpec& spec) { return {spec.load, spec.fixup}; }

/// Costs as fitted to one problem's trials on one device: of the device, of each family and of each kernel that was
/// measured.
struct CostModel {
  ModelParameters device;
  std::map<Family, ModelParameters> families;
  std::map<std::string, Costs> kernels;  ///< by kernel_name

  /// With the costs of this kernel, else of its family, else of the device.
  ModelParameters of(const KernelSpec& spec) const;
};

/// Of a device nobody measured.
inline CostModel default_model(const DeviceFacts& device) {
  return {.device = default_parameters(device), .families = {}, .kernels = {}};
}

/// One measured launch.
struct ModelSample {
  DecodeProblem problem;
  Shape shape;
  Config config;
  int resident = 1;
  double us = 0;
};

/// What was measured for a problem on a device model, as far as this version understands it.
Result<std::vector<ModelSample>> measured_samples(TuningDb& db, const DeviceModel& model, const DeviceFacts& device,
                                                  const DecodeProblem& problem, const char* policy);

/// Least squares of relative errors, level by level: the device's costs pulled towards `prior`, each family's towards
/// the device's, each kernel's towards its family's. A level with few samples thus stays near the one above, and none
/// is negative. Samples that fit badly are weighted down. read_limits: (bytes, us) of pure reads on this device; they
/// give the memory rate. Fewer than eight samples change the rate only.
CostModel fit_model(const ModelParameters& prior, const DeviceFacts& device, std::span<const ModelSample> samples,
                    std::span<const std::pair<std::int64_t, double>> read_limits);

/// Median of |predicted / measured - 1|; 0 for no samples.
double model_error(const CostModel& model, const DeviceFacts& device, std::span<const ModelSample> samples);

}  // namespace v1
}  // namespace leanattn
