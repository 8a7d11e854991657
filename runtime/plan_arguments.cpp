// plan_arguments.cpp -- a launch's arguments: defaults filled in, every value checked before anything reaches the GPU.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "runtime/plan.hpp"
#include "templates/schedule.cuh"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kElementBytes = 2;
constexpr std::uintptr_t kVectorBytes = 16;      // what one load instruction takes
constexpr std::uintptr_t kWorkspaceBytes = 256;  // the alignment that workspace_layout() counts from
constexpr std::int64_t kMostOutputs = 1 << 20;   // the kernel's estimated quotients are exact below it
constexpr int kMostTokens = 1 << 30;             // kernels count a request's tokens in signed 32-bit steps
constexpr std::int64_t kVectorElements = static_cast<std::int64_t>(kVectorBytes) / kElementBytes;

tl::unexpected<Error> invalid(std::string message, std::string hint = {}) {
  return fail(ErrorCode::invalid_argument, std::move(message), std::move(hint));
}

Result<void> check_pointer(const char* name, const void* pointer, std::uintptr_t alignment) {
  if (pointer == nullptr) [[unlikely]] {
    return invalid(fmt::format("{} is null", name), "Give a device pointer.");
  }
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) [[unlikely]] {
    return invalid(fmt::format("{} is {}, which is not a multiple of {} bytes", name, pointer, alignment),
                   "cudaMalloc and the frameworks align to 256; an offset into a tensor may break that.");
  }
  return {};
}

/// One dimension of a tensor: how far apart its elements lie, and how many there are.
struct Dimension {
  const char* name;
  std::int64_t stride;
  std::int64_t extent;
};

/// Strides that kernels can follow, and a last element whose byte offset 64 bits hold. A dimension of one element is
/// never stepped along, so its stride may be anything.
Result<void> check_strides(std::int64_t head_dim, std::initializer_list<Dimension> dimensions) {
  std::int64_t last = head_dim;  // elements up to the end of the last row
  for (const Dimension& dimension : dimensions) {
    if (dimension.extent == 1) continue;
    if (dimension.stride < head_dim) [[unlikely]] {
      return invalid(
          fmt::format("{} is {} elements, less than head_dim, {}", dimension.name, dimension.stride, head_dim),
          "Strides count elements; leave it 0 for the dense stride.");
    }
    if (dimension.stride % kVectorElements != 0) [[unlikely]] {
      return invalid(fmt::format("{} is {} elements, not a multiple of {} (16 bytes)", dimension.name, dimension.stride,
                                 kVectorElements),
                     "Pad rows to 16 bytes.");
    }
    std::int64_t span = 0;
    if (__builtin_mul_overflow(dimension.stride, dimension.extent - 1, &span) ||
        __builtin_add_overflow(last, span, &last)) [[unlikely]] {
      return invalid(fmt::format("{} is {} elements, and {} of them overflow 64 bits", dimension.name, dimension.stride,
                                 dimension.extent));
    }
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(last, kElementBytes, &bytes)) [[unlikely]] {
    return invalid(fmt::format("{} reaches {} elements, whose bytes overflow 64 bits", dimensions.begin()->name, last));
  }
  return {};
}

std::int64_t or_dense(std::int64_t stride, std::int64_t dense) { return stride != 0 ? stride : dense; }

/// The dense strides of K and V in the layout that the problem names.
struct DenseCache {
  std::int64_t batch, head, token;
};
DenseCache dense_cache(const DecodeProblem& problem, std::int64_t capacity) {
  // At most 2^31 tokens x 2^31 heads x 256: batch strides are taken modulo 2^64 here, and an overflow shows as a
  // negative or too small stride to check_strides; capacity x head_dim alone always fits.
  const std::int64_t row = problem.head_dim;
  const auto product = [](std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    return __builtin_mul_overflow(a, b, &result) ? std::int64_t{-1} : result;
  };
  if (problem.layout == KvLayout::contiguous) return {product(problem.kv_heads, capacity * row), capacity * row, row};
  return {product(problem.kv_heads, capacity * row), row, problem.kv_heads * row};
}

}  // namespace

Result<void> check_workspace(const WorkspaceLayout& layout, const void* workspace, std::int64_t bytes) {
  if (auto ok = check_pointer("workspace", workspace, kWorkspaceBytes); !ok) return ok;
  if (bytes < layout.total_bytes) {
    return invalid(fmt::format("the workspace has {} bytes, this plan needs {}", bytes, layout.total_bytes),
                   "Ask leanattn_plan_workspace_bytes.");
  }
  return {};
}

