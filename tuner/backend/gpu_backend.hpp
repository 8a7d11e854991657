// gpu_backend.hpp -- GpuBackend: a TuneBackend on a real device. Any thread may call compile(). Everything else,
// construction and destruction included, is called from one thread, and makes the device's context current there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "tuner/backend/backend.hpp"
#include "tuner/measure/graph_timer.hpp"
#include "tuner/measure/read_limit.hpp"
#include "tuner/measure/rotation.hpp"
#include "tuner/oracle/decode_case.hpp"
#include "tuner/oracle/dependent_chain.hpp"

namespace leanattn {
inline namespace v1 {

/// Makes `workspace` twice as large as asked for, so that it seldom grows, and all zero. Stream-ordered.
Result<void> renew_workspace(DeviceBuffer& workspace, std::int64_t bytes, CUstream_st* stream);

class GpuBackend final : public TuneBackend {
 public:
  /// cubins may be null; it must outlive the backend. `memory_bytes` is the most that the K and V of a shape may take;
  /// 0 stands for most of what is free. Errors: no_driver, no_device, nvrtc_missing, out_of_memory,
  /// context_lost.
  static Result<std::unique_ptr<GpuBackend>> create(const DeviceFacts& device, const DecodeProblem& problem,
                                                    L2Policy policy, CubinCache* cubins, std::int64_t memory_bytes = 0);

  Result<CompiledSpec> compile(const KernelSpec& spec) override;
  Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) override;
  Result<double> begin_shape(const Shape& shape) override;
  Result<CheckOutcome> check(const Config& config) override;
  Result<RoundTimes> time(std::span<const Config> configs) override;
  std::optional<CheckOutcome> condemned(const Config& config) const override;
  double now_s() const override;

  /// As begin_shape(), for a batch of exactly these requests.
  Result<double> begin_requests(StepRequests requests);
  /// Has begin_shape() take these requests, whose shape it is then called with.
  void stand_for_shape(StepRequests requests) { requests_ = std::move(requests); }
  /// The reading kernel that is the sentinel of the current shape.
  const ReadVariant& read_variant() const { return read_limit_->variants()[read_variant_]; }

  /// The outcome of a candidate's check, which `launch` makes of its kernel. An error after which the context lives on
  /// is an outcome, too. With any other the candidate is condemned.
  Result<CheckOutcome> check_with(const Config& config,
                                  const std::function<Result<ComparisonReport>(const LoadedKernel&)>& launch);

  /// For kernels that are no candidates of a search, such as changed copies of one. All of them end with the current
  /// shape.
  ///
  /// A graph of launches of `kernel`, as many as those of time() and on the same copies of K and V. `workspace` is
  /// zeroed device memory of decode_case().workspace(config.spec, config.grid).total_bytes; the caller keeps it and the
  /// kernel as long as the graph. `adjust`, where given, may change the arguments of each launch. Errors: those of
  /// TimedGraph::make.
  Result<TimedGraph> graph(const LoadedKernel& kernel, const Config& config, void* workspace,
                           const std::function<void(int launch, LeanDecodeArgs& args)>& adjust = {}) const;
  /// One sample of each graph, back to back, with the sentinel before and after them. Errors: launch_failed,
  /// context_lost.
  Result<RoundTimes> time_graphs(std::span<const TimedGraph* const> graphs);
  /// A kernel that was compiled or adopted, loaded into the device's context, which is current. Errors: internal (it
  /// was neither), load_failed, out_of_memory, context_lost.
  Result<const LoadedKernel*> loaded(const KernelSpec& spec);
  const std::shared_ptr<const OracleKernels>& oracle() const { return oracle_; }
  DecodeCase& decode_case() { return *case_; }
  const Rotation& rotation() const { return rotation_; }
  const Stream& stream() const { return stream_; }

 private:
  struct Compiled {
    EmittedKernel emitted;
    CompiledKernel kernel;
  };

  GpuBackend(Context context, Stream stream, const DeviceFacts& device, const DecodeProblem& problem, L2Policy policy,
             CubinCache* cubins, std::int64_t memory_bytes)
      : context_(std::move(context)),
        stream_(std::move(stream)),
        device_(device),
        problem_(problem),
        policy_(policy),
        cubins_(cubins),
        memory_bytes_(memory_bytes) {}

  Result<void> reserve_workspace(std::span<const Config> configs);
  Result<const TimedGraph*> graph_of(const Config& config);
  Result<void> choose_read_variant();

  // The context comes first, so that it is destroyed last: everything below lives in it.
  Context context_;
  Stream stream_;
  DeviceFacts device_;
  DecodeProblem problem_;
  L2Policy policy_;
  CubinCache* cubins_;
  const std::int64_t memory_bytes_;  ///< 0: no limit but that of the GPU
  std::mutex compiled_mutex_;
  std::map<std::string, Compiled> compiled_;  // by kernel_name; guarded by compiled_mutex_
  std::shared_ptr<const OracleKernels> oracle_;
  std::unique_ptr<ReadLimit> read_limit_;
  std::map<std::string, LoadedKernel> kernels_;  // by kernel_name
  StepRequests requests_;                        // that stand for the shape; empty: context_lengths_of()
  std::unique_ptr<DecodeCase> case_;
  std::optional<DependentChain> chain_;  ///< only for a problem with pdl
  CheckWorkspace check_workspace_;
  std::map<std::string, CheckOutcome> condemned_;  // by config
  DeviceBuffer workspace_;                         // for timed launches; every graph points into it
  std::map<std::string, TimedGraph> graphs_;       // by config
  std::unique_ptr<TimedGraph> sentinel_;
  std::size_t read_variant_ = 0;
  double read_limit_us_ = 0;
  Rotation rotation_;
  GraphTimer timer_;
  std::string neighbours_;  ///< other processes on the GPU when the shape began
};

}  // namespace v1
}  // namespace leanattn
