// decode_case.hpp -- DecodeCase: one concrete problem on the GPU, its oracle, and the check of any kernel against it.
// One thread at a time, with the context that it was created in current. Used by verify, by the tuner's correctness
// gate, and for the tuner's timing buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "generator/workspace.hpp"
#include "runtime/gpu.hpp"
#include "runtime/kernel.hpp"
#include "runtime/problem.hpp"
#include "tuner/compare.hpp"
#include "tuner/oracle_kernels.hpp"
#include "tuner/random_data.hpp"

namespace leanattn {
inline namespace v1 {

struct DecodeCaseOptions {
  std::uint64_t seed = 1;
  DataKind data = DataKind::uniform;
  int context_capacity = 0;  ///< tokens allocated per request; 0: the longest context, and room for the NaN past it
  bool padded =
      false;  ///< odd strides: padding between tokens (strided layout), heads and requests, and bases off by 16 bytes
  int kv_copies = 1;  ///< equal copies of K and V, one after the other in memory, to rotate through when timing cold
  std::vector<int> query_tokens = {};  ///< of each request, 0 to q_len, where ragged_q; empty: drawn from the seed
  int shared_prefix = 0;  ///< paged: tokens whose pages requests read from request 0, as far as whole pages go
  /// Paged: pages of the pool; 0: some more than are needed. Those in use are its last ones, in random order.
  std::int64_t pool_pages = 0;
};

/// How a kernel under check is launched: a number of CTAs alone means that segments cost nothing.
struct LaunchGrid {
  LaunchGrid(std::int64_t grid, int cost = 0) : ctas(grid), segment_cost(cost) {}
  std::int64_t ctas;
  int segment_cost;  ///< LeanTiles that the schedule charges an output tile
};

/// A workspace for checks and timing. Zeroed only when first allocated or after a failed launch, so a kernel that
/// leaves anything behind is found out. Grows; may be shared by cases and kernels used one after the other.
class CheckWorkspace {
 public:
  /// Makes room for a launch and points args into it. Errors: out_of_memory, context_lost.
  Result<void> bind(LeanDecodeArgs& args, const WorkspaceLayout& layout, CUstream_st* stream);
  /// Zeroes everything: after a launch that failed or left something behind.
  Result<void> reset(CUstream_st* stream);
  /// Fills the guard behind the bound bytes with the poison, or puts its zeros back. Stream-ordered.
  Result<void> arm_guard(CUstream_st* stream);
  Result<void> disarm_guard(CUstream_st* stream);

  /// What a launch may touch, from data(); the guard follows.
  std::int64_t bound_bytes() const { return bound_bytes_; }
  const DeviceBuffer& buffer() const { return buffer_; }

  static constexpr std::int64_t kGuardBytes = 1024;  ///< behind the bound bytes; must stay poison while armed

 private:
  DeviceBuffer buffer_;
  std::int64_t bound_bytes_ = 0;
};

class DecodeCase {
 public:
  /// Allocates and fills q, k, v and what the problem's features need. With append the query tokens' K and V stand
  /// beside the cache, whose own rows of them are spoilt before each launch of check() and looked at after it.
  /// Everything else in those allocations (past every context, before every window, padding, pages of nobody) is NaN,
  /// int8 elements -128, and page-table entries that no kernel may follow are ids that no pool has. Padded caches of
  /// pages hold K and V in turns in one pool. Lengths may be zero, negative or above the capacity (whole pages, where
  /// there are any): kernels and oracle clamp them. Waits for the stream once. Errors: those of validate(problem),
  /// invalid_argument (no requests, senseless options), out_of_memory, launch_failed, context_lost; nvrtc_missing,
  /// compile_failed where a score expression needs kernels of its own.
  static Result<DecodeCase> create(std::shared_ptr<const OracleKernels> kernels, const DecodeProblem& problem,
                                   std::vector<int> context_lengths, const DecodeCaseOptions& options,
                                   CUstream_st* stream);

  /// What to launch with, except for the workspace (null until bound). KV of copy 0, or of the given one.
  const LeanDecodeArgs& args() const { return args_; }
  LeanDecodeArgs args(int kv_copy) const;
  /// args(kv_copy) with `workspace` bound for this launch.
  Result<LeanDecodeArgs> bind(const KernelSpec& spec, LaunchGrid grid, CheckWorkspace& workspace, CUstream_st* stream,
                              int kv_copy = 0) const;

  const DecodeProblem& problem() const { return problem_; }
  const DecodeCaseOptions& options() const { return options_; }
  const std::vector<int>& context_lengths() const { return lengths_; }
  int batch() const { return static_cast<int>(lengths_.size()); }
  /// As the kernels see it: within [0, capacity].
  int clamped_length(int request) const;
  std::int64_t output_tiles(const KernelSpec& spec) const;
  /// What a launch of `grid` CTAs on this case needs.
  WorkspaceLayout workspace(const KernelSpec& spec, std::int64_t grid) const;
  /// As the kernels see them: of each request, 1 to q_len unless the problem is ragged; 0 is possible then.
  const std::vector<int>& query_tokens() const { return query_tokens_; }
  /// What helper kernels need to know beside args().
  const CheckFeatures& check_arguments() const { return check_; }
  int v_head_dim() const { return check_.v_head_dim; }
  double scale() const { return check_.scale; }  ///< softmax scale, as the oracles use it
  /// Tokens at the start of the contexts that all requests share with request 0.
  std::int64_t shared_tokens() const;
  std::int64_t kv_bytes() const;  ///< K and V bytes one launch must read

  /// New lengths for the same allocation (same batch): K and V are planted anew, the oracle is stale. Stream-ordered.
  Result<void> set_context_lengths(std::vector<int> context_lengths, CUstream_st* stream);
  /// Fills o and lse, padding included, with the poison; with append also the cache's rows of the query tokens.
  /// Stream-ordered.
  Result<void> reset_outputs(CUstream_st* stream);
  /// The oracle's answer; computed on the GPU at the first call after create or set_context_lengths. Waits.
  Result<const Reference*> reference(CUstream_st* stream);

  /// Poisons, launches (`launches` times, outputs poisoned in between; all must agree bit for bit), reads back,
  /// compares. `before`, where given, enqueues what each launch follows without anything in between. Waits. A wrong
  /// result is a report that did not pass; an Error means that the launch itself failed (launch_failed, context_lost
  /// ...), or is before's.
  Result<ComparisonReport> check(const LoadedKernel& kernel, LaunchGrid grid, CheckWorkspace& workspace,
                                 CUstream_st* stream, int launches = 1,
                                 const std::function<Result<void>()>& before = {});
  /// The same with a workspace of the case's own.
  Result<ComparisonReport> check(const LoadedKernel& kernel, LaunchGrid grid, CUstream_st* stream);

  /// For launches enqueued elsewhere (graphs): where the raw outputs are, and their comparison once copied to the host.
  std::int64_t o_bytes() const { return o_.bytes(); }
  std::int64_t lse_bytes() const { return lse_.bytes(); }
  const DeviceBuffer& o_buffer() const { return o_; }
  const DeviceBuffer& lse_buffer() const { return lse_; }
  /// Device array of batch() lengths; not where its allocation starts when padded.
  int* lengths_on_device() const { return const_cast<int*>(args_.context_lengths); }
  /// Plants K and V for the lengths that the device holds then. Stream-ordered, no host work: for use between graph
  /// replays.
  Result<void> plant_kv(CUstream_st* stream);
  /// raw_o: o_bytes() and raw_lse: lse_bytes() copied from the buffers.
  ComparisonReport compare_raw(const Reference& reference, const void* raw_o, const void* raw_lse,
                               bool lse_written) const;

 private:
  DecodeCase() = default;
  /// check()'s launches and comparisons. What they leave in the workspace stays there.
  Result<ComparisonReport> launch_and_compare(const LoadedKernel& kernel, LaunchGrid grid, const LeanDecodeArgs& bound,
                                              const Reference& expected, CheckWorkspace& workspace, CUstream_st* stream,
                                              int launches, const std::function<Result<void>()>& before);
  Result<void> allocate(CUstream_st* stream);
  Result<void> allocate_kv(CUstream_st* stream);
  Result<void> allocate_features(CUstream_st* stream);
  Result<void> allocate_new_tokens(CUstream_st* stream);
  /// Elements from the start of o_ to a row of O.
  std::int64_t o_row(int request, int query_token, int head) const;
  std::int64_t padding(std::int64_t units, std::int64_t element_bytes) const;

  std::shared_ptr<const OracleKernels> kernels_;
  DecodeProblem problem_;
  DecodeCaseOptions options_;
  std::vector<int> lengths_, query_tokens_;
  std::vector<int> first_query_tokens_;  ///< [batch + 1], as q_offsets
  LeanDecodeArgs args_{};
  CheckFeatures check_{};
  DeviceBuffer q_, k_, v_, o_, lse_, lengths_device_;  ///< v_ is empty where K and V share a pool
  DeviceBuffer pages_, page_table_, q_offsets_, tree_mask_, head_values_, kv_scales_;
  DeviceBuffer k_new_, v_new_, wrong_appended_, rope_table_;
  std::int64_t kv_copy_bytes_ = 0;  ///< from one copy to the next, in K and in V alike
  std::int64_t o_offset_ = 0;       ///< elements from o_'s start to args_.o
  PinnedBuffer host_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<CheckWorkspace> workspace_;
};

}  // namespace v1
}  // namespace leanattn
