// decode_case.hpp -- DecodeCase: one concrete problem with data on the GPU, its oracle, and the check of any kernel
// against it. `verify` and tuning sessions check and time kernels on it. One thread at a time, with the context that it
// was created in current.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "generator/workspace.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/problem.hpp"
#include "tuner/oracle/check_workspace.hpp"
#include "tuner/oracle/compare.hpp"
#include "tuner/oracle/context_part.hpp"
#include "tuner/oracle/oracle_kernels.hpp"
#include "tuner/oracle/random_data.hpp"

namespace leanattn {
inline namespace v1 {

struct DecodeCaseOptions {
  std::uint64_t seed = 1;
  DataKind data = DataKind::uniform;  ///< where kernels quantise new rows by scales of their own always `written`
  /// Tokens allocated for each request; 0: the longest context and some tokens of NaN behind it. Packed K and V have
  /// the tokens of all contexts and some of NaN behind them, whatever this says.
  int context_capacity = 0;
  /// Whether strides have padding between tokens (strided layout), heads and requests, and arrays start 16 bytes late.
  bool padded = false;
  int kv_copies = 1;                   ///< equal copies of K and V, which launches take in turn where L2 has to be cold
  std::vector<int> query_tokens = {};  ///< with ragged_q, of each request, 0 to q_len; empty: drawn from the seed
  /// In a paged cache, how many first tokens all requests read from the pages of request 0. Only whole pages are
  /// shared.
  int shared_prefix = 0;
  /// In a paged cache, the number of pages of the pool; 0: some more than are needed. The pages in use are the last
  /// ones of the pool, in random order.
  std::int64_t pool_pages = 0;
  /// With a selection, what the lists name: one of so many blocks of a context. KV heads share their lists if the case
  /// is padded and has an odd number of requests.
  int selection_spread = 2;
  bool selection_holes = false;  ///< some entries of the lists are holes
  /// Each list is in random order, as an indexer's scores leave it, instead of that of the context. With it create(),
  /// set_context_lengths() and plant_kv() wait for the stream.
  bool selection_shuffled = false;
  /// With a second cache, about how many tokens of it a request has room for.
  int second_capacity = 128;
  /// In a paged cache, one of about so many entries of the page table that a request uses is a hole, a number that no
  /// page of the pool has; 0: none.
  int hole_every = 0;
  /// Which tokens of each context the case has. Those of a part have the data that they have in a case of all. Such a
  /// case has no selection and no shared prefix.
  ContextPart part = {};
};

/// How a kernel under check is launched. A number of CTAs alone means a segment cost of 0.
struct LaunchGrid {
  LaunchGrid(std::int64_t grid, int cost = 0) : ctas(grid), segment_cost(cost) {}
  LaunchGrid(const Config& config)
      : ctas(config.grid), segment_cost(config.segment_cost), l2_promotion(config.l2_promotion) {}
  std::int64_t ctas;
  int segment_cost;  ///< empty tile positions before each output tile
  int l2_promotion = 128;
};

class DecodeCase {
 public:
  /// Allocates and fills q, k, v and what the problem's features need. Everything that no kernel may read is NaN (-128
  /// in an int8 cache): tokens past a context and before a window, padding, and pages of no request. Page-table entries
  /// that no kernel may follow hold pages that no pool has. With append, the K and V of the query tokens lie beside the
  /// cache; check() spoils the cache's rows of these tokens before each launch and checks them after it. A paged cache
  /// with padding has K and V in one pool, in turns, each before the scales of its blocks if they have any.
  /// Lengths may be zero, negative or above the capacity (a paged cache's is in whole pages), because kernels and
  /// oracle clamp them. Waits for the stream once. Errors: those of validate(problem), invalid_argument (no requests,
  /// options that make no sense), out_of_memory, launch_failed, context_lost; also nvrtc_missing and compile_failed
  /// when a score expression needs oracle kernels of its own.
  static Result<DecodeCase> create(std::shared_ptr<const OracleKernels> kernels, const DecodeProblem& problem,
                                   std::vector<int> context_lengths, const DecodeCaseOptions& options,
                                   CUstream_st* stream);

  /// The bytes that K and V of each copy take in a case without options. The capacity of a paged cache is in whole
  /// pages, and some pages are more than are needed.
  static std::int64_t bytes_of_copy(const DecodeProblem& problem, std::span<const int> context_lengths);

  /// The arguments of a launch on KV copy 0, or on the given one. The workspace is null until it is bound.
  const LeanDecodeArgs& args() const { return args_; }
  LeanDecodeArgs args(int kv_copy) const;
  /// The arguments args(kv_copy) with `workspace` bound for a launch of this spec and grid.
  Result<LeanDecodeArgs> bind(const KernelSpec& spec, LaunchGrid grid, CheckWorkspace& workspace, CUstream_st* stream,
                              int kv_copy = 0) const;

  const std::shared_ptr<const OracleKernels>& kernels() const { return kernels_; }
  const DecodeProblem& problem() const { return problem_; }
  const DecodeCaseOptions& options() const { return options_; }
  const std::vector<int>& context_lengths() const { return lengths_; }
  int batch() const { return static_cast<int>(lengths_.size()); }
  /// The length of the whole context as kernels see it, within [0, capacity].
  int clamped_length(int request) const;
  /// The tokens of requests that the case has where they are a part (DecodeCaseOptions::part).
  const HeldTokens& held() const { return held_; }
  std::int64_t output_tiles(const KernelSpec& spec) const;
  /// The workspace that a launch of `grid` CTAs on this case needs.
  WorkspaceLayout workspace(const KernelSpec& spec, std::int64_t grid) const;
  /// How many query tokens each request has: q_len, or with ragged_q 0 to q_len.
  const std::vector<int>& query_tokens() const { return query_tokens_; }
  /// The second argument of the helper kernels, beside args().
  const CheckFeatures& check_arguments() const { return check_; }
  int v_head_dim() const { return check_.v_head_dim; }
  double scale() const { return check_.scale; }  ///< the softmax scale that the oracles use
  /// How many first tokens all requests share with request 0.
  std::int64_t shared_tokens() const;
  /// What the lists of a problem with a selection name.
  DataSelection selection() const;
  /// Bytes of the cache that one launch must read: kv_bytes() and kv_scale_bytes() of runtime/problem.hpp.
  std::int64_t kv_bytes() const;
  /// Two arrays of the same size in copy `kv_copy` that stand for what one launch reads of it. They do not overlap, and
  /// begin and end at multiples of 16 bytes, wherever the rows of K and V begin.
  struct ReadHalves {
    const void* first;
    const void* second;
    std::int64_t bytes_each;
  };
  ReadHalves read_halves(int kv_copy) const;
  /// Bytes of one copy of K, and as many of V; of a latent cache K is both. In all they are at least kv_bytes(), but
  /// for selections, of which several may name the same token.
  std::int64_t kv_copy_bytes() const { return kv_copy_bytes_; }

  /// Gives the same number of requests new context lengths. K and V are written anew, and the next reference() computes
  /// the oracle again. Stream-ordered.
  Result<void> set_context_lengths(std::vector<int> context_lengths, CUstream_st* stream);
  /// Fills o and lse, including their padding, with kPoisonByte; with append also spoils the cache's rows of the query
  /// tokens. Stream-ordered.
  Result<void> reset_outputs(CUstream_st* stream);
  /// The latter alone. Stream-ordered.
  Result<void> spoil_new_rows(CUstream_st* stream);
  /// The oracle's results. The first call after create() or set_context_lengths() computes them on the GPU and waits.
  Result<const Reference*> reference(CUstream_st* stream);

  /// Launches `launches` times, each time on reset outputs, and compares the results with the oracle. All launches must
  /// agree bit for bit. `before`, if given, enqueues work right in front of each launch. Waits. A wrong result is a
  /// report that did not pass. An Error means that a launch or `before` failed (launch_failed, context_lost ...).
  Result<ComparisonReport> check(const LoadedKernel& kernel, LaunchGrid grid, CheckWorkspace& workspace,
                                 CUstream_st* stream, int launches = 1,
                                 const std::function<Result<void>()>& before = {});
  /// The same, once, with a workspace of the case's own.
  Result<ComparisonReport> check(const LoadedKernel& kernel, LaunchGrid grid, CUstream_st* stream);

  /// The outputs as they lie in device memory, for launches that are enqueued elsewhere, as in graphs. Once they are
  /// copied to the host, compare_raw() compares them.
  std::int64_t o_bytes() const { return o_.bytes(); }
  std::int64_t lse_bytes() const { return lse_.bytes(); }
  const DeviceBuffer& o_buffer() const { return o_; }
  const DeviceBuffer& lse_buffer() const { return lse_; }
  /// All copies of K, and of V; the latter is empty where they share memory.
  const DeviceBuffer& k_buffer() const { return k_; }
  const DeviceBuffer& v_buffer() const { return v_; }
  /// Of the K and V that the last launch has appended, how many elements of the cache are wrong. Waits.
  Result<std::int64_t> wrong_appended(CUstream_st* stream);
  /// The device array of batch() context lengths. With padding it does not start at its allocation's first byte.
  int* lengths_on_device() const { return const_cast<int*>(args_.context_lengths); }
  /// Writes K and V for the context lengths that the device holds at that point of the stream. Stream-ordered, without
  /// work on the host, so that it can be used between replays of a graph.
  Result<void> plant_kv(CUstream_st* stream);
  /// Compares o_bytes() bytes at raw_o and lse_bytes() at raw_lse, both copied from the buffers.
  ComparisonReport compare_raw(const Reference& reference, const void* raw_o, const void* raw_lse,
                               bool lse_written) const;

 private:
  DecodeCase() = default;
  /// The launches and comparisons of check(). What they leave in the workspace stays there.
  Result<ComparisonReport> launch_and_compare(const LoadedKernel& kernel, LaunchGrid grid, const LeanDecodeArgs& bound,
                                              const Reference& expected, CheckWorkspace& workspace, CUstream_st* stream,
                                              int launches, const std::function<Result<void>()>& before);
  Result<void> allocate(CUstream_st* stream);
  /// Where the rows of each request begin in packed K and V, and where those of the last one end; [batch + 1].
  std::vector<int> kv_offsets() const;
  /// Copies the lengths to the device, of whole contexts and of the part.
  Result<void> upload_lengths(CUstream_st* stream);
  Result<void> allocate_kv(CUstream_st* stream);
  Result<void> allocate_features(CUstream_st* stream);
  Result<void> allocate_new_tokens(CUstream_st* stream);
  Result<void> allocate_selection(CUstream_st* stream);
  Result<void> allocate_second_cache(CUstream_st* stream);
  /// Writes the second cache and its page table.
  Result<void> plant_second_cache(CUstream_st* stream);
  /// Puts the entries of each list into random order. Waits.
  Result<void> shuffle_selection(CUstream_st* stream) const;
  /// How many tokens the lists of a request's first query token name, holes included.
  int selected_tokens(int request) const;
  /// The number of elements from the start of o_ to a row of O.
  std::int64_t o_row(int request, int query_token, int head) const;
  std::int64_t padding(std::int64_t units, std::int64_t element_bytes) const;

  std::shared_ptr<const OracleKernels> kernels_;
  DecodeProblem problem_;
  DecodeCaseOptions options_;
  std::vector<int> lengths_, query_tokens_;
  std::vector<int> first_query_tokens_;  ///< [batch + 1], like q_offsets
  std::vector<int> contexts_;            ///< of a part: the lengths of whole contexts, clamped
  HeldTokens held_;
  LeanDecodeArgs args_{};
  CheckFeatures check_{};
  DeviceBuffer q_, k_, v_, o_, lse_, lengths_device_;  ///< v_ is empty when K and V share memory
  DeviceBuffer contexts_device_, starts_device_;
  DeviceBuffer pages_, page_table_, q_offsets_, tree_mask_, spans_, head_values_, kv_scales_;
  DeviceBuffer block_scales_;  // where they lie in no pool with K and V
  DeviceBuffer k_new_, v_new_, wrong_appended_, rope_table_;
  DeviceBuffer selection_, selected_counts_;
  DeviceBuffer second_k_, second_v_, second_pages_, second_page_table_, second_lengths_, second_full_lengths_;
  std::int64_t kv_copy_bytes_ = 0;  ///< from one copy to the next, in K as in V
  std::int64_t o_offset_ = 0;       ///< elements from o_'s start to args_.o
  PinnedBuffer host_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<CheckWorkspace> workspace_;
};

}  // namespace v1
}  // namespace leanattn