Result<LeanDecodeArgs> bind_arguments(const LaunchLimits& limits, const leanattn_decode_args& args, void* workspace) {
  const DecodeProblem& problem = limits.problem;
  if (args.batch < 1 || args.batch > limits.max_batch) [[unlikely]] {
    return invalid(fmt::format("batch is {}, this plan takes 1 to {}", args.batch, limits.max_batch),
                   "A plan takes up to the max_batch of the shape it was made for.");
  }
  if (args.context_capacity < 1) [[unlikely]] {
    return invalid(fmt::format("context_capacity is {}", args.context_capacity),
                   "Give the tokens that k and v hold per request, at least 1.");
  }
  if (!std::isfinite(args.scale) || args.scale < 0) [[unlikely]] {
    return invalid(fmt::format("scale is {}", args.scale), "Give a positive number, or 0 for 1 / sqrt(head_dim).");
  }
  if (args.reserved != 0) [[unlikely]] {
    return invalid(fmt::format("decode_args.reserved is {}", args.reserved),
                   "Leave it 0; leanattn_decode_args_init does.");
  }
  struct Pointer {
    const char* name;
    const void* value;
    std::uintptr_t alignment;
  };
  for (const Pointer& pointer :
       {Pointer{"q", args.q, kVectorBytes}, Pointer{"k", args.k, kVectorBytes}, Pointer{"v", args.v, kVectorBytes},
        Pointer{"o", args.o, kVectorBytes}, Pointer{"context_lengths", args.context_lengths, alignof(std::int32_t)},
        Pointer{"workspace", workspace, kWorkspaceBytes}}) {
    if (auto ok = check_pointer(pointer.name, pointer.value, pointer.alignment); !ok) [[unlikely]] {
      return tl::unexpected(std::move(ok.error()));
    }
  }
  if (problem.lse) {
    if (auto ok = check_pointer("lse", args.lse, alignof(float)); !ok) [[unlikely]] {
      return tl::unexpected(std::move(ok.error()));
    }
  } else if (args.lse != nullptr) [[unlikely]] {
    return invalid("lse is given, but this plan's problem has no LSE output", "Set lse in the problem to get it.");
  }

  const std::int64_t row = problem.head_dim, capacity = args.context_capacity;
  const DenseCache dense = dense_cache(problem, capacity);
  LeanDecodeArgs bound{};
  bound.q_stride_head = or_dense(args.q_stride_head, row);
  bound.q_stride_batch = or_dense(args.q_stride_batch, problem.q_heads * row);
  bound.o_stride_head = or_dense(args.o_stride_head, row);
  bound.o_stride_batch = or_dense(args.o_stride_batch, problem.q_heads * row);
  bound.k_stride_token = or_dense(args.k_stride_token, dense.token);
  bound.k_stride_head = or_dense(args.k_stride_head, dense.head);
  bound.k_stride_batch = or_dense(args.k_stride_batch, dense.batch);
  bound.v_stride_token = or_dense(args.v_stride_token, dense.token);
  bound.v_stride_head = or_dense(args.v_stride_head, dense.head);
  bound.v_stride_batch = or_dense(args.v_stride_batch, dense.batch);
  const std::int64_t batch = args.batch;
  if (auto ok = check_strides(row, {{"q_stride_batch", bound.q_stride_batch, batch},
                                    {"q_stride_head", bound.q_stride_head, problem.q_heads}});
      !ok) [[unlikely]] {
    return tl::unexpected(std::move(ok.error()));
  }
  if (auto ok = check_strides(row, {{"o_stride_batch", bound.o_stride_batch, batch},
                                    {"o_stride_head", bound.o_stride_head, problem.q_heads}});
      !ok) [[unlikely]] {
    return tl::unexpected(std::move(ok.error()));
  }
  if (auto ok = check_strides(row, {{"k_stride_batch", bound.k_stride_batch, batch},
                                    {"k_stride_head", bound.k_stride_head, problem.kv_heads},
                                    {"k_stride_token", bound.k_stride_token, capacity}});
      !ok) [[unlikely]] {
    return tl::unexpected(std::move(ok.error()));
  }
  if (auto ok = check_strides(row, {{"v_stride_batch", bound.v_stride_batch, batch},
                                    {"v_stride_head", bound.v_stride_head, problem.kv_heads},
                                    {"v_stride_token", bound.v_stride_token, capacity}});
      !ok) [[unlikely]] {
    return tl::unexpected(std::move(ok.error()));
  }
  if (problem.layout == KvLayout::contiguous) {
    for (const auto& [name, stride] :
         {std::pair{"k_stride_token", bound.k_stride_token}, {"v_stride_token", bound.v_stride_token}}) {
      if (stride == row || capacity == 1) [[likely]]
        continue;
      return invalid(fmt::format("{} is {}, but the problem's KV layout is contiguous: {}", name, stride, row),
                     "Make the plan with the strided layout.");
    }
  }

  if (const std::int64_t outputs = std::int64_t{problem.kv_heads} * limits.row_blocks; outputs > kMostOutputs)
      [[unlikely]] {
    return fail(ErrorCode::unsupported, fmt::format("{} output tiles a request, more than 2^20", outputs),
                "Split the KV heads over several launches.");
  }
  if (args.context_capacity > kMostTokens ||
      !lean_line_fits(static_cast<unsigned>(args.batch), static_cast<unsigned>(problem.kv_heads * limits.row_blocks),
                      static_cast<unsigned>(args.context_capacity), static_cast<unsigned>(limits.tile),
                      static_cast<unsigned>(limits.segment_cost))) [[unlikely]] {
    return fail(ErrorCode::unsupported,
                fmt::format("batch {} x {} KV heads x context_capacity {} may need 2^30 LeanTiles of {} tokens or more",
                            args.batch, problem.kv_heads, args.context_capacity, limits.tile),
                "Lower context_capacity (at most 2^30) or the batch; the schedule counts tiles in 32 bits.");
  }

  constexpr float kLog2E = 1.44269504088896341f;
  const float scale = args.scale > 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  bound.q = args.q;
  bound.k = args.k;
  bound.v = args.v;
  bound.o = args.o;
  bound.lse = args.lse;
  bound.context_lengths = args.context_lengths;
  char* const base = static_cast<char*>(workspace);
  bound.partials = reinterpret_cast<float*>(base + limits.workspace.partials_offset);
  bound.tickets = reinterpret_cast<unsigned*>(base + limits.workspace.tickets_offset);
  bound.batch = args.batch;
  bound.kv_heads = problem.kv_heads;
  bound.context_capacity = args.context_capacity;
  bound.scale_log2 = scale * kLog2E;
  bound.segment_cost = static_cast<unsigned>(limits.segment_cost);
  return bound;
}

}  // namespace v1
}  // namespace leanattn
