// partials_merger.cpp -- checks the arguments of a merge, compiles its kernel once, and launches it.
#include "runtime/engine/partials_merger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <limits>

#include "generator/templates.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/engine/argument_checks.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

static_assert(LEANATTN_MERGE_PARTS == LEAN_MERGE_PARTS);

constexpr unsigned kMergeThreads = 128;
constexpr std::int64_t kRowsPerCta = kMergeThreads / 32;

using detail::invalid;

Result<void> check_aligned(const char* name, int part, const void* pointer, std::uintptr_t alignment) {
  const std::string full = part < 0 ? name : fmt::format("{}[{}]", name, part);
  if (pointer == nullptr) return invalid(fmt::format("{} is null", full), "Give a device pointer.");
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0)
    return invalid(fmt::format("{} is {}, which is not a multiple of {} bytes", full, pointer, alignment));
  return {};
}

/// One CTA of the merger's kernels for every `each` of `count`.
LaunchDims ctas_for(std::int64_t count, std::int64_t each) {
  return {.grid_x = static_cast<unsigned>((count + each - 1) / each), .threads = kMergeThreads};
}

}  // namespace

std::string merge_source() {
  return joined_templates("// Merging of leanattn's partial results.",
                          {"standalone/merge_partials.cuh", "standalone/begin_exchange.cuh"});
}

Result<void> check_merge(const leanattn_merge_args& args) {
  if (args.parts < 1 || args.parts > LEANATTN_MERGE_PARTS)
    return invalid(fmt::format("parts is {}", args.parts), fmt::format("Give 1 to {}.", LEANATTN_MERGE_PARTS));
  if (args.rows < 0 || args.rows > std::numeric_limits<std::int32_t>::max())
    return invalid(fmt::format("rows is {}", args.rows), "Give 0 to 2^31 - 1.");
  if (args.dim < 2 || args.dim % 2 != 0) return invalid(fmt::format("dim is {}", args.dim), "Give an even number.");
  if (args.dtype != LEANATTN_BF16 && args.dtype != LEANATTN_FP16)
    return invalid(fmt::format("dtype is {}", args.dtype), "Give LEANATTN_BF16 (0) or LEANATTN_FP16 (1).");
  for (const auto& [name, stride] :
       {std::pair{"o_stride_row", args.o_stride_row}, {"out_stride_row", args.out_stride_row}}) {
    if (stride != 0 && (stride < args.dim || stride % 2 != 0))
      return invalid(fmt::format("{} is {} elements, with dim {}", name, stride, args.dim),
                     "Strides count elements, and are even; 0 is dim.");
  }
  if (args.reserved != 0)
    return invalid(fmt::format("merge_args.reserved is {}", args.reserved),
                   "Leave it 0; leanattn_merge_args_init does.");
  if (args.rows == 0) return {};  // frameworks have no memory for what is empty
  for (int part = 0; part < args.parts; ++part) {
    if (auto ok = check_aligned("o", part, args.o[part], 4); !ok) return ok;
    if (auto ok = check_aligned("lse", part, args.lse[part], 4); !ok) return ok;
  }
  if (args.out_lse != nullptr) {
    if (auto ok = check_aligned("out_lse", -1, args.out_lse, 4); !ok) return ok;
  }
  return check_aligned("out_o", -1, args.out_o, 4);
}

PartialsMerger::PartialsMerger(Arch arch, CUctx_st* context, CubinCache* cubins)
    : arch_(arch), context_(context), cubins_(cubins) {}
PartialsMerger::~PartialsMerger() = default;

Result<void> PartialsMerger::load() {
  const std::lock_guard lock(mutex_);
  if (ready()) return {};
  const auto compiled = compile_source(merge_source(), arch_, cubins_);
  if (!compiled) return tl::unexpected(compiled.error());
  auto loaded = LoadedSource::load(*compiled);
  if (!loaded) return tl::unexpected(std::move(loaded.error()));
  const auto bf16 = loaded->function("merge_partials_bf16"), fp16 = loaded->function("merge_partials_fp16"),
             begin = loaded->function("begin_exchange");
  for (const auto* function : {&bf16, &fp16, &begin}) {
    if (!*function) return tl::unexpected(function->error());
  }
  source_ = std::make_unique<LoadedSource>(*std::move(loaded));
  begin_.store(*begin, std::memory_order_release);
  functions_[LEANATTN_FP16].store(*fp16, std::memory_order_release);
  functions_[LEANATTN_BF16].store(*bf16, std::memory_order_release);
  return {};
}

Result<void> PartialsMerger::prepare(bool capturing) {
  if (ready()) return {};
  if (capturing)
    return fail(ErrorCode::not_prepared, "merge_partials is not loaded yet, and the stream is being captured",
                "Merge once, or make the plan of the group, before the stream capture begins.");
  const CurrentContext scope(context_);
  if (!scope.entered()) return scope.entered();
  return load();
}

Result<void> PartialsMerger::merge(const LeanMergeArgs& args, DType dtype, CUstream_st* stream) const {
  assert(ready());
  CUfunc_st* const function = functions_[dtype == DType::fp16 ? LEANATTN_FP16 : LEANATTN_BF16].load();
  const std::int64_t rows = std::int64_t{args.tokens} * args.heads;
  return launch_with(function, ctas_for(std::max<std::int64_t>(rows, 1), kRowsPerCta), stream, args);
}

Result<void> PartialsMerger::begin(const LeanBeginArgs& args, CUstream_st* stream) const {
  assert(ready());
  return launch_with(begin_.load(), LaunchDims{.grid_x = 1, .threads = 32}, stream, args);
}

Result<void> PartialsMerger::launch(const leanattn_merge_args& args, bool capturing, CUstream_st* stream) {
  if (auto ok = check_merge(args); !ok || args.rows == 0) return ok;
  if (auto ok = prepare(capturing); !ok) return ok;
  const CurrentContext scope(context_);
  if (!scope.entered()) return scope.entered();
  LeanMergeArgs bound{};
  for (int part = 0; part < args.parts; ++part) bound.o[part] = args.o[part], bound.lse[part] = args.lse[part];
  bound.out_o = args.out_o;
  bound.out_lse = args.out_lse;
  bound.o_stride_token = args.o_stride_row != 0 ? args.o_stride_row : args.dim;
  bound.out_stride_batch = args.out_stride_row != 0 ? args.out_stride_row : args.dim;
  bound.lse_stride_token = bound.out_lse_stride_token = 1;
  bound.tokens = static_cast<int>(args.rows);
  bound.heads = bound.request_tokens = 1;
  bound.parts = args.parts;
  bound.dim = args.dim;
  return merge(bound, args.dtype == LEANATTN_FP16 ? DType::fp16 : DType::bf16, stream);
}

}  // namespace v1
}  // namespace leanattn
