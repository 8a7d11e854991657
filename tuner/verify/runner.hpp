// runner.hpp -- VerifyRunner: what all parts of a verify run use: the GPU, the oracle's kernels, one workspace, and the
// record of results. One thread, with the GPU's context current.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/oracle/decode_case.hpp"
#include "tuner/oracle/dependent_chain.hpp"
#include "tuner/verify/compile_queue.hpp"
#include "tuner/verify/verify.hpp"

namespace leanattn {
inline namespace v1 {

class VerifyRunner {
 public:
  /// cubins, done and cancel may be null. Errors: those of OracleKernels::load and Stream::create.
  static Result<VerifyRunner> create(const VerifyOptions& options, const DeviceFacts& device, CubinCache* cubins,
                                     const VerifySink& done, const std::atomic<bool>* cancel);

  const DeviceFacts& device() const { return device_; }
  const VerifyOptions& options() const { return options_; }
  CubinCache* cubins() const { return cubins_; }
  CUstream_st* stream() const { return stream_.get(); }
  const Stream& stream_object() const { return stream_; }
  CheckWorkspace& workspace() { return workspace_; }
  /// The kernels in front of dependent launches, which the first call compiles and loads. sm_90 and later. Errors:
  /// those of DependentChain::load.
  Result<DependentChain*> chain();
  bool cancelled() const { return cancel_ != nullptr && cancel_->load(std::memory_order_relaxed); }

  /// A new decode case for this kernel's heads and features. Errors: those of DecodeCase::create.
  Result<DecodeCase> make_case(const KernelSpec& spec, const CaseShape& shape) const;
  /// The same from a small cache. The pointer is valid until the next call.
  Result<DecodeCase*> cached_case(const KernelSpec& spec, const CaseShape& shape);

  /// The largest grid of at most `ctas` CTAs that this kernel may have, because a wait kernel needs a co-resident grid.
  /// The segment cost is 0 to 3 and follows from `ctas`, so that every theme has several.
  LaunchGrid usable_grid(const LoadedKernel& kernel, std::int64_t ctas) const;

  /// Checks a kernel on a case and records the outcome in `group`. A failed launch is recorded, too. Errors:
  /// context_lost, out_of_memory.
  Result<void> check(VerifyGroup& group, DecodeCase& decode_case, const LoadedKernel& kernel, LaunchGrid grid,
                     int launches = 1, const std::function<Result<void>()>& before = {});
  /// Records an outcome that was obtained elsewhere, with these context lengths.
  void record(VerifyGroup& group, const ComparisonReport& report, const DecodeCase& decode_case,
              const std::vector<int>& context_lengths, const LoadedKernel& kernel, LaunchGrid grid) const;
  static void record_failure(VerifyGroup& group, std::string text);
  /// Compares the GPU's oracle with the CPU's on one KV head of the first request that is short enough for the CPU.
  Result<void> cross_check(VerifyGroup& group, DecodeCase& decode_case);

  /// Reports a group that is complete, and keeps it for take_groups().
  void finish(VerifyGroup group);
  /// Loads a compiled kernel. When it did not compile or does not load, `group` records why, and the result is null.
  /// Errors: nvrtc_missing, context_lost.
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
  std::chrono::steady_clock::time_point last_end_ = std::chrono::steady_clock::now();  ///< of a group
};

/// The list as messages show it: "{3, 0, 17}". A long list is cut to its first lengths and their number.
std::string describe_lengths(const std::vector<int>& context_lengths);

}  // namespace v1
}  // namespace leanattn
