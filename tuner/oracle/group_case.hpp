// group_case.hpp -- GroupCase: a decode case whose contexts are dealt to the ranks of a group, on this GPU and on those
// like it, and the check of a group's kernel against the oracle of the whole contexts. One thread at a time, with the
// context that it was created in current.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/current_context.hpp"
#include "runtime/engine/group.hpp"
#include "runtime/engine/launch_status.hpp"
#include "tuner/oracle/decode_case.hpp"

namespace leanattn {
inline namespace v1 {

class GroupCase {
 public:
  /// Deals the K and V of `whole`, a case of a dense cache without scales per token, to the ranks of `features`, which
  /// are those of whole.problem() with context_parallel and what goes with it, and may have a page_size. With
  /// contiguous parts request 0 is dealt evenly, request 1 lies on one rank only, others are cut anywhere. Ranks are on
  /// the current GPU and others of its kind that it reaches in turn, on at most so many. Waits. Errors:
  /// invalid_argument, those of GroupMember, out_of_memory, launch_failed, context_lost.
  static Result<GroupCase> create(DecodeCase whole, const Features& features, std::int64_t wait_bound_ms,
                                  CUstream_st* stream, int most_gpus = std::numeric_limits<int>::max());

  int ranks() const { return static_cast<int>(ranks_.size()); }
  DecodeCase& whole() { return *whole_; }
  const DecodeProblem& problem() const { return problem_; }  ///< that of the ranks
  GroupMember& member(int rank) { return *ranks_[static_cast<std::size_t>(rank)].member; }
  const LaunchStatus& status(int rank) const { return *ranks_[static_cast<std::size_t>(rank)].status; }
  const Stream& stream(int rank) const { return ranks_[static_cast<std::size_t>(rank)].stream; }
  /// The tokens of a request that a rank holds.
  const std::vector<int>& lengths(int rank) const { return ranks_[static_cast<std::size_t>(rank)].lengths; }

  int gpus() const { return gpus_; }
  int gpu_of(int rank) const { return rank % gpus_; }  ///< 0: the one that was current
  /// Makes the context of the rank's GPU current.
  CurrentContext enter(int rank) const { return CurrentContext(ranks_[static_cast<std::size_t>(rank)].context()); }

  /// CTAs that each rank may have, so that those of all ranks are resident at once.
  std::int64_t most_ctas(const LoadedKernel& kernel) const {
    return kernel.resident_ctas() / ((ranks() + gpus_ - 1) / gpus_);
  }
  /// Loads a kernel of this GPU on those of all ranks, which launches otherwise do when they are first made.
  Result<void> prepare(const LoadedKernel& kernel);
  /// The arguments of a rank's launch, without a workspace; and with one of the rank's own for this grid.
  LeanDecodeArgs args(int rank) const;
  Result<LeanDecodeArgs> bind(int rank, const KernelSpec& spec, LaunchGrid grid);
  /// Enqueues a rank's launch on its stream. `kernel` is that of this GPU.
  Result<void> launch(int rank, const LoadedKernel& kernel, LaunchGrid grid, const LeanDecodeArgs& args);

  /// Fills the outputs of all ranks with kPoisonByte. Waits.
  Result<void> reset_outputs();
  /// Compares what the ranks have written with the oracle, once their streams have ended: that each has written its
  /// heads and nothing else, and left its workspace and the exchange memory all zero. Waits.
  Result<ComparisonReport> compare(const KernelSpec& spec);
  /// Launches all ranks so many times, and compares each time. All launches must agree bit for bit. The launches of
  /// rank 0 all go out first, or last.
  Result<ComparisonReport> check(const LoadedKernel& kernel, LaunchGrid grid, int launches = 1);
  /// Gives the requests other lengths, at most the capacity. Waits.
  Result<void> set_context_lengths(std::vector<int> context_lengths);
  /// What leanattn_group_reset does on all ranks, with their workspaces. No launch may run.
  Result<void> reset();

 private:
  struct Rank {
    Rank() = default;
    Rank(Rank&&) = default;
    Rank& operator=(Rank&&) = delete;
    ~Rank();
    CUctx_st* context() const { return gpu ? gpu->get() : nullptr; }

    std::shared_ptr<const Context> gpu;  ///< null: that of the case
    Stream stream;
    std::shared_ptr<LaunchStatus> status;
    std::unique_ptr<GroupMember> member;
    std::vector<int> lengths, starts;
    DeviceBuffer k, v, o, lse, lengths_device, starts_device, full_device, page_table;
    std::unique_ptr<CheckWorkspace> workspace;
  };

  GroupCase() = default;
  Result<void> add_rank(int number, std::int64_t wait_bound_ms, const std::shared_ptr<const Context>& gpu,
                        Stream stream);
  /// The kernel on the rank's GPU.
  Result<const LoadedKernel*> kernel_of(int rank, const LoadedKernel& kernel);
  Result<void> deal();
  Result<void> deal_tensor(Rank& rank, int number, bool is_k, const std::vector<unsigned char>& from);
  std::int64_t rank_capacity() const;  ///< tokens of a request for which each rank has room
  /// Raw outputs as the whole case has them, made of what the ranks have written.
  Result<std::vector<std::vector<unsigned char>>> outputs(ComparisonReport& report);

  std::unique_ptr<DecodeCase> whole_;
  DecodeProblem problem_;
  std::vector<Rank> ranks_;
  int gpus_ = 1;
  std::map<std::pair<int, std::string>, LoadedKernel> kernels_;  ///< of other GPUs, by GPU and name
  std::vector<int> pages_;  ///< [batch, pages of a request], where a rank has them in its pool
  CUstream_st* stream_ = nullptr;
};

}  // namespace v1
}  // namespace leanattn
