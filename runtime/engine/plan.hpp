// plan.hpp -- PlanCore: a loaded kernel with its grid and workspace size for one problem, ready to launch. Immutable,
// so any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "generator/workspace.hpp"
#include "leanattn/leanattn.h"
#include "runtime/engine/kernel_store.hpp"
#include "runtime/lookup/winner_table.hpp"

struct CUctx_st;

/// The opaque handle of the C ABI. Every object of it is the base of a PlanCore.
struct leanattn_plan {};

namespace leanattn {
inline namespace v1 {

class GroupMember;   // runtime/engine/group.hpp
class LaunchChecks;  // runtime/engine/launch_checks.hpp
class LaunchStatus;  // runtime/engine/launch_status.hpp

/// The largest launch for which a plan is sized.
struct PlanSize {
  int batch = 1;  ///< requests
  /// Tokens of a context. Only the workspace of batch-invariant problems depends on it; 0 means any.
  std::int64_t context_capacity = 0;

  bool operator==(const PlanSize&) const = default;
};
PlanSize plan_size(const DecodeProblem& problem, const Shape& shape);

/// The workspace that launches of this configuration and size need.
WorkspaceLayout workspace_for(const DecodeProblem& problem, const PlanSize& size, const Config& config);

/// The plan's part of a launch, against which the caller's arguments are checked.
struct LaunchLimits {
  DecodeProblem problem;
  PlanSize size;
  WorkspaceLayout workspace;
  int tile = 64;           ///< the kernel's LeanTile, tokens
  int row_blocks = 1;      ///< output tiles of a KV head, for a request with the most query tokens
  int rows = 1;            ///< query rows of an output tile
  int tile_positions = 1;  ///< of the line, that a LeanTile takes at most
  int segment_cost = 0;
};

/// The argument block of the kernel, made of the caller's arguments, with default strides and scale filled in. Checks
/// values only: what pointers point to is not read, and no GPU is needed. Errors: invalid_argument and unsupported,
/// with the name of the argument and its value.
Result<LeanDecodeArgs> bind_arguments(const LaunchLimits& limits, const leanattn_decode_args& args, void* workspace);

/// Checks a workspace of `bytes`. Errors: invalid_argument (null, misaligned or too small).
Result<void> check_workspace(const WorkspaceLayout& layout, const void* workspace, std::int64_t bytes);

class PlanCore : public ::leanattn_plan {
 public:
  /// `context` and `status` (both null in tests) and `checks` (null for none) must outlive the plan. Where CTAs wait
  /// for each other, the grid is cut to the CTAs that are resident at once; of a `group` (null for none), beside those
  /// of the other ranks on the GPU. `stand_in` says that a better kernel is being built.
  PlanCore(const DecodeProblem& problem, const PlanSize& size, Choice choice,
           std::shared_ptr<const PreparedKernel> kernel, CUctx_st* context, LaunchChecks* checks, LaunchStatus* status,
           bool stand_in = false, const GroupMember* group = nullptr);

  const LaunchLimits& limits() const { return limits_; }
  const Choice& choice() const { return choice_; }
  const PreparedKernel& kernel() const { return *kernel_; }
  const std::shared_ptr<const PreparedKernel>& shared_kernel() const { return kernel_; }
  const std::string& name() const { return name_; }
  bool stand_in() const { return stand_in_; }
  const GroupMember* group() const { return group_; }  ///< null for none
  /// Whether its CTAs wait for each other, so that all of them must be resident at once.
  bool waits() const { return leanattn::waits(choice_.config.spec); }

  /// See leanattn_plan_launch.
  Result<void> launch(const leanattn_decode_args& args, void* workspace, CUstream_st* stream) const;
  /// See leanattn_plan_init_workspace. Zeroes all `bytes` and not only this plan's, so that larger plans may share
  /// them.
  Result<void> init_workspace(void* workspace, std::int64_t bytes, CUstream_st* stream) const;

 private:
  LaunchLimits limits_;
  Choice choice_;
  std::shared_ptr<const PreparedKernel> kernel_;
  std::string name_;
  CUctx_st* context_;
  LaunchChecks* checks_;
  LaunchStatus* status_;
  bool stand_in_;
  const GroupMember* group_;
};

}  // namespace v1
}  // namespace leanattn
