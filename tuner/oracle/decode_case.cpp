// decode_case.cpp -- creates a decode case and writes its data.
#include "tuner/oracle/decode_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "generator/kv_encoding.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/one_gpu.hpp"
#include "tuner/oracle/decode_case_detail.hpp"
#include "tuner/oracle/oracle.hpp"

namespace leanattn {
inline namespace v1 {
Result<void> decode_case_detail::wait_for(CUstream_st* stream) {
  const Result<const DriverApi*> api = driver();
  if (!api) return tl::unexpected(api.error());
  return check((*api)->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

Result<DecodeCase> DecodeCase::create(std::shared_ptr<const OracleKernels> kernels, const DecodeProblem& problem,
                                      std::vector<int> context_lengths, const DecodeCaseOptions& options,
                                      CUstream_st* stream) {
  LEANATTN_TRY(validate(problem));
  LEANATTN_TRY(one_gpu_only(problem, "a decode case"));
  const Features& features = problem.features;
  if (context_lengths.empty()) return fail(ErrorCode::invalid_argument, "a decode case needs at least one request");
  if (options.context_capacity < 0 || options.kv_copies < 1) {
    return fail(ErrorCode::invalid_argument, fmt::format("a decode case cannot have a capacity of {} and {} KV copies",
                                                         options.context_capacity, options.kv_copies));
  }
  if (options.part.ranks > 1 && (has_selection(features) || options.shared_prefix > 0)) {
    return fail(ErrorCode::invalid_argument, "a part of a decode case with a selection or a shared prefix");
  }
  DecodeCase result;
  for (std::size_t request = 0; request < context_lengths.size(); ++request) {
    int count = features.q_len;
    if (features.ragged_q) {
      count = options.query_tokens.empty()
                  ? data_query_tokens(options.seed, features, static_cast<int>(request), context_lengths[request])
              : request < options.query_tokens.size() ? options.query_tokens[request]
                                                      : -1;
    }
    if (count < 0 || count > features.q_len) {
      return fail(ErrorCode::invalid_argument,
                  fmt::format("request {} of a decode case has {} query tokens", request, count),
                  fmt::format("Give each request 0 to {}.", features.q_len));
    }
    result.query_tokens_.push_back(count);
  }
  if (kernels->score() != features.score) {
    auto own = kernels->for_score(features.score);
    if (!own) return tl::unexpected(own.error());
    kernels = std::move(*own);
  }
  result.kernels_ = std::move(kernels);
  result.problem_ = problem;
  result.options_ = options;
  // What kernels quantise can be compared bit by bit only where it is known to the last bit.
  if (features.append && stages_scales(features)) result.options_.data = DataKind::written;
  result.lengths_ = std::move(context_lengths);
  LEANATTN_TRY(result.allocate(stream));
  return result;
}

Result<void> DecodeCase::plant_kv(CUstream_st* stream) {
  // int8 has no NaN. Its lowest value is one that no data has.
  const std::uint8_t poison = kv_encoding(problem_.features).poison;
  LEANATTN_TRY(fill_bytes_async(k_.data(), poison, k_.bytes(), stream));
  LEANATTN_TRY(fill_bytes_async(v_.data(), poison, v_.bytes(), stream));
  if (has_token_scales(problem_.features) && !has_scales_in_rows(problem_.features))
    LEANATTN_TRY(fill_bytes_async(kv_scales_.data(), kPoisonByte, kv_scales_.bytes(), stream));
  if (block_scales_.bytes() > 0)
    LEANATTN_TRY(fill_bytes_async(block_scales_.data(), kPoisonByte, block_scales_.bytes(), stream));
  if (check_.spans != 0) LEANATTN_TRY(kernels_->fill_spans(args_, check_, stream));
  if (check_.page_size > 0) LEANATTN_TRY(kernels_->fill_table(args_, check_, pages_.as<int>(), stream));
  if (check_.selection_block > 0) LEANATTN_TRY(kernels_->fill_selection(args_, check_, stream));
  if (check_.selection_block > 0 && options_.selection_shuffled) LEANATTN_TRY(shuffle_selection(stream));
  for (int copy = 0; copy < options_.kv_copies; ++copy) {
    LEANATTN_TRY(kernels_->fill_kv(args(copy), check_, stream));
  }
  if (check_.second_cache != 0) LEANATTN_TRY(plant_second_cache(stream));
  if (check_.rope != 0)
    LEANATTN_TRY(kernels_->fill_q(args_, check_, stream));  // The lengths decide the tokens' positions.
  if (check_.append != 0) LEANATTN_TRY(kernels_->new_rows(NewRowsStep::plant, args_, check_, nullptr, stream));
  return {};
}

Result<void> DecodeCase::plant_second_cache(CUstream_st* stream) {
  // It is a paged cache as the first, of requests that are full.
  LeanDecodeArgs second = args_;
  second.k = args_.second_k, second.v = args_.second_v;
  second.page_table = args_.second_page_table, second.page_table_stride = args_.second_page_table_stride;
  second.pool_pages = args_.second_pool_pages;
  second.context_lengths = second_full_lengths_.as<int>(), second.context_capacity = args_.second_capacity;
  CheckFeatures check = check_;
  check.data_request = kSecondRequest;
  check.max_pages = args_.second_capacity / check_.page_size;
  check.shared_prefix = 0, check.selection_block = 0;
  LEANATTN_TRY(fill_bytes_async(second_k_.data(), kPoisonByte, second_k_.bytes(), stream));
  LEANATTN_TRY(fill_bytes_async(second_v_.data(), kPoisonByte, second_v_.bytes(), stream));
  LEANATTN_TRY(kernels_->fill_table(second, check, second_pages_.as<int>(), stream));
  return kernels_->fill_kv(second, check, stream);
}

LeanDecodeArgs DecodeCase::args(int kv_copy) const {
  LeanDecodeArgs args = args_;
  args.k = static_cast<const std::uint8_t*>(args_.k) + kv_copy * kv_copy_bytes_;
  args.v = static_cast<const std::uint8_t*>(args_.v) + kv_copy * kv_copy_bytes_;
  if (has_block_scales(problem_.features) && block_scales_.bytes() == 0) {
    args.k_block_scales = static_cast<const std::uint8_t*>(args_.k_block_scales) + kv_copy * kv_copy_bytes_;
    args.v_block_scales = static_cast<const std::uint8_t*>(args_.v_block_scales) + kv_copy * kv_copy_bytes_;
  }
  if (has_scales_in_rows(problem_.features)) {
    args.k_scale += kv_copy * kv_copy_bytes_ / static_cast<std::int64_t>(sizeof(float));
    args.v_scale += kv_copy * kv_copy_bytes_ / static_cast<std::int64_t>(sizeof(float));
  }
  return args;
}

DecodeCase::ReadHalves DecodeCase::read_halves(int kv_copy) const {
  using decode_case_detail::kUnitBytes;
  // Where K and V share memory, both halves are of K's buffer. Query tokens that select the same tokens cannot make a
  // launch read more than there is.
  const bool apart = v_.bytes() > 0;
  const std::int64_t room = kv_copy_bytes_ / (apart ? 1 : 2);
  const std::int64_t bytes_each = std::max(std::min(kv_bytes() / 2, room) / kUnitBytes * kUnitBytes, kUnitBytes);
  const std::int64_t start = kv_copy * kv_copy_bytes_;
  return {k_.at(start), apart ? v_.at(start) : k_.at(start + bytes_each), bytes_each};
}

Result<LeanDecodeArgs> DecodeCase::bind(const KernelSpec& spec, LaunchGrid grid, CheckWorkspace& workspace,
                                        CUstream_st* stream, int kv_copy) const {
  LeanDecodeArgs bound = args(kv_copy);
  bound.segment_cost = static_cast<unsigned>(grid.segment_cost);
  LEANATTN_TRY(workspace.bind(bound, this->workspace(spec, grid.ctas), stream));
  return bound;
}

std::int64_t DecodeCase::output_tiles(const KernelSpec& spec) const {
  return leanattn::output_tiles(problem_, batch(), spec);
}

WorkspaceLayout DecodeCase::workspace(const KernelSpec& spec, std::int64_t grid) const {
  const int lists = args_.selection_capacity * problem_.features.selection_block;
  return workspace_layout(
      spec, partial_slots(spec, grid, output_tiles(spec), check_.selection_block > 0 ? lists : args_.context_capacity));
}

std::vector<int> DecodeCase::kv_offsets() const {
  std::vector<int> offsets{0};
  for (const int length : lengths_)
    offsets.push_back(std::min(offsets.back() + std::max(length, 0), options_.context_capacity));
  return offsets;
}

int DecodeCase::clamped_length(int request) const {
  if (check_.packed_kv != 0) {
    const std::vector<int> offsets = kv_offsets();
    return offsets[static_cast<std::size_t>(request) + 1] - offsets[static_cast<std::size_t>(request)];
  }
  return std::clamp(lengths_[static_cast<std::size_t>(request)], 0, options_.context_capacity);
}

std::int64_t DecodeCase::shared_tokens() const {
  return leanattn::shared_tokens(problem_.features, options_.shared_prefix, clamped_length(0));
}

std::int64_t DecodeCase::kv_bytes() const {
  std::vector<int> contexts(lengths_.size());
  for (int request = 0; request < batch(); ++request)
    contexts[static_cast<std::size_t>(request)] =
        (check_.selection_block > 0 ? selected_tokens(request) : clamped_length(request)) +
        (check_.second_cache != 0 ? data_second_length(options_.seed, request, 0, args_.second_capacity) : 0);
  const RequestLengths lengths{
      .context_lengths = contexts, .query_tokens = query_tokens_, .shared_tokens = shared_tokens()};
  return leanattn::kv_bytes(problem_, lengths) + kv_scale_bytes(problem_, lengths);
}

DataSelection DecodeCase::selection() const {
  return {
      .spread = check_.selection_spread, .holes = check_.selection_holes != 0, .shared = check_.selection_heads == 1};
}

Result<void> DecodeCase::shuffle_selection(CUstream_st* stream) const {
  std::vector<int> lists(static_cast<std::size_t>(selection_.bytes() / 4)),
      counts(static_cast<std::size_t>(selected_counts_.bytes() / 4));
  LEANATTN_TRY(copy_to_host_async(lists.data(), selection_.data(), selection_.bytes(), stream));
  LEANATTN_TRY(copy_to_host_async(counts.data(), selected_counts_.data(), selected_counts_.bytes(), stream));
  LEANATTN_TRY(decode_case_detail::wait_for(stream));
  std::mt19937_64 random(options_.seed);
  auto counted = counts.begin();
  for (int request = 0; request < batch(); ++request) {
    for (int t = 0; t < problem_.features.q_len; ++t) {
      const int count = std::clamp(*counted++, 0, args_.selection_capacity);
      for (int head = 0; head < check_.selection_heads; ++head) {
        const auto first = lists.begin() + (request * args_.selection_stride_batch + t * args_.selection_stride_token +
                                            head * args_.selection_stride_head);
        std::shuffle(first, first + count, random);
      }
    }
  }
  LEANATTN_TRY(copy_to_device_async(selection_.data(), lists.data(), selection_.bytes(), stream));
  return decode_case_detail::wait_for(stream);
}

int DecodeCase::selected_tokens(int request) const {
  const auto list =
      data_selection(options_.seed, problem_.features, selection(), request, 0, 0, clamped_length(request));
  return static_cast<int>(list.size()) * problem_.features.selection_block;
}

Result<void> DecodeCase::set_context_lengths(std::vector<int> context_lengths, CUstream_st* stream) {
  if (context_lengths.size() != lengths_.size()) {
    return fail(ErrorCode::invalid_argument, fmt::format("{} context lengths were given for a case of {} requests",
                                                         context_lengths.size(), lengths_.size()));
  }
  lengths_ = std::move(context_lengths);
  reference_.reset();
  LEANATTN_TRY(upload_lengths(stream));
  return plant_kv(stream);
}

Result<void> DecodeCase::upload_lengths(CUstream_st* stream) {
  const std::int64_t bytes = std::int64_t{batch()} * 4;
  const bool whole = options_.part.ranks == 1;
  if (check_.packed_kv != 0) {
    const std::vector<int> offsets = kv_offsets();
    LEANATTN_TRY(copy_to_device_async(const_cast<int*>(args_.context_lengths), offsets.data(), bytes + 4, stream));
    return decode_case_detail::wait_for(stream);  // before the copy's source goes
  }
  if (!whole) {
    contexts_.clear();
    for (int request = 0; request < batch(); ++request) contexts_.push_back(clamped_length(request));
    held_ = held_tokens(options_.part, contexts_, options_.seed);
    LEANATTN_TRY(copy_to_device_async(contexts_device_.data(), contexts_.data(), bytes, stream));
    LEANATTN_TRY(copy_to_device_async(starts_device_.data(), held_.starts.data(), bytes, stream));
  }
  return copy_to_device_async(const_cast<int*>(args_.context_lengths), (whole ? lengths_ : held_.lengths).data(), bytes,
                              stream);
}

Result<void> DecodeCase::reset_outputs(CUstream_st* stream) {
  LEANATTN_TRY(fill_bytes_async(o_.data(), kPoisonByte, o_.bytes(), stream));
  LEANATTN_TRY(spoil_new_rows(stream));
  return fill_bytes_async(lse_.data(), kPoisonByte, lse_.bytes(), stream);
}

Result<void> DecodeCase::spoil_new_rows(CUstream_st* stream) {
  if (check_.append == 0) return {};
  return kernels_->new_rows(NewRowsStep::spoil, args_, check_, nullptr, stream);
}

}  // namespace v1
}  // namespace leanattn
