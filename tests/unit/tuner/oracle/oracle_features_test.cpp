// oracle_features_test.cpp -- the CPU's oracle agrees with every feature's definition, written out one after another.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "generator/kv_encoding.hpp"
#include "tests/thoroughness.hpp"
#include "tuner/oracle/oracle.hpp"
#include "tuner/verify/feature_plan.hpp"
#include "tuner/verify/random_plan.hpp"

namespace leanattn {
namespace {

constexpr double kNoMass = -std::numeric_limits<double>::infinity();  ///< log-sum-exp of nothing
constexpr std::uint64_t kSeed = 77;
constexpr double kScale = 0.11;
constexpr DataSelection kSelection{.spread = 2, .holes = true};

constexpr int kSecond = 1 << 20, kSecondCapacity = 33;

struct Case {
  DecodeProblem problem;
  int request = 2, kv_head = 1, context = 40, query_tokens = 1, shared = 0, hole_every = 0;
};

double element(const Case& c, DataTensor tensor, int token, int column) {
  const Features& f = c.problem.features;
  const int columns = tensor == DataTensor::v && f.v_head_dim > 0 ? f.v_head_dim : c.problem.head_dim;
  // Tokens of the second cache have numbers from kSecond on.
  const int request = token >= kSecond ? c.request + kSecondRequest : token < c.shared ? 0 : c.request;
  token %= kSecond;
  if (f.kv_format == KvFormat::same)
    return value_of(c.problem.dtype, data_bits(DataKind::uniform, kSeed, tensor, c.problem.dtype, request, c.kv_head,
                                               token, column, columns));
  if (const RowFormat* const row = row_format(f); row != nullptr && column >= row->latent_columns)
    return value_of(DType::bf16, data_bits(DataKind::uniform, kSeed, DataTensor::latent, DType::bf16, request,
                                           c.kv_head, token, column, columns));
  if (const RowFormat* const row = row_format(f); row != nullptr)
    return byte_value(KvElement::fp8_e4m3,
                      data_row_byte(DataKind::uniform, kSeed, f, request, c.kv_head, token, column, columns)) *
           static_cast<double>(data_group_scale(DataKind::uniform, kSeed, *row, request, c.kv_head, token,
                                                column / row->group_columns));
  const std::uint8_t byte =
      data_byte(DataKind::uniform, kSeed, tensor, kv_encoding(f).element, request, c.kv_head, token, column, columns);
  if (f.kv_format == KvFormat::int4) {
    const auto word =
        std::bit_cast<std::uint32_t>(data_kv_scale(DataKind::uniform, kSeed, tensor, f, request, c.kv_head, token));
    return (byte - static_cast<int>(word % 16)) * static_cast<double>(std::bit_cast<float>(word - word % 16));
  }
  const double value =
      byte_value(kv_encoding(f).element, byte) *
      static_cast<double>(data_kv_scale(DataKind::uniform, kSeed, tensor, f, request, c.kv_head, token));
  return f.kv_format == KvFormat::nvfp4 ? value * data_block_scale(DataKind::uniform, kSeed, tensor, f, request,
                                                                   c.kv_head, token, column / 16 * 16)
                                        : value;
}

/// Attention in the order of the definition. Exponentials are not shifted, because the scores are small.
OracleOutput by_definition(const Case& c) {
  const Features& f = c.problem.features;
  const int group = c.problem.q_heads / c.problem.kv_heads, n = c.query_tokens;
  const int columns = f.v_head_dim > 0 ? f.v_head_dim : c.problem.head_dim;
  OracleOutput out;
  for (int t = 0; t < n; ++t) {
    for (int g = 0; g < group; ++g) {
      const int head = c.kv_head * group + g, p = c.context - n + t;
      long double denominator = 0;
      std::vector<long double> numerator(static_cast<std::size_t>(columns), 0);
      bool any = false;
      std::vector<int> tokens(static_cast<std::size_t>(c.context));
      std::iota(tokens.begin(), tokens.end(), 0);
      for (int j = 0; f.second_cache && j < data_second_length(kSeed, c.request, t, kSecondCapacity); ++j)
        tokens.push_back(kSecond + j);
      for (const int j : tokens) {
        bool visible = false;
        if (j >= kSecond) {
          visible = true;
        } else if (f.q_len > 1 && f.mask == QueryMask::full) {
          visible = f.window == 0 || j < f.sink_tokens || (j - p < f.window && p - j < f.window);
        } else if (f.q_len > 1 && f.mask == QueryMask::tree) {
          visible = true;
          const int other = j - (c.context - n);
          if (other >= 0) visible = ((data_tree_word(kSeed, c.request, t) >> other) & 1u) == 1u;
        } else {
          visible = j <= p;
          if (f.window > 0 && p - j >= f.window) visible = visible && j < f.sink_tokens;
          const LeanSpan span = f.spans && p >= 0 ? data_span(kSeed, c.request, p) : LeanSpan{};
          visible = visible || (span.first <= j && j < span.end);
        }
        if (f.selection_in_pool) visible = true;
        if (has_selection(f) && j < kSecond) {
          const std::vector<int> list = data_selection(kSeed, f, kSelection, c.request, c.kv_head, t, c.context);
          visible = visible && std::count(list.begin(), list.end(), j / f.selection_block) == 1;
        }
        if (c.hole_every > 0 && data_is_hole(kSeed, j < kSecond ? c.request : c.request + kSecondRequest,
                                             j % kSecond / f.page_size, c.hole_every))
          visible = false;
        if (!visible) continue;
        any = true;
        long double s = 0;
        for (int i = 0; i < c.problem.head_dim; ++i)
          s += static_cast<long double>(
                   value_of(c.problem.dtype, data_query_bits(DataKind::uniform, kSeed, f, c.problem.dtype, c.request,
                                                             head, t, i, c.problem.head_dim))) *
               element(c, f.latent ? DataTensor::latent : DataTensor::k, j, i);
        s *= kScale;
        if (f.soft_cap > 0) s = f.soft_cap * std::tanh(s / f.soft_cap);
        if (f.alibi) s += static_cast<long double>(data_alibi_slope(kSeed, head)) * (j - p);
        if (!f.score.empty()) s = score_function(f.score)(static_cast<double>(s), p, j, head);
        const long double weight = std::exp(s);
        denominator += weight;
        for (int i = 0; i < columns; ++i)
          numerator[static_cast<std::size_t>(i)] +=
              weight * element(c, f.latent ? DataTensor::latent : DataTensor::v, j, i);
      }
      if (f.sink_logits) denominator += std::exp(static_cast<long double>(data_sink_logit(kSeed, head)));
      for (int i = 0; i < columns; ++i)
        out.o.push_back(any ? static_cast<double>(numerator[static_cast<std::size_t>(i)] / denominator) : 0);
      out.lse.push_back(denominator > 0 ? static_cast<double>(std::log(denominator)) : kNoMass);
    }
  }
  return out;
}

void expect_agreement(const Case& c) {
  const OracleOutput expected = by_definition(c);
  const OracleOutput got = oracle_of_data(c.problem, DataKind::uniform, kSeed, kScale, c.request, c.kv_head, c.context,
                                          {.query_tokens = c.query_tokens,
                                           .shared_tokens = c.shared,
                                           .score = score_function(c.problem.features.score),
                                           .selection = kSelection,
                                           .hole_every = c.hole_every,
                                           .second_capacity = kSecondCapacity});
  const std::string what = to_json(c.problem.features) + " context " + std::to_string(c.context) + ", query tokens " +
                           std::to_string(c.query_tokens);
  ASSERT_EQ(got.o.size(), expected.o.size()) << what;
  ASSERT_EQ(got.lse.size(), expected.lse.size()) << what;
  const bool large = has_token_scales(c.problem.features) || row_format(c.problem.features) != nullptr;
  const double agreement = large ? 1e-9 : 1e-12;  // of scales up to 1e3
  for (std::size_t i = 0; i < got.o.size(); ++i) ASSERT_NEAR(got.o[i], expected.o[i], agreement) << what << " at " << i;
  for (std::size_t i = 0; i < got.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      ASSERT_EQ(got.lse[i], expected.lse[i]) << what;
    } else {
      ASSERT_NEAR(got.lse[i], expected.lse[i], 1e-12) << what;
    }
  }
}

TEST(OracleFeatures, EverySettingOfEveryFeatureFollowsItsDefinition) {
  std::size_t number = 0;
  for (const VerifyFeature& feature : verify_features()) {
    for (const VerifyFeature::Setting& setting : feature.settings) {
      if (!in_turn(number++ % 4, 4)) continue;
      Case c{.problem = {.q_heads = 6,
                         .kv_heads = 2,
                         .head_dim = setting.head_dim > 0 ? setting.head_dim : 32,
                         .dtype = row_format(setting.features) != nullptr ? DType::bf16 : DType::fp16,
                         .lse = true,
                         .features = setting.features}};
      const int q_len = setting.features.q_len;
      for (const int context : {0, 1, q_len - 1, q_len, 40, tries(70, 131)}) {
        if (row_format(setting.features) != nullptr && context > 40) continue;  // wide rows, for which this is slow
        c.context = context;
        for (const int query_tokens : {q_len, q_len / 2, 0}) {
          if (query_tokens != q_len && !setting.features.ragged_q) continue;
          c.query_tokens = query_tokens;
          expect_agreement(c);
          for (c.hole_every = setting.features.page_size > 0 ? 3 : 0; c.hole_every > 0; --c.hole_every)
            expect_agreement(c);
        }
      }
    }
  }
}

TEST(OracleFeatures, RandomCombinationsFollowTheDefinitions) {
  std::size_t tried = 0;
  for (const VerifyKernel& kernel : random_kernels({9, 0, true}, kSeed, 150)) {
    const KernelSpec& spec = kernel.specs.front();
    if (spec.group * spec.features.q_len > 64 || spec.head_dim > 128) continue;  // The definition is slow.
    const int q_len = spec.features.q_len;
    Case c{.problem = {.q_heads = 2 * spec.group,
                       .kv_heads = 2,
                       .head_dim = spec.head_dim,
                       .dtype = spec.dtype,
                       .features = spec.features}};
    c.context = 90;
    c.query_tokens = spec.features.ragged_q ? (q_len + 1) / 2 : q_len;
    c.shared = static_cast<int>(shared_tokens(spec.features, 50, 45));
    expect_agreement(c);
    ++tried;
  }
  EXPECT_GT(tried, 20u);
}

TEST(OracleFeatures, ARowThatSeesNothingHasItsSinkLogitAlone) {
  for (const bool sink : {false, true}) {
    const DecodeProblem problem{
        .q_heads = 2, .kv_heads = 1, .head_dim = 16, .features = {.q_len = 4, .sink_logits = sink}};
    const OracleOutput out = oracle_of_data(problem, DataKind::uniform, kSeed, kScale, 0, 0, 2);
    ASSERT_EQ(out.lse.size(), 8u);
    for (std::size_t row = 0; row < 4; ++row) {  // Two query tokens lie before the context.
      EXPECT_EQ(out.lse[row], sink ? data_sink_logit(kSeed, static_cast<int>(row % 2)) : kNoMass);
      for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(out.o[row * 16 + i], 0);
    }
    EXPECT_GT(out.lse[4], kNoMass);
  }
}

TEST(OracleFeatures, SharedTokensAreWholePagesOfTheFirstRequest) {
  EXPECT_EQ(shared_tokens({.page_size = 16}, 100, 1000), 96);
  EXPECT_EQ(shared_tokens({.page_size = 16}, 100, 50), 48);
  EXPECT_EQ(shared_tokens({.page_size = 16}, 100, -3), 0);
  EXPECT_EQ(shared_tokens({}, 100, 1000), 0) << "a dense cache shares nothing";
}

TEST(OracleFeatures, OnesGiveOneAndAScoreFarBelowZero) {
  for (const KvFormat format :
       {KvFormat::same, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8, KvFormat::int4, KvFormat::nvfp4}) {
    const KvScale scale = format == KvFormat::int4 ? KvScale::in_row : KvScale::tensor;
    const DecodeProblem problem{
        .q_heads = 1, .kv_heads = 1, .head_dim = 64, .features = {.kv_format = format, .kv_scale = scale}};
    const OracleOutput out = oracle_of_data(problem, DataKind::ones, kSeed, 0.125, 0, 0, 64);
    for (const double o : out.o) EXPECT_EQ(o, 1) << to_string(format);
    EXPECT_DOUBLE_EQ(out.lse[0], -4096 * 64 * 0.125 + std::log(64.0)) << to_string(format);
  }
}

}  // namespace
}  // namespace leanattn
