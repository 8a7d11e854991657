// families_test.cpp -- the registry has a family for every spec, and each family has what a caller of the registry asks
// it for.
#include "generator/families/family.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "generator/generator.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

/// Heads of few and many query rows, plain and latent, on every load path and with four and eight warps.
std::vector<KernelSpec> many_specs() {
  std::vector<KernelSpec> specs;
  for (const LoadPath load : kLoadPaths) {
    for (const int warps : {4, 8, 12}) {
      for (const int group : {1, 4, 16, 17, 33, 128}) {
        KernelSpec spec{.group = group, .load = load, .warps = warps, .stages = loads_to_registers(load) ? 1 : 2};
        specs.push_back(spec);
        spec.features = {.q_len = kMostPrefillTokens, .ragged_q = true};
        specs.push_back(spec);
        spec.head_dim = 256, spec.features = {};
        specs.push_back(spec);
        spec.head_dim = 576, spec.features = {.page_size = 64, .v_head_dim = 512, .latent = true};
        specs.push_back(spec);
      }
    }
  }
  return specs;
}

TEST(Families, EachHasAKernelAndItsOwnName) {
  std::set<const KernelFamily*> met;
  std::set<std::string_view> names;
  for (const KernelSpec& spec : many_specs()) {
    if (validate(spec)) met.insert(&family_of(spec));
  }
  for (const KernelFamily* const family : families()) {
    EXPECT_TRUE(met.contains(family)) << family->name;
    EXPECT_TRUE(names.insert(family->name).second) << family->name;
  }
  EXPECT_EQ(met.size(), families().size());
}

TEST(Families, ASpecIsOfAFamilyThatHasItsLoadPath) {
  for (const KernelSpec& spec : many_specs()) EXPECT_TRUE(has_load(family_of(spec), spec.load)) << kernel_name(spec);
}

TEST(Families, WhatOneDoesNotSupportIsRefusedWithItsReason) {
  std::size_t refused = 0;
  for (const KernelSpec& spec : many_specs()) {
    const auto supported = family_of(spec).supports(spec);
    if (supported) continue;
    ++refused;
    const auto valid = validate(spec);
    ASSERT_FALSE(valid) << kernel_name(spec);
    EXPECT_EQ(valid.error().message, supported.error().message);
    EXPECT_EQ(supported.error().code, ErrorCode::unsupported);
  }
  EXPECT_GT(refused, 10u);
}

TEST(Families, QueryRowsAndWarpsDecideBetweenThoseOfLoadPathTensor) {
  const auto family = [](int group, int warps, int head_dim, bool latent, int warp_tokens = 16, bool ragged = false) {
    KernelSpec spec{.head_dim = head_dim, .group = group, .load = LoadPath::tensor, .warps = warps};
    spec.warp_tokens = warp_tokens, spec.features.ragged_q = ragged;
    if (latent) spec.features = {.v_head_dim = 512, .latent = true};
    return &family_of(spec);
  };
  EXPECT_EQ(family(32, 4, 128, false), &kWgmmaTokens);
  EXPECT_EQ(family(33, 4, 128, false), &kWgmmaRows);
  EXPECT_EQ(family(64, 8, 128, false), &kWgmmaRows);
  EXPECT_EQ(family(65, 8, 128, false), &kWgmmaPrefill);
  EXPECT_EQ(family(128, 8, 256, false), &kWgmmaPrefill) << "also with wide heads";
  EXPECT_EQ(family(65, 12, 128, false), &kWgmmaRows) << "two walks are for requests that differ";
  EXPECT_EQ(family(65, 12, 128, false, 16, true), &kWgmmaMixed);
  EXPECT_EQ(family(129, 12, 128, false, 20), &kWgmmaPrefill);
  EXPECT_EQ(family(129, 12, 128, false, 20, true), &kWgmmaPrefill) << "two walks have steps of 64 tokens";
  EXPECT_EQ(family(128, 12, 128, false, 20), &kWgmmaRows) << "two warpgroups hold these rows";
  EXPECT_EQ(family(65, 4, 128, false), &kWgmmaRows) << "one warpgroup has 64 rows";
  EXPECT_EQ(family(128, 4, 256, false), &kWgmmaTokens) << "rows of wide heads do not fit";
  EXPECT_EQ(family(16, 8, 576, true), &kWgmmaTokens);
  EXPECT_EQ(family(17, 8, 576, true), &kWgmmaRoles);
  EXPECT_EQ(family(17, 4, 576, true), &kWgmmaTokens);
}

TEST(Families, MoreQueryTokensThanDecodeHasAreForWarpsWithRowsOfTheirOwn) {
  const auto family = [](Features features, int head_dim = 128, LoadPath load = LoadPath::cp_async) {
    features.ragged_q = features.q_len > 1 && !has_selection(features);
    return &family_of({.head_dim = head_dim, .features = std::move(features), .load = load});
  };
  EXPECT_EQ(family({.q_len = 17}), &kMmaPrefill);
  EXPECT_EQ(family({.page_size = 1, .q_len = kMostPrefillTokens, .window = 100}, 256), &kMmaPrefill);
  EXPECT_EQ(family({.packed_kv = true, .q_len = 300, .v_head_dim = 128}, 192), &kMmaPrefill);
  EXPECT_EQ(family({.q_len = 16}), &kMma);
  EXPECT_EQ(family({.q_len = 17}, 128, LoadPath::ldg), &kMma);
  EXPECT_EQ(family({.q_len = 17}, 272), &kMma) << "registers do not hold them";
  // What its warps do not do is left to those that load rows for themselves.
  EXPECT_EQ(family({.q_len = 17, .append = true}), &kMma);
  EXPECT_EQ(family({.q_len = 17, .kv_format = KvFormat::int8}), &kMma);
  EXPECT_EQ(family({.page_size = 64, .q_len = 17, .mask = QueryMask::full, .selection_block = 64}), &kMma);
  EXPECT_EQ(family({.q_len = 17, .v_head_dim = 512, .latent = true}, 576), &kMma);
  EXPECT_EQ(family({.q_len = 17, .mask = QueryMask::full, .context_parallel = 2}), &kMma);
}

TEST(Families, TheEntryPointOfAFamilyIsInItsSource) {
  std::size_t number = 0;
  for (const KernelSpec& spec : many_specs()) {
    if (!in_turn(number++ % 3, 3)) continue;
    const auto kernel = emit(spec);
    if (!kernel) continue;
    EXPECT_NE(kernel->source.find(family_of(spec).entry), std::string::npos) << kernel->entry;
    if (layout_of(spec).holds_results) {
      EXPECT_NE(kernel->source.find(family_of(spec).result_columns), std::string::npos) << kernel->entry;
    }
  }
}

}  // namespace
}  // namespace leanattn
