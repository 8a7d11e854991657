// decode_case_check.cpp -- computes the oracle of a decode case and checks kernels against it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tuner/oracle/decode_case.hpp"
#include "tuner/oracle/decode_case_detail.hpp"

namespace leanattn {
inline namespace v1 {

using decode_case_detail::round_up;
using decode_case_detail::wait_for;

namespace {

constexpr std::int64_t kOracleScratchBytes = 512ll
                                             << 20;  // of softmax weights, for the rows that are computed at a time

std::int64_t count_not_poison(const std::uint8_t* begin, const std::uint8_t* end) {
  return (end - begin) - std::count(begin, end, kPoisonByte);
}

}  // namespace

Result<const Reference*> DecodeCase::reference(CUstream_st* stream) {
  if (reference_) return reference_.get();
  const std::int64_t columns = check_.v_head_dim, rows = std::int64_t{first_query_tokens_.back()} * problem_.q_heads;
  const std::int64_t elements = rows * columns;
  std::int64_t longest = 1;
  for (int request = 0; request < batch(); ++request)
    longest = std::max<std::int64_t>(longest, clamped_length(request) + check_.selection_block + args_.second_capacity);
  const std::int64_t rows_at_once =
      std::clamp<std::int64_t>(kOracleScratchBytes / (longest * 8), 1, std::max<std::int64_t>(rows, 1));

  // One device allocation holds the weights, then o, lse and the plain implementation's o.
  const std::int64_t weight_bytes = round_up(rows_at_once * longest * 8, 256);
  const std::int64_t o_bytes = elements * 8, lse_bytes = rows * 8, plain_bytes = elements * 2;
  auto device = DeviceBuffer::allocate(weight_bytes + o_bytes + lse_bytes + plain_bytes);
  if (!device) return tl::unexpected(device.error());
  auto* o = static_cast<double*>(device->at(weight_bytes));
  auto* lse = static_cast<double*>(device->at(weight_bytes + o_bytes));
  auto* plain = static_cast<std::uint16_t*>(device->at(weight_bytes + o_bytes + lse_bytes));
  // Earlier launches may have written wrong rows of appended tokens, which the oracle must not read.
  if (check_.append != 0) LEANATTN_TRY(kernels_->fill_kv(args_, check_, stream));
  for (std::int64_t first = 0; first < rows; first += rows_at_once) {
    const std::int64_t count = std::min(rows_at_once, rows - first);
    LEANATTN_TRY(kernels_->oracle(args_, check_, first, count, longest, device->as<double>(), o, lse, stream));
    LEANATTN_TRY(kernels_->plain(args_, check_, first, count, longest, device->as<float>(), plain, stream));
  }
  std::vector<double> host_o(static_cast<std::size_t>(elements)), host_lse(static_cast<std::size_t>(rows));
  std::vector<std::uint16_t> host_plain(static_cast<std::size_t>(elements));
  LEANATTN_TRY(copy_to_host_async(host_o.data(), o, o_bytes, stream));
  LEANATTN_TRY(copy_to_host_async(host_lse.data(), lse, lse_bytes, stream));
  LEANATTN_TRY(copy_to_host_async(host_plain.data(), plain, plain_bytes, stream));
  LEANATTN_TRY(wait_for(stream));
  const auto is_nan = [](double value) { return std::isnan(value); };
  if (std::any_of(host_o.begin(), host_o.end(), is_nan) || std::any_of(host_lse.begin(), host_lse.end(), is_nan))
    return fail(ErrorCode::internal, "the oracle read data that no kernel may read");
  const bool exact_weights = options_.data == DataKind::coverage && !transforms_scores(problem_.features);
  reference_ = std::make_unique<Reference>(
      make_reference(problem_.dtype, batch(), problem_.q_heads, check_.v_head_dim, std::move(host_o),
                     std::move(host_lse), host_plain, exact_weights && !problem_.features.sink_logits, query_tokens_));
  if (const double cap = problem_.features.soft_cap; cap > 0) {
    // The error of cap * tanh(score / cap) in fp32 is allowed on top.
    for (float& limit : reference_->lse_limits) limit += static_cast<float>(std::ldexp(cap, -21));
  }
  return reference_.get();
}

Result<ComparisonReport> DecodeCase::check(const LoadedKernel& kernel, LaunchGrid grid, CheckWorkspace& workspace,
                                           CUstream_st* stream, int launches,
                                           const std::function<Result<void>()>& before) {
  const Result<const Reference*> expected = reference(stream);
  if (!expected) return tl::unexpected(expected.error());
  const Result<LeanDecodeArgs> bound = bind(kernel.spec(), grid, workspace, stream);
  if (!bound) return tl::unexpected(bound.error());
  Result<ComparisonReport> report =
      launch_and_compare(kernel, grid, *bound, **expected, workspace, stream, launches, before);
  // The next launch must not be blamed for what this one left behind. After an error the reset may fail, too, as in a
  // lost context. The first error is reported then.
  if (!report || !report->passed()) {
    const Result<void> zeroed = workspace.reset(stream);
    if (report && !zeroed) return tl::unexpected(zeroed.error());
  }
  return report;
}

Result<ComparisonReport> DecodeCase::launch_and_compare(const LoadedKernel& kernel, LaunchGrid grid,
                                                        const LeanDecodeArgs& bound, const Reference& expected,
                                                        CheckWorkspace& workspace, CUstream_st* stream, int launches,
                                                        const std::function<Result<void>()>& before) {
  const std::int64_t output_bytes = o_.bytes() + lse_.bytes();
  const std::int64_t workspace_bytes = workspace.bound_bytes();
  const std::int64_t wanted = output_bytes * launches + workspace_bytes + CheckWorkspace::kGuardBytes;
  if (host_.bytes() < wanted) {
    auto grown = PinnedBuffer::allocate(wanted);
    if (!grown) return tl::unexpected(grown.error());
    host_ = std::move(*grown);
  }
  auto* host = host_.as<std::uint8_t>();
  LEANATTN_TRY(workspace.arm_guard(stream));
  const bool appends = check_.append != 0;
  if (appends) LEANATTN_TRY(fill_bytes_async(wrong_appended_.data(), 0, 8, stream));
  for (int i = 0; i < launches; ++i) {
    LEANATTN_TRY(reset_outputs(stream));
    if (before) LEANATTN_TRY(before());
    LEANATTN_TRY(kernel.launch(bound, grid.ctas, stream, grid.l2_promotion));
    if (appends)
      LEANATTN_TRY(
          kernels_->new_rows(NewRowsStep::count_wrong, args_, check_, wrong_appended_.as<std::uint64_t>(), stream));
    LEANATTN_TRY(copy_to_host_async(host + i * output_bytes, o_.data(), o_.bytes(), stream));
    LEANATTN_TRY(copy_to_host_async(host + i * output_bytes + o_.bytes(), lse_.data(), lse_.bytes(), stream));
  }
  std::uint8_t* left = host + launches * output_bytes;
  std::uint8_t* guard = left + workspace_bytes;
  LEANATTN_TRY(
      copy_to_host_async(left, workspace.buffer().data(), workspace_bytes + CheckWorkspace::kGuardBytes, stream));
  std::uint64_t wrong_appended = 0;
  if (appends) LEANATTN_TRY(copy_to_host_async(&wrong_appended, wrong_appended_.data(), 8, stream));
  LEANATTN_TRY(workspace.disarm_guard(stream));
  LEANATTN_TRY(wait_for(stream));

  ComparisonReport report = compare_raw(expected, host, host + o_.bytes(), kernel.spec().lse);
  for (int i = 1; i < launches; ++i) {
    const std::uint8_t* again = host + i * output_bytes;
    const std::int64_t first = std::mismatch(host, host + output_bytes, again).first - host;
    if (first == output_bytes) continue;
    for (std::int64_t byte = 0; byte < output_bytes; ++byte) report.unequal_repeats += host[byte] != again[byte];
    if (report.first_failure.empty()) {
      report.first_failure =
          first < o_.bytes()
              ? fmt::format("launch {} differs from the first one at element {} of o's allocation", i + 1, first / 2)
              : fmt::format("launch {} differs from the first one at LSE {}", i + 1, (first - o_.bytes()) / 4);
    }
  }
  report.wrong_appended = static_cast<std::int64_t>(wrong_appended);
  if (wrong_appended > 0 && report.first_failure.empty())
    report.first_failure = fmt::format("{} elements of appended K and V are wrong in the cache", wrong_appended);
  if (const std::int64_t stray = count_not_poison(guard, guard + CheckWorkspace::kGuardBytes); stray > 0) {
    report.stray_writes += stray;
    if (report.first_failure.empty())
      report.first_failure = fmt::format("{} bytes were written past the workspace", stray);
  }
  if (const std::uint8_t* dirty = std::find_if(left, guard, [](std::uint8_t byte) { return byte != 0; });
      dirty != guard) {
    report.workspace_left = (guard - left) - std::count(left, guard, std::uint8_t{0});
    if (report.first_failure.empty()) {
      report.first_failure = fmt::format("{} bytes of the workspace were left non-zero, the first at byte {} of {}",
                                         report.workspace_left, dirty - left, workspace_bytes);
    }
  }
  return report;
}

Result<std::int64_t> DecodeCase::wrong_appended(CUstream_st* stream) {
  std::int64_t wrong = 0;
  if (check_.append == 0) return wrong;
  LEANATTN_TRY(fill_bytes_async(wrong_appended_.data(), 0, 8, stream));
  LEANATTN_TRY(
      kernels_->new_rows(NewRowsStep::count_wrong, args_, check_, wrong_appended_.as<std::uint64_t>(), stream));
  LEANATTN_TRY(copy_to_host_async(&wrong, wrong_appended_.data(), 8, stream));
  LEANATTN_TRY(wait_for(stream));
  return wrong;
}

Result<ComparisonReport> DecodeCase::check(const LoadedKernel& kernel, LaunchGrid grid, CUstream_st* stream) {
  if (!workspace_) workspace_ = std::make_unique<CheckWorkspace>();
  return check(kernel, grid, *workspace_, stream);
}

std::int64_t DecodeCase::o_row(int request, int query_token, int head) const {
  const std::int64_t first = first_query_tokens_[static_cast<std::size_t>(request)];
  const std::int64_t token = problem_.features.ragged_q
                                 ? (first + query_token) * args_.o_stride_token
                                 : request * args_.o_stride_batch + query_token * args_.o_stride_token;
  return o_offset_ + token + head * args_.o_stride_head;
}

ComparisonReport DecodeCase::compare_raw(const Reference& reference, const void* raw_o, const void* raw_lse,
                                         bool lse_written) const {
  const auto* raw = static_cast<const std::uint16_t*>(raw_o);
  const std::size_t columns = static_cast<std::size_t>(check_.v_head_dim);
  std::vector<std::uint16_t> o(reference.o.size());
  std::vector<float> lse;
  std::int64_t stray = 0, cursor = 0;  // Rows come in ascending order, and everything between them is padding.
  const auto count_padding = [&](std::int64_t end) {
    stray += count_not_poison(reinterpret_cast<const std::uint8_t*>(raw + cursor),
                              reinterpret_cast<const std::uint8_t*>(raw + end));
  };
  std::size_t row = 0;
  for (int request = 0; request < batch(); ++request) {
    for (int t = 0; t < query_tokens_[static_cast<std::size_t>(request)]; ++t) {
      for (int head = 0; head < problem_.q_heads; ++head, ++row) {
        const std::int64_t begin = o_row(request, t, head);
        count_padding(begin);
        std::memcpy(o.data() + row * columns, raw + begin, columns * 2);
        cursor = begin + check_.v_head_dim;
      }
    }
  }
  count_padding(o_.bytes() / 2);
  const auto* lse_begin = static_cast<const std::uint8_t*>(raw_lse);
  if (lse_written) {
    lse.resize(reference.lse.size());
    std::memcpy(lse.data(), lse_begin, lse.size() * 4);
    stray += count_not_poison(lse_begin + lse.size() * 4, lse_begin + lse_.bytes());
  } else {
    stray += count_not_poison(lse_begin, lse_begin + lse_.bytes());
  }
  ComparisonReport report = compare(reference, o, lse);
  report.stray_writes = stray;
  if (stray > 0 && report.first_failure.empty())
    report.first_failure = fmt::format("{} bytes were written outside the outputs", stray);
  return report;
}

}  // namespace v1
}  // namespace leanattn
