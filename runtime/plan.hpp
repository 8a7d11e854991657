// plan.hpp -- PlanCore: a kernel, its grid and its workspace for one problem, ready to launch. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "generator/workspace.hpp"
#include "leanattn/leanattn.h"
#include "runtime/engine_kernels.hpp"
#include "runtime/lookup.hpp"

struct CUctx_st;

/// The C ABI's opaque handle: every one is the base of a PlanCore.
struct leanattn_plan {};

namespace leanattn {
inline namespace v1 {

class LaunchChecks;  // runtime/engine_debug.hpp

/// The largest launch that a plan is sized for.
struct PlanSize {
  int batch = 1;
  /// Tokens; of batch-invariant problems alone, whose workspace grows with it. 0: any.
  std::int64_t context_capacity = 0;

  bool operator==(const PlanSize&) const = default;
};
PlanSize plan_size(const DecodeProblem& problem, const Shape& shape);

/// The workspace that such launches of a configuration need.
WorkspaceLayout workspace_for(const DecodeProblem& problem, const PlanSize& size, const Config& config);

/// What a launch is checked against.
struct LaunchLimits {
  DecodeProblem problem;
  PlanSize size;
  WorkspaceLayout workspace;
  int tile = 64;       ///< the kernel's LeanTile, tokens
  int row_blocks = 1;  ///< output tiles per KV head
  int segment_cost = 0;
};

/// The kernel's argument block from the caller's arguments, with strides and scale filled in. Looks at values only,
/// never through pointers; needs no GPU. Errors: invalid_argument, naming the argument and its value.
Result<LeanDecodeArgs> bind_arguments(const LaunchLimits& limits, const leanattn_decode_args& args, void* workspace);

/// Errors: invalid_argument (null, misaligned or too small).
Result<void> check_workspace(const WorkspaceLayout& layout, const void* workspace, std::int64_t bytes);

class PlanCore : public ::leanattn_plan {
 public:
  /// `context` (may be null in tests) and `checks` (null: none) must outlive the plan. A grid that waits for its CTAs
  /// is cut to what is resident at once. `stand_in`: a better one is being built.
  PlanCore(const DecodeProblem& problem, const PlanSize& size, Choice choice,
           std::shared_ptr<const PreparedKernel> kernel, CUctx_st* context, LaunchChecks* checks,
           bool stand_in = false);

  const LaunchLimits& limits() const { return limits_; }
  const Choice& choice() const { return choice_; }
  const PreparedKernel& kernel() const { return *kernel_; }
  const std::string& name() const { return name_; }
  bool stand_in() const { return stand_in_; }

  /// See leanattn_plan_launch.
  Result<void> launch(const leanattn_decode_args& args, void* workspace, CUstream_st* stream) const;
  /// See leanattn_plan_init_workspace. Zeroes all `bytes`, so that larger plans may share it.
  Result<void> init_workspace(void* workspace, std::int64_t bytes, CUstream_st* stream) const;

 private:
  LaunchLimits limits_;
  Choice choice_;
  std::shared_ptr<const PreparedKernel> kernel_;
  std::string name_;
  CUctx_st* context_;
  LaunchChecks* checks_;
  bool stand_in_;
};

/// Makes `context` current for its lifetime and puts back what was; nothing to do, and nothing done, where it already
/// is.
class CurrentContext {
 public:
  explicit CurrentContext(CUctx_st* context);
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext();
  /// Errors: no_driver, context_lost.
  const Result<void>& entered() const { return entered_; }

 private:
  bool pushed_ = false;
  Result<void> entered_;
};

}  // namespace v1
}  // namespace leanattn
