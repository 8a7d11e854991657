// plan.cpp -- makes a plan of a choice and its kernel, and launches it.
#include "runtime/engine/plan.hpp"

#include <algorithm>

#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/engine/launch_checks.hpp"
#include "runtime/lookup/grids.hpp"

namespace leanattn {
inline namespace v1 {

PlanSize plan_size(const DecodeProblem& problem, const Shape& shape) {
  return {.batch = shape.max_batch > 0 ? shape.max_batch : shape.batch,
          .context_capacity = problem.features.batch_invariant ? shape.longest_context : 0};
}

WorkspaceLayout workspace_for(const DecodeProblem& problem, const PlanSize& size, const Config& config) {
  const std::int64_t outputs = output_tiles(problem, {.batch = size.batch}, config.spec);
  return workspace_layout(config.spec, partial_slots(config.spec, config.grid, outputs, size.context_capacity),
                          outputs);
}

PlanCore::PlanCore(const DecodeProblem& problem, const PlanSize& size, Choice choice,
                   std::shared_ptr<const PreparedKernel> kernel, CUctx_st* context, LaunchChecks* checks, bool stand_in)
    : limits_{.problem = problem, .size = size, .workspace = {}},
      choice_(std::move(choice)),
      kernel_(std::move(kernel)),
      name_(kernel_name(choice_.config.spec)),
      context_(context),
      checks_(checks),
      stand_in_(stand_in) {
  Config& config = choice_.config;
  if (config.spec.fixup == FixUp::wait) config.grid = std::min(config.grid, kernel_->resident_ctas);
  limits_.tile = config.spec.tile;
  limits_.row_blocks = row_blocks(config.spec);
  limits_.segment_cost = config.segment_cost;
  limits_.workspace = workspace_for(problem, size, config);
}

Result<void> PlanCore::launch(const leanattn_decode_args& args, void* workspace, CUstream_st* stream) const {
  const auto bound = bind_arguments(limits_, args, workspace);
  if (!bound) [[unlikely]]
    return tl::unexpected(bound.error());
  if (!kernel_->loaded) [[unlikely]]
    return fail(ErrorCode::internal, "this plan's kernel was prepared without a GPU");
  const CurrentContext scope(context_);
  if (!scope.entered()) [[unlikely]]
    return scope.entered();
  if (checks_ != nullptr) [[unlikely]] {
    if (auto ok = checks_->before(limits_, *bound, stream); !ok) return ok;
  }
  auto launched = kernel_->loaded->launch(*bound, choice_.config.grid, stream, choice_.config.l2_promotion);
  if (checks_ != nullptr && launched) [[unlikely]]
    return checks_->after(*bound, stream);
  return launched;
}

Result<void> PlanCore::init_workspace(void* workspace, std::int64_t bytes, CUstream_st* stream) const {
  if (auto ok = check_workspace(limits_.workspace, workspace, bytes); !ok) return ok;
  const CurrentContext scope(context_);
  if (!scope.entered()) return scope.entered();
  return fill_bytes_async(workspace, 0, bytes, stream);
}

}  // namespace v1
}  // namespace leanattn
