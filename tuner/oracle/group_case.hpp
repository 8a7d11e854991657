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

struct GroupCaseOptions {
  /// Ranks are on the current GPU and others of its kind that it reaches in turn, on at most so many.
  int most_gpus = std::numeric_limits<int>::max();
  /// The CUDA ordinal of each rank's GPU instead, of which the first is the current one; empty: as above.
  std::vector<int> devices = {};
  KvLayout layout = KvLayout::contiguous;  ///< of the ranks' caches
  bool even = false;                       ///< parts are (ContextPart::even)
  /// Kernels that are launched are those of parts over NCCL (Features::context_ranks), each of which writes all heads
  /// of its part. The case merges them as a launch over NCCL does. The problem has replicate_output, and no sink
  /// logits.
  bool merged_here = false;
  int kv_copies = 1;  ///< equal copies of each rank's K and V, which launches take in turn where L2 has to be cold
};

class GroupCase {
 public:
  /// Gives each rank of `features` a decode case of its part of the contexts of `whole`, with the same data. `whole` is
  /// one GPU's, without padding. `features` are those of whole.problem() with context_parallel and what goes with it;
  /// their page_size may differ. Waits. Errors: invalid_argument, unsupported (GPUs that differ, or do not reach each
  /// other), those of GroupMember and DecodeCase::create.
  static Result<GroupCase> create(DecodeCase whole, const Features& features, std::int64_t wait_bound_ms,
                                  CUstream_st* stream, const GroupCaseOptions& options = {});

  int ranks() const { return static_cast<int>(ranks_.size()); }
  DecodeCase& whole() { return *whole_; }
  const DecodeProblem& problem() const { return problem_; }  ///< that of the ranks
  GroupMember& member(int rank) { return *ranks_[static_cast<std::size_t>(rank)].member; }
  const LaunchStatus& status(int rank) const { return *ranks_[static_cast<std::size_t>(rank)].status; }
  const Stream& stream(int rank) const { return ranks_[static_cast<std::size_t>(rank)].stream; }
  /// The tokens of a request that a rank holds.
  const std::vector<int>& lengths(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)].part->held().lengths;
  }

  int gpus() const { return gpus_; }
  /// The number of the rank's GPU, 0 for the one that was current.
  int gpu_of(int rank) const { return gpu_of_[static_cast<std::size_t>(rank)]; }
  /// The most ranks that are on one GPU.
  int ranks_on_a_gpu() const;
  /// Makes the context of the rank's GPU current.
  CurrentContext enter(int rank) const { return CurrentContext(ranks_[static_cast<std::size_t>(rank)].context()); }

  /// CTAs that each rank may have, so that those of all ranks are resident at once.
  std::int64_t most_ctas(const LoadedKernel& kernel) const { return kernel.resident_ctas() / ranks_on_a_gpu(); }
  /// The workspace of a rank's launch.
  WorkspaceLayout workspace(const KernelSpec& spec, LaunchGrid grid) const;
  /// Loads a kernel of this GPU on those of all ranks, which launches otherwise do when they are first made.
  Result<void> prepare(const LoadedKernel& kernel);
  /// The arguments of a rank's launch on a copy of its K and V, without a workspace; and on the first copy, with a
  /// workspace of the rank's own for this grid.
  LeanDecodeArgs args(int rank, int kv_copy = 0) const;
  Result<LeanDecodeArgs> bind(int rank, const KernelSpec& spec, LaunchGrid grid);
  /// Enqueues a rank's launch on its stream. `kernel` is that of this GPU.
  Result<void> launch(int rank, const LoadedKernel& kernel, LaunchGrid grid, const LeanDecodeArgs& args);

  /// Fills the outputs of all ranks, and the rows of tokens that they are to append, with what no data is. Waits.
  Result<void> reset_outputs();
  /// Compares what the ranks have written with the oracle, once their streams have ended: that each has written its
  /// heads, the new tokens that it owns (append) and nothing else, and left its workspace and the exchange memory all
  /// zero. Waits.
  Result<ComparisonReport> compare(const KernelSpec& spec);
  /// Launches all ranks so many times, and compares each time. All launches must agree bit for bit. The launches of
  /// rank 0 all go out first, or last.
  Result<ComparisonReport> check(const LoadedKernel& kernel, LaunchGrid grid, int launches = 1);
  /// Gives the requests other lengths, at most the capacity. Waits.
  Result<void> set_context_lengths(std::vector<int> context_lengths);
  /// What leanattn_group_reset does on all ranks, with their workspaces, and caches that were appended to. No launch
  /// may run.
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
    std::unique_ptr<DecodeCase> part;
    std::vector<unsigned char> spoilt;  ///< with append: the cache before a launch
    std::unique_ptr<CheckWorkspace> workspace;
  };

  GroupCase() = default;
  Result<void> add_rank(int number, std::int64_t wait_bound_ms, const std::shared_ptr<const Context>& gpu,
                        Stream stream);
  /// The kernel on the rank's GPU.
  Result<const LoadedKernel*> kernel_of(int rank, const LoadedKernel& kernel);
  /// With append: remembers what the caches hold before a launch.
  Result<void> keep_spoilt_caches();
  /// K and V of the rank's first copy, as they are.
  static Result<std::vector<unsigned char>> caches_of(const Rank& rank);
  /// Whether each rank's cache holds what it must after a launch with append.
  Result<void> check_caches(ComparisonReport& report);
  /// One output like those of all ranks, merged of the ranks' parts.
  std::vector<unsigned char> merged_of_parts(const std::vector<std::vector<unsigned char>>& parts,
                                             ComparisonReport& report) const;
  /// Raw outputs as the whole case has them, made of what the ranks have written.
  Result<std::vector<std::vector<unsigned char>>> outputs(ComparisonReport& report);

  std::unique_ptr<DecodeCase> whole_;
  DecodeProblem problem_;
  std::vector<Rank> ranks_;
  GroupCaseOptions options_;
  std::vector<int> gpu_of_{0};  ///< by rank
  int gpus_ = 1;
  std::map<std::pair<int, std::string>, LoadedKernel> kernels_;  ///< of other GPUs, by GPU and name
  std::map<int, std::shared_ptr<const OracleKernels>> oracles_;  ///< by GPU
  CUstream_st* stream_ = nullptr;
};

}  // namespace v1
}  // namespace leanattn
