// group_backend.hpp -- GroupBackend: a TuneBackend on the GPUs of a group that shares contexts. Every candidate is
// launched on all ranks together, so that its time has the exchange and the merge in it. Any thread may call compile().
// Everything else, construction and destruction included, is called from one thread, and makes the first GPU's context
// current there.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tuner/backend/gpu_backend.hpp"
#include "tuner/oracle/group_case.hpp"

namespace leanattn {
inline namespace v1 {

class GroupBackend final : public TuneBackend {
 public:
  /// `problem` is that of the group. rank_devices: the CUDA ordinal of each rank's GPU, of which the first is `device`.
  /// The same GPU may be named several times: its ranks then run beside each other on it. cubins may be null; it must
  /// outlive the backend. Errors: those of GpuBackend::create(), invalid_argument (another number of ranks),
  /// unsupported (scales per token).
  static Result<std::unique_ptr<GroupBackend>> create(const DeviceFacts& device, const DecodeProblem& problem,
                                                      L2Policy policy, CubinCache* cubins,
                                                      std::vector<int> rank_devices);
  ~GroupBackend() override;

  Result<CompiledSpec> compile(const KernelSpec& spec) override { return part_->compile(spec); }
  Result<void> adopt(const KernelSpec& spec, const CompiledKernel& kernel) override {
    return part_->adopt(spec, kernel);
  }
  /// The shape is that of one rank, and all ranks get the same. The read limit is that of the first rank's part.
  /// Errors: also unsupported (GPUs that differ, or that do not reach each other).
  Result<double> begin_shape(const Shape& shape) override;
  /// Compares the results of all ranks with the oracle of the whole contexts. A launch in which a rank waited in vain
  /// is incorrect, and the reason names the rank that did not send.
  Result<CheckOutcome> check(const Config& config) override;
  /// The time of a configuration is that of the slower rank. Each rank replays a graph of launches in a row, in which
  /// the exchange keeps the ranks in step.
  Result<RoundTimes> time(std::span<const Config> configs) override;
  std::optional<CheckOutcome> condemned(const Config& config) const override { return part_->condemned(config); }
  double now_s() const override { return part_->now_s(); }
  /// The reading kernel that is the sentinel of the current shape.
  const ReadVariant& read_variant() const { return part_->read_variant(); }

  /// So long a launch waits for another rank before it ends with a fault.
  static constexpr std::int64_t kWaitBoundMs = 2000;

 private:
  using RankGraphs = std::vector<Graph>;  ///< by rank

  GroupBackend(std::unique_ptr<GpuBackend> part, const DeviceFacts& device, const DecodeProblem& problem,
               std::vector<int> rank_devices)
      : part_(std::move(part)), device_(device), problem_(problem), rank_devices_(std::move(rank_devices)) {}

  /// Gives back what the ranks have of the current shape, each in its own context.
  void end_shape();
  Result<void> reserve_workspaces(std::span<const Config> configs);
  Result<const RankGraphs*> graphs_of(const Config& config);
  /// Replays a candidate's graphs on all ranks, and records the event of this number after them.
  Result<void> replay(const RankGraphs& graphs, std::size_t event);
  /// Waits for all ranks. Errors: launch_failed (a launch ended with a fault, which is forgotten), context_lost.
  Result<void> wait();
  /// What slows any of the GPUs, and the slowest clock.
  void note_states(RoundTimes& times) const;

  // The part alone on the first GPU has its context, kernels, reading kernels and rotation. It is destroyed last.
  std::unique_ptr<GpuBackend> part_;
  DeviceFacts device_;
  DecodeProblem problem_;
  std::vector<int> rank_devices_;
  std::vector<std::string> uuids_;  ///< of the different GPUs
  std::vector<Context> contexts_;   ///< of all GPUs, so that no shape makes one anew
  std::unique_ptr<GroupCase> case_;
  std::vector<DeviceBuffer> workspaces_;      ///< by rank, for timed launches; every graph points into them
  std::vector<std::vector<Event>> events_;    ///< by rank
  std::map<std::string, RankGraphs> graphs_;  ///< by config
};

}  // namespace v1
}  // namespace leanattn
