// decode_case_gpu_test.cpp -- decode cases have the right data on the GPU, and their check finds planted faults.
#include "tests/gpu/gpu_fixture.hpp"

#include <cmath>
#include <vector>

#include "tuner/oracle/oracle.hpp"
#include "tuner/verify/plan.hpp"

namespace leanattn {
namespace {

using SmallDecodeCase = GpuTest;

KernelSpec heads(DType dtype, int head_dim, int group, KvLayout layout) {
  return {.arch = {9, 0, true}, .head_dim = head_dim, .group = group, .dtype = dtype, .layout = layout};
}

TEST_F(SmallDecodeCase, HoldsTheHostsDataBelowEveryContextAndNaNEverywhereElse) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const KvLayout layout : {KvLayout::contiguous, KvLayout::strided}) {
      auto made = runner->make_case(heads(dtype, 96, 3, layout), {.kv_heads = 2,
                                                                  .context_lengths = {5, 0, 40, -2, 100},
                                                                  .context_capacity = 50,
                                                                  .padded = true,
                                                                  .data = DataKind::peaked});
      ASSERT_TRUE(made.has_value()) << made.error().message;
      const LeanDecodeArgs& args = made->args();
      const std::size_t elements = static_cast<std::size_t>(5 * args.k_stride_batch);
      std::vector<std::uint16_t> k(elements);
      ASSERT_TRUE(
          copy_to_host(k.data(), args.k, static_cast<std::int64_t>(elements) * 2, runner->stream_object()).has_value());
      std::vector<bool> filled(elements, false);
      std::size_t wrong = 0;
      for (int request = 0; request < 5; ++request) {
        for (int head = 0; head < 2; ++head) {
          for (int token = 0; token < made->clamped_length(request); ++token) {
            for (int column = 0; column < 96; ++column) {
              const auto at = static_cast<std::size_t>(request * args.k_stride_batch + head * args.k_stride_head +
                                                       token * args.k_stride_token + column);
              filled[at] = true;
              wrong += k[at] != data_bits(DataKind::peaked, runner->options().seed, DataTensor::k, dtype, request, head,
                                          token, column, 96);
            }
          }
        }
      }
      EXPECT_EQ(wrong, 0u) << to_string(dtype) << " " << to_string(layout);
      std::size_t not_nan = 0;
      for (std::size_t i = 0; i < elements; ++i) not_nan += !filled[i] && !std::isnan(value_of(dtype, k[i]));
      EXPECT_EQ(not_nan, 0u) << to_string(dtype) << " " << to_string(layout);
    }
  }
}

TEST_F(SmallDecodeCase, GpuOracleAgreesWithTheCpus) {
  VerifyGroup group;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const DataKind data : {DataKind::uniform, DataKind::peaked, DataKind::extreme, DataKind::coverage}) {
      for (const int head_dim : {64, 96, 128, 256}) {
        auto made = runner->make_case(
            heads(dtype, head_dim, 5, KvLayout::strided),
            {.kv_heads = 2, .context_lengths = {333, 1, 0}, .context_capacity = 0, .padded = true, .data = data});
        ASSERT_TRUE(made.has_value()) << made.error().message;
        const auto ok = runner->cross_check(group, *made);
        ASSERT_TRUE(ok.has_value()) << ok.error().message;
      }
    }
  }
  expect_clean(group);
}

TEST_F(SmallDecodeCase, FindsOutputsThatNobodyWrote) {
  auto made = runner->make_case(
      heads(DType::bf16, 64, 1, KvLayout::contiguous),
      {.kv_heads = 1, .context_lengths = {20}, .context_capacity = 0, .padded = false, .data = DataKind::uniform});
  ASSERT_TRUE(made.has_value());
  ASSERT_TRUE(made->reset_outputs(stream).has_value());
  const auto reference = made->reference(stream);
  ASSERT_TRUE(reference.has_value());
  std::vector<std::uint8_t> raw(static_cast<std::size_t>(made->o_bytes() + made->lse_bytes()));
  ASSERT_TRUE(copy_to_host(raw.data(), made->o_buffer().data(), made->o_bytes(), runner->stream_object()).has_value());
  ASSERT_TRUE(
      copy_to_host(raw.data() + made->o_bytes(), made->lse_buffer().data(), made->lse_bytes(), runner->stream_object())
          .has_value());
  const ComparisonReport report = made->compare_raw(**reference, raw.data(), raw.data() + made->o_bytes(), true);
  EXPECT_EQ(report.unwritten, 64 + 1);
  EXPECT_EQ(report.stray_writes, 0);
}

