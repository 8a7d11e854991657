// launch_checks.cpp -- asks the driver about pointers, follows workspaces by events, and checks arrays on the GPU.
#include "runtime/engine/launch_checks.hpp"

#include <fmt/format.h>

#include "runtime/cuda/device_pointer.hpp"

namespace leanattn {
inline namespace v1 {

Result<void> LaunchChecks::before(const LaunchLimits& limits, const LeanDecodeArgs& args, CUstream_st* stream) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  struct Named {
    const char* name;
    const void* pointer;
  };
  for (const Named& named :
       {Named{"q", args.q},
        Named{"k", args.k},
        Named{"v", args.v},
        Named{"o", args.o},
        Named{limits.problem.features.packed_kv ? "kv_offsets" : "context_lengths", args.context_lengths},
        Named{"workspace", args.tickets},
        Named{"lse", args.lse},
        Named{"page_table", args.page_table},
        Named{"q_offsets", args.q_offsets},
        Named{"tree_mask", args.tree_mask},
        Named{"spans", args.spans},
        Named{"alibi_slopes", args.alibi_slopes},
        Named{"sink_logits", args.sink_logits},
        Named{"k_scale", args.k_scale},
        Named{"v_scale", args.v_scale},
        Named{"k_block_scales", args.k_block_scales},
        Named{"v_block_scales", args.v_block_scales},
        Named{"k_new", args.k_new},
        Named{"v_new", args.v_new},
        Named{"rope_table", args.rope_table},
        Named{"selection", args.selection},
        Named{"selected_counts", args.selected_counts},
        Named{"second_k", args.second_k},
        Named{"second_v", args.second_v},
        Named{"second_page_table", args.second_page_table},
        Named{"second_lengths", args.second_lengths},
        Named{"full_context_lengths", args.full_lengths},
        Named{"context_starts", args.context_starts}}) {
    // bind_arguments() has refused null where a pointer is needed.
    if (named.pointer == nullptr) continue;
    if (auto ok = check_cuda_pointer(**api, named.name, named.pointer); !ok) return ok;
  }
  const std::int64_t bytes = bytes_from(**api, args.tickets);
  if (bytes > 0) {
    if (auto ok = check_workspace(limits.workspace, args.tickets, bytes); !ok) return ok;
  }
  if (may_be_capturing(**api, stream)) return {};
  if (auto ok = check_use(args, stream); !ok) return ok;
  return check_arrays(limits, args, stream);
}

Result<void> LaunchChecks::check_use(const LeanDecodeArgs& args, CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  const auto use = uses_.find(args.tickets);
  if (use == uses_.end() || use->second.stream == stream_identity(stream)) return {};
  const auto ended = use->second.end.query();
  if (!ended) return tl::unexpected(ended.error());
  if (*ended) return {};
  return fail(
      ErrorCode::invalid_argument,
      fmt::format("workspace {} is still in use by a launch on another stream", static_cast<const void*>(args.tickets)),
      "Keep one workspace per stream.");
}

Result<void> LaunchChecks::check_arrays(const LaunchLimits& limits, const LeanDecodeArgs& args, CUstream_st* stream) {
  const std::lock_guard lock(arrays_mutex_);
  if (!arrays_) {
    auto loaded = ArrayCheck::load(arch_, cubins_.get());
    if (!loaded) return tl::unexpected(std::move(loaded.error()));
    arrays_.emplace(*std::move(loaded));
  }
  if (auto ok = (*arrays_)(limits.problem, args, stream); !ok) return ok;
  const char* const workspace = reinterpret_cast<const char*>(args.tickets) - limits.workspace.tickets_offset;
  return arrays_->expect_zero(workspace, limits.workspace.total_bytes, stream);
}

Result<void> LaunchChecks::after(const LeanDecodeArgs& args, CUstream_st* stream) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  if (may_be_capturing(**api, stream)) return {};
  const std::lock_guard lock(mutex_);
  auto use = uses_.find(args.tickets);
  if (use == uses_.end()) {
    auto event = Event::create(false);
    if (!event) return tl::unexpected(event.error());
    use = uses_.emplace(args.tickets, Use{stream_identity(stream), *std::move(event)}).first;
  }
  use->second.stream = stream_identity(stream);
  return use->second.end.record(stream);
}

}  // namespace v1
}  // namespace leanattn
