// verify_runner.hpp -- VerifyRunner: what the combinations and the themes of one verify run share: the GPU, the
// oracle's kernels, one workspace for everything, and the book-keeping of results. Used from one thread, with its
// context current.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/decode_case.hpp"
#include "tuner/dependent_chain.hpp"
#include "tuner/verify.hpp"
#include "tuner/verify_compile.hpp"

namespace leanattn {
inline namespace v1 {

class VerifyRunner {
 public:
  /// Errors: those of OracleKernels::load and Stream::create. cubins, done and cancel may be null.
  static Result<VerifyRunner> create(const VerifyOptions& options, const DeviceFacts& device, CubinCache* cubins,
                                     const VerifySink& done, const std::atomic<bool>* cancel);

  const DeviceFacts& device() const { return device_; }
  const VerifyOptions& options() const { return options_; }
  CubinCache* cubins() const { return cubins_; }
  CUstream_st* stream() const { return stream_.get(); }
  const Stream& stream_object() const { return stream_; }
  CheckWorkspace& workspace() { return workspace_; }
  /// Compiled and loaded at the first call; sm_90 and newer. Errors: those of DependentChain::load.
  Result<DependentChain*> chain();
  bool cancelled() const { return cancel_ != nullptr && cancel_->load(std::memory_order_relaxed); }

  /// A new case for this kernel's heads and features. Errors: those of DecodeCase::create.
  Result<DecodeCase> make_case(const KernelSpec& spec, const CaseShape& shape) const;
  /// The same from a small cache; the pointer is good until the next call.
  Result<DecodeCase*> cached_case(const KernelSpec& spec, const CaseShape& shape);

  /// The largest grid at most `ctas` that this kernel may run with (a waiting one must be resident at once), and a
  /// segment cost of 0 to 3 that goes with `ctas`, so that every theme meets several.
  LaunchGrid usable_grid(const LoadedKernel& kernel, std::int64_t ctas) const;

  /// Checks and enters the outcome into `group`. A failed launch is an entry too; only a broken context is an Error.
  Result<void> check(VerifyGroup& group, DecodeCase& decode_case, const LoadedKernel& kernel, LaunchGrid grid,
                     int launches = 1, const std::function<Result<void>()>& before = {});
  /// Enters an outcome that was obtained elsewhere, with these lengths.
  void record(VerifyGroup& group, const ComparisonReport& report, const DecodeCase& decode_case,
              const std::vector<int>& context_lengths, const LoadedKernel& kernel, LaunchGrid grid) const;
  static void record_failure(VerifyGroup& group, std::string text);
  /// Checks a sample of the GPU's oracle (one KV head of the first affordable request) against the CPU's.
  Result<void> cross_check(VerifyGroup& group, DecodeCase& decode_case);

  /// Ends a group: reports it and keeps it.
  void finish(VerifyGroup group);
  /// Loads a compiled kernel, or enters into `group` why there is none (null).
  Result<std::unique_ptr<LoadedKernel>> load(VerifyGroup& group, const CompiledChoice& choice) const;

  std::vector<VerifyGroup> take_groups() { return std::move(groups_); }

 private:
  VerifyRunner() = default;

  struct Cached {
    std::string key;
    DecodeCase decode_case;
  };
  VerifyOptions options_;
  DeviceFacts device_;
  CubinCache* cubins_ = nullptr;
  VerifySink done_;
  const std::atomic<bool>* cancel_ = nullptr;
  std::shared_ptr<const OracleKernels> kernels_;
  Stream stream_;
  CheckWorkspace workspace_;
  std::optional<DependentChain> chain_;
  std::list<Cached> cases_;  ///< most recently used first
  std::vector<VerifyGroup> groups_;
};

/// "{3, 0, 17}", or the first few and the count of a long list.
std::string describe_lengths(const std::vector<int>& context_lengths);

/// The parts of a verify run; each ends its own groups. Errors: context_lost, out_of_memory, nvrtc_missing.
/// Compiles and loads; what cannot be is entered into a group of its own.
Result<std::vector<std::unique_ptr<LoadedKernel>>> load_representatives(VerifyRunner& runner,
                                                                        const std::vector<VerifyKernel>& kernels);
Result<void> verify_themes(VerifyRunner& runner, const std::vector<std::unique_ptr<LoadedKernel>>& kernels);
/// How verify_planned() goes about it.
struct PlannedRun {
  std::string name;
  std::function<std::vector<PlannedCase>(const KernelSpec&)> cases;
  std::size_t cross_check_every = 29;  ///< kernels: the CPU's oracle is slow
  bool every_group_runs = false;       ///< a group of which the compiler refuses all kernels is a failure
};
/// Every kernel on its cases. `kernels` are the next that `queue` hands out; it may have started long before.
Result<void> verify_planned(VerifyRunner& runner, std::span<const VerifyKernel> kernels, CompileQueue& queue,
                            const PlannedRun& planned);
/// The shapes that every generated combination runs on: an empty request among short ones; strides with padding and a
/// request of one token; one long request cut among many CTAs, so that the fix-up becomes a tree.
std::vector<PlannedCase> combination_cases(const KernelSpec& spec);

/// Themes that the GPU tests run too. 1000 replays of one captured launch, with other lengths (copied outside the
/// graph) for each; launches that follow each other in one graph on one workspace; and launches whose q and newest
/// tokens come, late, from the kernel right before them, in a stream and in a graph (only kernels with pdl: the others
/// wait for all that came before anyway).
Result<void> verify_graph_replays(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel);
Result<void> verify_back_to_back(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel);
Result<void> verify_dependent_chain(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel);

}  // namespace v1
}  // namespace leanattn
