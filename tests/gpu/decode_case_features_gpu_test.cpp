// decode_case_features_gpu_test.cpp -- decode cases with features have the right data on the GPU, and the GPU's oracle
// agrees with the CPU's.
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "generator/kv_encoding.hpp"
#include "tests/gpu/gpu_fixture.hpp"
#include "tuner/verify/feature_plan.hpp"

namespace leanattn {
namespace {

using SmallFeatureCase = GpuTest;

KernelSpec spec_of(const Features& features, int head_dim, KvLayout layout) {
  return {.arch = {9, 0, true},
          .head_dim = head_dim,
          .group = 3,
          .dtype = DType::fp16,
          .layout = layout,
          .features = features};
}

template <class T>
std::vector<T> read_back(const void* device, std::int64_t count, const Stream& stream) {
  std::vector<T> host(static_cast<std::size_t>(count));
  const auto ok = copy_to_host(host.data(), device, count * static_cast<std::int64_t>(sizeof(T)), stream);
  EXPECT_TRUE(ok.has_value()) << ok.error().message;
  return host;
}

TEST_F(SmallFeatureCase, GpuOracleAgreesWithTheCpusOnEveryFeature) {
  VerifyGroup group;
  for (const VerifyFeature& feature : verify_features()) {
    for (const VerifyFeature::Setting& setting : feature.settings) {
      KernelSpec spec = spec_of(setting.features, setting.head_dim > 0 ? setting.head_dim : 64,
                                group.cases % 2 == 0 ? KvLayout::contiguous : KvLayout::strided);
      if (const RowFormat* const row = row_format(setting.features)) spec.dtype = row->rope_type;
      for (const PlannedCase& planned : feature_cases(spec)) {
        auto made = runner->make_case(spec, planned.shape);
        ASSERT_TRUE(made.has_value()) << feature.name << ": " << made.error().message;
        if (setting.features.selection_block == 0) {
          EXPECT_LE(made->kv_bytes(), made->kv_copy_bytes() * (setting.features.latent ? 1 : 2))
              << feature.name << " " << to_json(setting.features) << ": the read limit reads what is not there";
        }
        const auto ok = runner->cross_check(group, *made);
        ASSERT_TRUE(ok.has_value()) << feature.name << ": " << ok.error().message;
        // Values are below 3 (at most 64 in a latent cache, and up to 768 times as large where tokens have scales),
        // and weights and outputs are rounded to fp16. A larger yardstick would let anything pass.
        const bool scaled_tokens =
            setting.features.kv_format != KvFormat::same && setting.features.kv_scale == KvScale::token;
        // Rows of a format of their own have values of up to 1680, weights are rounded to bf16, and so is O.
        const bool own_rows = row_format(setting.features) != nullptr;
        const double largest_value = own_rows ? 4 * 1680 : setting.features.latent ? 64 : scaled_tokens ? 3 * 768 : 3;
        const auto reference = made->reference(stream);
        ASSERT_TRUE(reference.has_value()) << reference.error().message;
        for (const Yardstick& yardstick : (*reference)->yardsticks)
          EXPECT_LE(yardstick.largest, std::ldexp(largest_value, -9))
              << feature.name << " " << to_json(setting.features);
      }
    }
  }
  expect_clean(group);
}

TEST_F(SmallFeatureCase, APoolHoldsTheHostsDataOnThePagesOfItsTableAndNaNOnAllOthers) {
  constexpr int kPage = 16, kHeadDim = 64;
  for (const KvLayout layout : {KvLayout::contiguous, KvLayout::strided}) {
    for (const bool padded : {false, true}) {
      auto made =
          runner->make_case(spec_of({.page_size = kPage}, kHeadDim, layout), {.kv_heads = 2,
                                                                              .context_lengths = {70, 0, 100, 33},
                                                                              .padded = padded,
                                                                              .data = DataKind::uniform,
                                                                              .shared_prefix = 50});
      ASSERT_TRUE(made.has_value()) << made.error().message;
      const LeanDecodeArgs& args = made->args();
      const int max_pages = args.context_capacity / kPage;
      EXPECT_EQ(made->shared_tokens(), 48);
      const auto table = read_back<int>(args.page_table, 4 * args.page_table_stride, runner->stream_object());
      const auto pool = read_back<std::uint16_t>(args.k, args.pool_pages * args.k_stride_batch - (padded ? 8 : 0),
                                                 runner->stream_object());
      std::set<std::size_t> filled;
      std::size_t wrong = 0;
      for (int request = 0; request < 4; ++request) {
        for (int entry = 0; entry < max_pages; ++entry) {
          const int page = table[static_cast<std::size_t>(request * args.page_table_stride + entry)];
          if (entry * kPage >= made->clamped_length(request)) {
            EXPECT_TRUE(page < 0 || page >= args.pool_pages) << "an entry that must not be followed can be";
            continue;
          }
          ASSERT_TRUE(page >= 0 && page < args.pool_pages);
          const bool shared = (entry + 1) * kPage <= 48;
          EXPECT_EQ(page == table[static_cast<std::size_t>(entry)], request == 0 || shared);
          for (int offset = 0; offset < kPage && entry * kPage + offset < made->clamped_length(request); ++offset) {
            for (int head = 0; head < 2; ++head) {
              for (int column = 0; column < kHeadDim; ++column) {
                const auto at = static_cast<std::size_t>(page * args.k_stride_batch + head * args.k_stride_head +
                                                         offset * args.k_stride_token + column);
                filled.insert(at);
                wrong += pool[at] != data_bits(DataKind::uniform, runner->options().seed, DataTensor::k, DType::fp16,
                                               shared ? 0 : request, head, entry * kPage + offset, column, kHeadDim);
              }
            }
          }
        }
      }
      EXPECT_EQ(wrong, 0u);
      if (padded) continue;  // K and V share the pool then, so that a row that is not K may be V.
      std::size_t not_nan = 0;
      for (std::size_t i = 0; i < pool.size(); ++i)
        not_nan += !filled.contains(i) && !std::isnan(value_of(DType::fp16, pool[i]));
      EXPECT_EQ(not_nan, 0u);
    }
  }
}

TEST_F(SmallFeatureCase, RowsOfAFormatOfTheirOwnHoldTheHostsData) {
  for (const KvEncoding& encoding : kv_encodings()) {
    if (encoding.row == nullptr) continue;
    const RowFormat& row = *encoding.row;
    KernelSpec spec =
        spec_of({.page_size = 16, .kv_format = encoding.format, .v_head_dim = row.latent_columns, .latent = true},
                key_columns(row), KvLayout::contiguous);
    spec.dtype = row.rope_type;
    auto made = runner->make_case(spec, {.kv_heads = 1, .context_lengths = {40}, .padded = true});
    ASSERT_TRUE(made.has_value()) << made.error().message;
    const LeanDecodeArgs& args = made->args();
    EXPECT_EQ(args.k_stride_token, row.bytes);
    EXPECT_EQ(args.k_scale, nullptr);
    const auto table = read_back<int>(args.page_table, 3, runner->stream_object());
    const auto pool =
        read_back<std::uint8_t>(args.k, args.pool_pages * args.k_stride_batch - row.bytes, runner->stream_object());
    for (int token = 0; token < 40; ++token) {
      const auto at = static_cast<std::size_t>(table[static_cast<std::size_t>(token / 16)] * args.k_stride_batch +
                                               token % 16 * args.k_stride_token);
      for (int column = 0; column < key_columns(row); ++column) {
        double found = 0;
        if (column < row.latent_columns) {
          float scale = 0;
          std::memcpy(&scale, &pool[at + static_cast<std::size_t>(row.scales_offset + column / row.group_columns * 4)],
                      4);
          found = byte_value(encoding.element, pool[at + static_cast<std::size_t>(row.latent_offset + column)]) *
                  static_cast<double>(scale);
        } else {
          std::uint16_t bits = 0;
          std::memcpy(&bits, &pool[at + static_cast<std::size_t>(row.rope_offset + 2 * (column - row.latent_columns))],
                      2);
          found = value_of(row.rope_type, bits);
        }
        ASSERT_EQ(found, data_row_value(DataKind::uniform, runner->options().seed, spec.features, 0, 0, token, column,
                                        key_columns(row)))
            << "token " << token << ", column " << column;
      }
    }
  }
}

TEST_F(SmallFeatureCase, WhatAWindowLeavesBehindIsNaNExceptForSinkTokens) {
  constexpr int kContext = 90, kHeadDim = 64;
  auto made = runner->make_case(spec_of({.q_len = 3, .window = 20, .sink_tokens = 4}, kHeadDim, KvLayout::contiguous),
                                {.kv_heads = 1, .context_lengths = {kContext}});
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const auto k =
      read_back<std::uint16_t>(made->args().k, std::int64_t{kContext + 8} * kHeadDim, runner->stream_object());
  for (int token = 0; token < kContext + 8; ++token) {
    const bool seen = token < kContext && (token < 4 || token >= kContext - 3 - 20 + 1);
    for (int column = 0; column < kHeadDim; ++column)
      ASSERT_EQ(std::isnan(value_of(DType::fp16, k[static_cast<std::size_t>(token * kHeadDim + column)])), !seen)
          << token;
  }
}

TEST_F(SmallFeatureCase, PagesOutsideAWindowCannotBeFollowed) {
  auto made = runner->make_case(spec_of({.page_size = 8, .window = 20}, 64, KvLayout::contiguous),
                                {.kv_heads = 1, .context_lengths = {90}});
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const LeanDecodeArgs& args = made->args();
  const auto table = read_back<int>(args.page_table, args.page_table_stride, runner->stream_object());
  for (int entry = 0; entry < args.context_capacity / 8; ++entry) {
    const int page = table[static_cast<std::size_t>(entry)];
    EXPECT_EQ(page >= 0 && page < args.pool_pages, entry * 8 < 90 && (entry + 1) * 8 > 70) << entry;
  }
}

TEST_F(SmallFeatureCase, EntriesThatAreDrawnAsHolesCannotBeFollowed) {
  auto made = runner->make_case(spec_of({.page_size = 8}, 64, KvLayout::contiguous),
                                {.kv_heads = 1, .context_lengths = {790, 300}, .hole_every = 3});
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const LeanDecodeArgs& args = made->args();
  const auto table = read_back<int>(args.page_table, 2 * args.page_table_stride, runner->stream_object());
  int holes = 0;
  for (int request = 0; request < 2; ++request) {
    for (int entry = 0; entry * 8 < (request == 0 ? 790 : 300); ++entry) {
      const int page = table[static_cast<std::size_t>(request * args.page_table_stride + entry)];
      const bool hole = data_is_hole(made->options().seed, request, entry, 3);
      EXPECT_EQ(page < 0 || page >= args.pool_pages, hole) << request << " " << entry;
      holes += hole;
    }
  }
  EXPECT_GT(holes, 15);
}

TEST_F(SmallFeatureCase, RowsOfQueryTokensThatARequestDoesNotHaveStayUnwritten) {
  const KernelSpec spec = spec_of({.q_len = 4, .ragged_q = true}, 64, KvLayout::contiguous);
  auto made = runner->make_case(
      spec, {.kv_heads = 2, .context_lengths = {50, 7, 9}, .padded = true, .query_tokens = {2, 0, 4}});
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const auto reference = made->reference(stream);
  ASSERT_TRUE(reference.has_value()) << reference.error().message;
  EXPECT_EQ((*reference)->lse.size(), 6u * 6u);
  EXPECT_EQ((*reference)->query_tokens, (std::vector<int>{2, 0, 4}));
  ASSERT_TRUE(made->reset_outputs(stream).has_value());
  const auto o = read_back<std::uint8_t>(made->o_buffer().data(), made->o_bytes(), runner->stream_object());
  const auto lse = read_back<std::uint8_t>(made->lse_buffer().data(), made->lse_bytes(), runner->stream_object());
  const ComparisonReport report = made->compare_raw(**reference, o.data(), lse.data(), true);
  EXPECT_EQ(report.unwritten, 6 * 6 * 64 + 6 * 6);
  EXPECT_EQ(report.stray_writes, 0);
}

}  // namespace
}  // namespace leanattn
