// decode_case.cpp -- allocation and planting of one decode case; its workspace.
#include "tuner/decode_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "generator/workspace.hpp"
#include "runtime/driver.hpp"
#include "tuner/decode_case_detail.hpp"
#include "tuner/oracle.hpp"

namespace leanattn {
inline namespace v1 {
using decode_case_detail::round_up;
using decode_case_detail::wait_for;

namespace {

constexpr int kUnitsOf16Bytes = 8;    // elements: bases and strides are multiples of this
constexpr int kRoomPastContext = 72;  // tokens of NaN behind the longest context: more than one warp step

}  // namespace

Result<void> decode_case_detail::wait_for(CUstream_st* stream) {
  const Result<const DriverApi*> api = driver();
  if (!api) return tl::unexpected(api.error());
  return check((*api)->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

Result<void> CheckWorkspace::bind(LeanDecodeArgs& args, const KernelSpec& spec, std::int64_t grid,
                                  std::int64_t output_tiles, CUstream_st* stream) {
  const WorkspaceLayout layout = workspace_layout(spec, grid, output_tiles);
  bound_bytes_ = layout.total_bytes;
  if (buffer_.bytes() < bound_bytes_ + kGuardBytes) {
    buffer_ = DeviceBuffer();
    auto grown = DeviceBuffer::allocate(bound_bytes_ + kGuardBytes);
    if (!grown) return tl::unexpected(grown.error());
    buffer_ = std::move(*grown);
    LEANATTN_TRY(reset(stream));
  }
  auto* base = buffer_.as<std::uint8_t>();
  args.partials = reinterpret_cast<float*>(base + layout.partials_offset);
  args.tickets = reinterpret_cast<unsigned*>(base + layout.tickets_offset);
  return {};
}

Result<void> CheckWorkspace::reset(CUstream_st* stream) {
  return fill_bytes_async(buffer_.data(), 0, buffer_.bytes(), stream);
}

Result<void> CheckWorkspace::arm_guard(CUstream_st* stream) {
  return fill_bytes_async(buffer_.at(bound_bytes_), kPoisonByte, kGuardBytes, stream);
}

Result<void> CheckWorkspace::disarm_guard(CUstream_st* stream) {
  return fill_bytes_async(buffer_.at(bound_bytes_), 0, kGuardBytes, stream);
}

Result<DecodeCase> DecodeCase::create(std::shared_ptr<const OracleKernels> kernels, const DecodeProblem& problem,
                                      std::vector<int> context_lengths, const DecodeCaseOptions& options,
                                      CUstream_st* stream) {
  LEANATTN_TRY(validate(problem));
  if (context_lengths.empty()) return fail(ErrorCode::invalid_argument, "a decode case needs at least one request");
  if (options.context_capacity < 0 || options.kv_copies < 1) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("a decode case with capacity {} and {} KV copies makes no sense", options.context_capacity,
                            options.kv_copies));
  }
  DecodeCase result;
  result.kernels_ = std::move(kernels);
  result.problem_ = problem;
  result.options_ = options;
  result.lengths_ = std::move(context_lengths);
  LEANATTN_TRY(result.allocate(stream));
  return result;
}

Result<void> DecodeCase::allocate(CUstream_st* stream) {
  const std::int64_t head_dim = problem_.head_dim, kv_heads = problem_.kv_heads, q_heads = problem_.q_heads;
  if (options_.context_capacity == 0) {
    const std::int64_t longest = std::max(0, *std::max_element(lengths_.begin(), lengths_.end()));
    options_.context_capacity =
        static_cast<int>(std::min<std::int64_t>(longest + kRoomPastContext, std::numeric_limits<int>::max()));
  }
  const std::int64_t capacity = options_.context_capacity;
  const auto pad = [&](std::int64_t units) { return options_.padded ? units * kUnitsOf16Bytes : 0; };

  args_.batch = batch();
  args_.kv_heads = problem_.kv_heads;
  args_.context_capacity = options_.context_capacity;
  args_.scale_log2 =
      scale_argument(options_.data == DataKind::extreme ? extreme_scale(problem_.head_dim)
                                                        : 1.0 / std::sqrt(static_cast<double>(head_dim)));
  args_.q_stride_head = head_dim + pad(1);
  args_.q_stride_batch = q_heads * args_.q_stride_head + pad(3);
  args_.o_stride_head = head_dim + pad(2);
  args_.o_stride_batch = q_heads * args_.o_stride_head + pad(1);
  // K and V get different padding, so that a kernel that mixes up their strides is found out.
  const auto kv_strides = [&](long long& of_batch, long long& of_head, long long& of_token, std::int64_t units) {
    if (problem_.layout == KvLayout::contiguous) {
      of_token = head_dim;
      of_head = capacity * head_dim + pad(units);
      of_batch = kv_heads * of_head + pad(units + 4);
    } else {
      of_head = head_dim + pad(units);
      of_token = kv_heads * of_head + pad(units + 1);
      of_batch = capacity * of_token + pad(units + 4);
    }
  };
  kv_strides(args_.k_stride_batch, args_.k_stride_head, args_.k_stride_token, 1);
  kv_strides(args_.v_stride_batch, args_.v_stride_head, args_.v_stride_token, 2);

  const std::int64_t offset = pad(1);
  kv_copy_elements_ =
      round_up(offset + batch() * std::max(args_.k_stride_batch, args_.v_stride_batch) + kUnitsOf16Bytes, 128);
  const auto allocate_elements = [&](DeviceBuffer& buffer, std::int64_t elements) -> Result<void> {
    auto made = DeviceBuffer::allocate(elements * 2);
    if (!made) return tl::unexpected(made.error());
    buffer = std::move(*made);
    return fill_bytes_async(buffer.data(), kPoisonByte, buffer.bytes(), stream);
  };
  LEANATTN_TRY(allocate_elements(q_, offset + batch() * args_.q_stride_batch));
  LEANATTN_TRY(allocate_elements(o_, offset + batch() * args_.o_stride_batch + kUnitsOf16Bytes));
  LEANATTN_TRY(allocate_elements(k_, kv_copy_elements_ * options_.kv_copies));
  LEANATTN_TRY(allocate_elements(v_, kv_copy_elements_ * options_.kv_copies));
  LEANATTN_TRY(allocate_elements(lse_, std::int64_t{batch()} * q_heads * 2));
  LEANATTN_TRY(allocate_elements(lengths_device_, std::int64_t{batch() + 3} * 2));

  o_offset_ = offset;
  args_.q = q_.at(offset * 2);
  args_.k = k_.at(offset * 2);
  args_.v = v_.at(offset * 2);
  args_.o = o_.at(offset * 2);
  args_.lse = lse_.as<float>();
  // Kernels read long arrays of lengths in units of 16 bytes, wherever they start.
  args_.context_lengths = lengths_device_.as<int>() + (options_.padded ? batch() % 3 + 1 : 0);

  LEANATTN_TRY(kernels_->fill_q(args_, problem_.dtype, problem_.q_heads, problem_.head_dim, options_.data,
                                options_.seed, stream));
  LEANATTN_TRY(copy_to_device_async(const_cast<int*>(args_.context_lengths), lengths_.data(), std::int64_t{batch()} * 4,
                                    stream));
  LEANATTN_TRY(plant_kv(stream));
  return wait_for(stream);
}

Result<void> DecodeCase::plant_kv(CUstream_st* stream) {
  LEANATTN_TRY(fill_bytes_async(k_.data(), kPoisonByte, k_.bytes(), stream));
  LEANATTN_TRY(fill_bytes_async(v_.data(), kPoisonByte, v_.bytes(), stream));
  for (int copy = 0; copy < options_.kv_copies; ++copy) {
    LEANATTN_TRY(
        kernels_->fill_kv(args(copy), problem_.dtype, problem_.head_dim, options_.data, options_.seed, stream));
  }
  return {};
}

LeanDecodeArgs DecodeCase::args(int kv_copy) const {
  LeanDecodeArgs args = args_;
  args.k = static_cast<const std::uint16_t*>(args_.k) + kv_copy * kv_copy_elements_;
  args.v = static_cast<const std::uint16_t*>(args_.v) + kv_copy * kv_copy_elements_;
  return args;
}

Result<LeanDecodeArgs> DecodeCase::bind(const KernelSpec& spec, LaunchGrid grid, CheckWorkspace& workspace,
                                        CUstream_st* stream, int kv_copy) const {
  LeanDecodeArgs bound = args(kv_copy);
  bound.segment_cost = static_cast<unsigned>(grid.segment_cost);
  LEANATTN_TRY(workspace.bind(bound, spec, grid.ctas, output_tiles(spec), stream));
  return bound;
}

std::int64_t DecodeCase::output_tiles(const KernelSpec& spec) const {
  return std::int64_t{batch()} * problem_.kv_heads * row_blocks(spec);
}

int DecodeCase::clamped_length(int request) const {
  return std::clamp(lengths_[static_cast<std::size_t>(request)], 0, options_.context_capacity);
}

std::int64_t DecodeCase::kv_bytes() const {
  std::int64_t tokens = 0;
  for (int request = 0; request < batch(); ++request) tokens += clamped_length(request);
  return tokens * problem_.kv_heads * problem_.head_dim * 2 * 2;
}

Result<void> DecodeCase::set_context_lengths(std::vector<int> context_lengths, CUstream_st* stream) {
  if (context_lengths.size() != lengths_.size()) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} lengths for a case of {} requests", context_lengths.size(), lengths_.size()));
  }
  lengths_ = std::move(context_lengths);
  reference_.reset();
  LEANATTN_TRY(copy_to_device_async(const_cast<int*>(args_.context_lengths), lengths_.data(), std::int64_t{batch()} * 4,
                                    stream));
  return plant_kv(stream);
}

Result<void> DecodeCase::reset_outputs(CUstream_st* stream) {
  LEANATTN_TRY(fill_bytes_async(o_.data(), kPoisonByte, o_.bytes(), stream));
  return fill_bytes_async(lse_.data(), kPoisonByte, lse_.bytes(), stream);
}

}  // namespace v1
}  // namespace leanattn
