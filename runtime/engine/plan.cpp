// plan.cpp -- makes a plan of a choice and its kernel, and launches it.
#include "runtime/engine/plan.hpp"

#include <algorithm>

#include "generator/kernel_layout.hpp"
#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/engine/group.hpp"
#include "runtime/engine/launch_checks.hpp"
#include "runtime/engine/launch_status.hpp"
#include "runtime/lookup/grids.hpp"

namespace leanattn {
inline namespace v1 {

PlanSize plan_size(const DecodeProblem& problem, const Shape& shape) {
  return {.batch = shape.max_batch > 0 ? shape.max_batch : shape.batch,
          .context_capacity = problem.features.batch_invariant ? shape.longest_context : 0};
}

WorkspaceLayout workspace_for(const DecodeProblem& problem, const PlanSize& size, const Config& config) {
  const std::int64_t outputs = output_tiles(problem, size.batch, config.spec);
  return workspace_layout(config.spec, partial_slots(config.spec, config.grid, outputs, size.context_capacity));
}

PlanCore::PlanCore(const DecodeProblem& problem, const PlanSize& size, Choice choice,
                   std::shared_ptr<const PreparedKernel> kernel, CUctx_st* context, LaunchChecks* checks,
                   LaunchStatus* status, bool stand_in, const GroupMember* group)
    : limits_{.problem = problem, .size = size, .workspace = {}},
      choice_(std::move(choice)),
      kernel_(std::move(kernel)),
      name_(kernel_name(choice_.config.spec)),
      context_(context),
      checks_(checks),
      status_(status),
      stand_in_(stand_in),
      group_(group) {
  Config& config = choice_.config;
  if (waits()) config.grid = std::min(config.grid, resident_share(group, *kernel_));
  limits_.tile = config.spec.tile;
  const KernelLayout layout = layout_of(config.spec);
  limits_.row_blocks = layout.row_blocks, limits_.rows = layout.rows;
  limits_.tile_positions = layout.tile_positions;
  limits_.segment_cost = config.segment_cost;
  limits_.workspace = workspace_for(problem, size, config);
}

Result<void> PlanCore::launch(const leanattn_decode_args& args, void* workspace, CUstream_st* stream) const {
  auto bound = bind_arguments(limits_, args, workspace);
  if (!bound) [[unlikely]]
    return tl::unexpected(bound.error());
  if (status_ != nullptr) {
    if (status_->has_fault()) [[unlikely]] {
      if (auto ok = status_->check(); !ok) return ok;  // else it was acknowledged in between
    }
    bound->status = status_->block();
  }
  const bool grouped = in_group(limits_.problem.features);
  if (grouped && group_ == nullptr)
    return fail(ErrorCode::invalid_argument, "this plan's problem has context_parallel, and the plan has no group",
                "Make it with leanattn_engine_plan_group.");
  if (args.batch == 0) [[unlikely]]
    return {};  // of a group, on all ranks
  GroupExchange* over_nccl = nullptr;
  if (grouped) {
    group_->bind(*bound);
    bound->group_checks = checks_ != nullptr && bound->full_lengths != nullptr;
    over_nccl = group_->over_nccl();
  }
  if (!kernel_->loaded) [[unlikely]]
    return fail(ErrorCode::internal, "this plan's kernel was prepared without a GPU");
  const CurrentContext scope(context_);
  if (!scope.entered()) [[unlikely]]
    return scope.entered();
  if (checks_ != nullptr) [[unlikely]] {
    if (auto ok = checks_->before(limits_, *bound, stream); !ok) return ok;
  }
  const bool beside_ranks = group_ != nullptr && group_->shares_gpu();
  const auto launch_kernel = [&] {
    return kernel_->loaded->launch(*bound, choice_.config.grid, stream, choice_.config.l2_promotion, beside_ranks);
  };
  auto launched = over_nccl != nullptr
                      ? over_nccl->around(limits_.problem, *bound, stream, checks_ != nullptr, launch_kernel)
                      : launch_kernel();
  if (checks_ != nullptr && launched) [[unlikely]]
    return checks_->after(*bound, stream);
  return launched;
}

Result<void> PlanCore::init_workspace(void* workspace, std::int64_t bytes, CUstream_st* stream) const {
  if (auto ok = check_workspace(limits_.workspace, workspace, bytes); !ok) return ok;
  const CurrentContext scope(context_);
  if (!scope.entered()) return scope.entered();
  auto zeroed = fill_bytes_async(workspace, 0, bytes, stream);
  if (zeroed && status_ != nullptr && status_->has_fault_in(workspace, bytes)) [[unlikely]]
    return status_->acknowledge_after(stream);
  return zeroed;
}

}  // namespace v1
}  // namespace leanattn
