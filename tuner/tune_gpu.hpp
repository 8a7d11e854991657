// tune_gpu.hpp -- GpuBackend: a TuneBackend on a real device. compile() from any thread; everything else, construction
// and destruction included, from one thread, whose current context it makes the device's.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/cubin_db.hpp"
#include "runtime/device.hpp"
#include "runtime/kernel.hpp"
#include "tuner/decode_case.hpp"
#include "tuner/dependent_chain.hpp"
#include "tuner/measure.hpp"
#include "tuner/read_limit.hpp"
#include "tuner/tune.hpp"
#include "tuner/tune_backend.hpp"

namespace leanattn {
inline namespace v1 {

/// What the search needs to know of a kernel that was compiled for this device. Errors: kernel_rejected (does not fit
/// an SM).
Result<CompiledSpec> fit_on_device(const DeviceFacts& device, const EmittedKernel& emitted,
                                   const CompiledKernel& kernel);

class GpuBackend final : public TuneBackend {
 public:
  /// cubins may be null; it must outlive the backend. Errors: no_driver, no_device, nvrtc_missing, out_of_memory,
  /// context_lost.
  static Result<std::unique_ptr<GpuBackend>> create(const DeviceFacts& device, const DecodeProblem& problem,
                                                    L2Policy policy, CubinCache* cubins);

  Result<CompiledSpec> compile(const KernelSpec& spec) override;
  Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) override;
  Result<double> begin_shape(const Shape& shape) override;
  Result<CheckOutcome> check(const Config& config) override;
  Result<RoundTimes> time(std::span<const Config> configs) override;
  double now_s() const override;

  /// begin_shape for requests of exactly these lengths.
  Result<double> begin_lengths(std::vector<int> context_lengths);
  /// The reading kernel that is the sentinel of the current shape.
  const ReadVariant& read_variant() const { return read_limit_->variants()[read_variant_]; }

 private:
  struct Compiled {
    EmittedKernel emitted;
    CompiledKernel kernel;
  };

  GpuBackend(Context context, Stream stream, const DeviceFacts& device, const DecodeProblem& problem, L2Policy policy,
             CubinCache* cubins)
      : context_(std::move(context)),
        stream_(std::move(stream)),
        device_(device),
        problem_(problem),
        policy_(policy),
        cubins_(cubins) {}

  Result<const LoadedKernel*> loaded(const KernelSpec& spec);
  Result<void> reserve_workspace(std::span<const Config> configs);
  Result<const TimedGraph*> graph_of(const Config& config);
  Result<void> choose_read_variant();

  // In the order in which they must be destroyed last: everything below lives in the context.
  Context context_;
  Stream stream_;
  DeviceFacts device_;
  DecodeProblem problem_;
  L2Policy policy_;
  CubinCache* cubins_;
  std::mutex compiled_mutex_;
  std::map<std::string, Compiled> compiled_;  // by kernel_name; guarded by compiled_mutex_
  std::shared_ptr<const OracleKernels> oracle_;
  std::unique_ptr<ReadLimit> read_limit_;
  std::map<std::string, LoadedKernel> kernels_;  // by kernel_name
  std::unique_ptr<DecodeCase> case_;
  std::optional<DependentChain> chain_;  ///< of a problem with pdl
  CheckWorkspace check_workspace_;
  DeviceBuffer workspace_;                    // of timed launches; every graph points into it
  std::map<std::string, TimedGraph> graphs_;  // by config
  std::unique_ptr<TimedGraph> sentinel_;
  std::size_t read_variant_ = 0;
  double read_limit_us_ = 0;
  Rotation rotation_;
  GraphTimer timer_;
  std::string neighbours_;  ///< who else was on the GPU when the shape began
};

}  // namespace v1
}  // namespace leanattn
