// array_check.cpp -- launches the check and turns what it finds into an error.
#include "runtime/engine/array_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "cache/cubin/cubin_db.hpp"
#include "generator/templates.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/driver.hpp"
#include "templates/check/pages.cuh"
#include "templates/check/workspace.cuh"

namespace leanattn {
inline namespace v1 {
namespace {

Result<void> wait_for(CUstream_st* stream) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  return check((*api)->cuStreamSynchronize(stream), "cuStreamSynchronize", ErrorCode::launch_failed);
}

/// N entries of an array on the GPU from `index` on.
template <std::size_t N>
Result<std::array<int, N>> read_entries(const int* array, std::int64_t index, CUstream_st* stream) {
  std::array<int, N> values{};
  if (auto ok = copy_to_host_async(values.data(), array + index, sizeof values, stream); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = wait_for(stream); !ok) return tl::unexpected(ok.error());
  return values;
}

/// The error about what the check found: request, array and index in one word.
Result<void> describe(std::uint64_t offender, const DecodeProblem& problem, const LeanDecodeArgs& args,
                      CUstream_st* stream) {
  const auto request = static_cast<std::int64_t>(offender >> 33);
  const auto array = static_cast<LeanArray>(offender >> 31 & 3);
  const auto index = static_cast<std::int64_t>(offender & 0x7fffffff);
  if (array == kLeanContextLengths && problem.features.packed_kv) {
    const auto offsets = read_entries<2>(args.context_lengths, request, stream);
    if (!offsets) return tl::unexpected(offsets.error());
    return fail(ErrorCode::invalid_argument,
                fmt::format("kv_offsets[{}] is {} and kv_offsets[{}] {}, and k and v have {} rows", request,
                            (*offsets)[0], request + 1, (*offsets)[1], args.context_capacity),
                "Offsets do not fall, and end at most at context_capacity, the tokens that k and v hold.");
  }
  if (array == kLeanContextLengths) {
    const auto length = read_entries<1>(args.context_lengths, request, stream);
    if (!length) return tl::unexpected(length.error());
    return fail(
        ErrorCode::invalid_argument,
        fmt::format("context_lengths[{}] is {}, and the capacity {}", request, (*length)[0], args.context_capacity),
        "Lengths count the tokens in the cache, new ones included.");
  }
  if (array == kLeanQueryOffsets && index >= 2) {
    const auto offset = read_entries<1>(args.q_offsets, request, stream);
    if (!offset) return tl::unexpected(offset.error());
    const auto token = (*offset)[0] + index - 2;
    const auto span = read_entries<2>(&args.spans->first, 2 * token, stream);
    if (!span) return tl::unexpected(span.error());
    return fail(ErrorCode::invalid_argument,
                fmt::format("spans[{}], of query token {} of request {}, is {} to {}", token, index - 2, request,
                            (*span)[0], (*span)[1]),
                "A span holds its query tokens' indices in the context, and overlaps no other one; 0 to 0 is none.");
  }
  if (array == kLeanQueryOffsets) {
    const auto offsets = read_entries<2>(args.q_offsets, request, stream);
    if (!offsets) return tl::unexpected(offsets.error());
    return fail(
        ErrorCode::invalid_argument,
        fmt::format("q_offsets[{}] is {} and q_offsets[{}] {}", request, (*offsets)[0], request + 1, (*offsets)[1]),
        fmt::format("Offsets start at 0, rise by 0 to q_len, {}, and end at most at {}, the query tokens for which q "
                    "has room.",
                    problem.features.q_len, args.query_tokens));
  }
  if (array == kLeanSelectedCounts) {
    const int q_len = problem.features.q_len;
    if (index >= q_len) {
      const auto length = read_entries<1>(args.second_lengths, request * q_len + index - q_len, stream);
      if (!length) return tl::unexpected(length.error());
      return fail(ErrorCode::invalid_argument,
                  fmt::format("second_lengths, request {}, query token {} is {}, and the second cache has {} tokens a "
                              "request",
                              request, index - q_len, (*length)[0], args.second_capacity),
                  "Lengths count tokens of the request's pages in the second cache.");
    }
    const auto count = read_entries<1>(args.selected_counts, request * q_len + index, stream);
    if (!count) return tl::unexpected(count.error());
    return fail(ErrorCode::invalid_argument,
                fmt::format("selected_counts, request {}, query token {} is {}, and lists have {} entries", request,
                            index, (*count)[0], args.selection_capacity),
                "Counts say how many entries of a list count, holes among them included.");
  }
  const auto page = read_entries<1>(args.page_table, request * args.page_table_stride + index, stream);
  if (!page) return tl::unexpected(page.error());
  return fail(ErrorCode::invalid_argument,
              fmt::format("page_table, request {}, entry {} is {}, and the pool has {} pages", request, index,
                          (*page)[0], args.pool_pages),
              "Give a page of the pool. Without LEANATTN_DEBUG the tokens of such an entry are ignored, as if masked.");
}

}  // namespace

std::string array_check_source() {
  return joined_templates(
      "// Checks of leanattn's launches: what the arrays on the device hold.\n#define LEAN_LONG_ARGUMENTS\n#define "
      "LEAN_SPANS",
      {"kernel_args.cuh", "check/pages.cuh", "check/workspace.cuh"});
}

Result<ArrayCheck> ArrayCheck::load(Arch arch, CubinCache* cubins) {
  const auto compiled = compile_source(array_check_source(), arch, cubins);
  if (!compiled) return tl::unexpected(compiled.error());
  auto source = LoadedSource::load(*compiled);
  if (!source) return tl::unexpected(std::move(source.error()));
  const auto function = source->function("lean_check_arrays");
  if (!function) return tl::unexpected(function.error());
  const auto workspace_function = source->function("lean_check_workspace");
  if (!workspace_function) return tl::unexpected(workspace_function.error());
  auto offender = DeviceBuffer::allocate(sizeof(std::uint64_t));
  if (!offender) return tl::unexpected(std::move(offender.error()));
  return ArrayCheck(*std::move(source), *function, *workspace_function, *std::move(offender));
}

Result<void> ArrayCheck::operator()(const DecodeProblem& problem, const LeanDecodeArgs& args,
                                    CUstream_st* stream) const {
  constexpr unsigned kThreads = 256;  // as in templates/check/pages.cuh
  const Features& features = problem.features;
  const LeanArrayLimits limits{features.page_size,
                               features.q_len,
                               features.window,
                               features.sink_tokens,
                               features.ragged_q,
                               features.spans,
                               has_selection(features),
                               features.selection_in_pool,
                               features.second_cache,
                               features.context_parallel,
                               features.context_interleave,
                               features.packed_kv};
  const LaunchDims dims{.grid_x = static_cast<unsigned>(args.batch), .threads = kThreads};
  const auto offender = first_offender(
      stream, [&](unsigned long long* word) { return launch_with(function_, dims, stream, args, limits, word); });
  if (!offender) return tl::unexpected(offender.error());
  return *offender == kLeanNoOffender ? Result<void>{} : describe(*offender, problem, args, stream);
}

Result<void> ArrayCheck::expect_zero(const void* workspace, std::int64_t bytes, CUstream_st* stream) const {
  constexpr std::int64_t kThreads = 256, kMostBlocks = 1024;  // as in templates/check/workspace.cuh
  const auto* const words = static_cast<const unsigned*>(workspace);
  const auto count = static_cast<unsigned long long>(bytes) / sizeof *words;
  const std::int64_t blocks = std::clamp<std::int64_t>(static_cast<std::int64_t>(count) / kThreads, 1, kMostBlocks);
  const LaunchDims dims{.grid_x = static_cast<unsigned>(blocks), .threads = static_cast<unsigned>(kThreads)};
  const auto offender = first_offender(stream, [&](unsigned long long* word) {
    return launch_with(workspace_function_, dims, stream, words, count, word);
  });
  if (!offender) return tl::unexpected(offender.error());
  if (*offender == kLeanAllZero) return {};
  std::uint32_t value = 0;
  if (auto ok = copy_to_host_async(&value, words + *offender, sizeof value, stream); !ok) return ok;
  if (auto ok = wait_for(stream); !ok) return ok;
  return fail(
      ErrorCode::workspace_corrupt,
      fmt::format("word {} of workspace {} is {:#x}, and between launches all are zero", *offender, workspace, value),
      "Initialise the workspace. If it was initialised, a launch on it was aborted, or two used it at a time, or "
      "context_lengths changed while one ran, or other code wrote there.");
}

Result<std::uint64_t> ArrayCheck::first_offender(
    CUstream_st* stream, const std::function<Result<void>(unsigned long long*)>& launch_check) const {
  auto* const word = offender_.as<unsigned long long>();
  unsigned long long offender = 0;
  if (auto ok = fill_bytes_async(word, 0xff, sizeof *word, stream); !ok) return tl::unexpected(ok.error());
  if (auto ok = launch_check(word); !ok) return tl::unexpected(ok.error());
  if (auto ok = copy_to_host_async(&offender, word, sizeof offender, stream); !ok) return tl::unexpected(ok.error());
  if (auto ok = wait_for(stream); !ok) return tl::unexpected(ok.error());
  return offender;
}

}  // namespace v1
}  // namespace leanattn