TEST_F(SmallDecodeCase, FindsAKernelThatMissesOneToken) {
  const auto kernel = load(representative_kernels(runner->device().arch).front());
  ASSERT_NE(kernel, nullptr);
  auto made = runner->make_case(
      kernel->spec(),
      {.kv_heads = 2, .context_lengths = {200}, .context_capacity = 0, .padded = false, .data = DataKind::uniform});
  ASSERT_TRUE(made.has_value());
  ASSERT_TRUE(made->reference(stream).has_value());  // The oracle is that of 200 tokens.
  const int shorter = 199;
  ASSERT_TRUE(copy_to_device(made->lengths_on_device(), &shorter, 4, runner->stream_object()).has_value());
  const auto report = made->check(*kernel, 7, stream);
  ASSERT_TRUE(report.has_value()) << report.error().message;
  EXPECT_FALSE(report->passed());
}

TEST_F(SmallDecodeCase, ALaunchThatFailedIsNotBlamedOnTheNext) {
  const auto kernel = load(representative_kernels(runner->device().arch).front());
  ASSERT_NE(kernel, nullptr);
  auto made = runner->make_case(
      kernel->spec(),
      {.kv_heads = 2, .context_lengths = {900}, .context_capacity = 0, .padded = false, .data = DataKind::uniform});
  ASSERT_TRUE(made.has_value());
  CheckWorkspace workspace;
  const auto passes = [&](int grid) {
    const auto report = made->check(*kernel, grid, workspace, stream);
    return report && report->passed();
  };
  ASSERT_TRUE(passes(7));
  // Fewer CTAs need less of the workspace, so its guard was where other launches have partials.
  const auto failed = made->check(*kernel, 3, workspace, stream, 1,
                                  [] { return Result<void>(fail(ErrorCode::launch_failed, "on purpose")); });
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().message, "on purpose");
  EXPECT_TRUE(passes(7));
}

TEST_F(SmallDecodeCase, KvCopiesGiveTheSameBits) {
  const auto kernel = load(representative_kernels(runner->device().arch).front());
  ASSERT_NE(kernel, nullptr);
  const auto oracles = OracleKernels::load(runner->device().arch, nullptr);
  ASSERT_TRUE(oracles.has_value()) << oracles.error().message;
  const KernelSpec& spec = kernel->spec();
  auto made = DecodeCase::create(
      *oracles,
      {.q_heads = 2 * spec.group,
       .kv_heads = 2,
       .head_dim = spec.head_dim,
       .dtype = spec.dtype,
       .layout = spec.layout,
       .lse = true},
      {300, 77}, {.seed = 5, .data = DataKind::uniform, .context_capacity = 300, .padded = false, .kv_copies = 3},
      stream);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const auto reference = made->reference(stream);
  ASSERT_TRUE(reference.has_value());
  CheckWorkspace workspace;
  for (int copy = 0; copy < 3; ++copy) {
    const auto args = made->bind(spec, 7, workspace, stream, copy);
    ASSERT_TRUE(args.has_value());
    ASSERT_TRUE(made->reset_outputs(stream).has_value());
    ASSERT_TRUE(kernel->launch(*args, 7, stream).has_value());
    std::vector<std::uint8_t> raw(static_cast<std::size_t>(made->o_bytes() + made->lse_bytes()));
    ASSERT_TRUE(
        copy_to_host(raw.data(), made->o_buffer().data(), made->o_bytes(), runner->stream_object()).has_value());
    ASSERT_TRUE(copy_to_host(raw.data() + made->o_bytes(), made->lse_buffer().data(), made->lse_bytes(),
                             runner->stream_object())
                    .has_value());
    const ComparisonReport report = made->compare_raw(**reference, raw.data(), raw.data() + made->o_bytes(), spec.lse);
    EXPECT_TRUE(report.passed()) << "copy " << copy << ": " << report.first_failure;
  }
}

}  // namespace
}  // namespace leanattn
