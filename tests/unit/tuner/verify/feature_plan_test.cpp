// feature_plan_test.cpp -- the plans of a verify run have every feature, one by one and in random combinations.
#include "tuner/verify/feature_plan.hpp"
#include "generator/families/family.hpp"
#include "generator/kernel_layout.hpp"
#include "generator/kv_encoding.hpp"
#include "generator/score_expression.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "tuner/verify/random_plan.hpp"
#include "tuner/verify/verify.hpp"

namespace leanattn {
namespace {

constexpr Arch kHopper{9, 0, true};
constexpr Arch kAmpere{8, 0, false};
constexpr std::uint64_t kSeed = 20261121;

/// Names of the features that a spec asks for.
std::set<std::string> asked(const Features& f, int head_dim) {
  std::set<std::string> names;
  const auto add = [&](bool is, std::string name) {
    if (is) names.insert(std::move(name));
  };
  add(f.page_size > 0, "pages");
  add(f.q_len > 1, "query tokens, " + std::string(to_string(f.mask)));
  add(f.ragged_q, "ragged");
  add(f.window > 0, "window");
  add(f.sink_tokens > 0, "sink tokens");
  add(f.sink_logits, "sink logits");
  add(f.soft_cap > 0, "soft cap");
  add(f.alibi, "alibi");
  add(!f.score.empty(), "score");
  add(f.kv_format != KvFormat::same,
      std::string(to_string(f.kv_format)) + " per " + std::string(to_string(f.kv_scale)));
  add(f.v_head_dim > 0 && f.v_head_dim != head_dim, "V size");
  add(head_dim != 64 && head_dim != 96 && head_dim != 128 && head_dim != 256, "head size");
  return names;
}
const std::set<std::string> kAllFeatures{"pages",
                                         "query tokens, causal",
                                         "query tokens, tree",
                                         "query tokens, full",
                                         "ragged",
                                         "window",
                                         "sink tokens",
                                         "sink logits",
                                         "soft cap",
                                         "alibi",
                                         "score",
                                         "fp8_e4m3 per tensor",
                                         "fp8_e4m3 per head",
                                         "fp8_e4m3 per token",
                                         "fp8_e4m3 per in_row",
                                         "fp8_e5m2 per tensor",
                                         "fp8_e5m2 per head",
                                         "fp8_e5m2 per token",
                                         "fp8_e5m2 per in_row",
                                         "int8 per tensor",
                                         "int8 per head",
                                         "int8 per token",
                                         "int8 per in_row",
                                         "int4 per token",
                                         "int4 per in_row",
                                         "nvfp4 per tensor",
                                         "nvfp4 per head",
                                         "V size",
                                         "head size"};
/// Rows with a format of their own have kernels on one architecture.
std::set<std::string> all_features(Arch arch) {
  std::set<std::string> names = kAllFeatures;
  if (arch == kHopper) names.insert({"fp8_ds_mla per tensor", "fp8_ds_v4 per tensor"});
  return names;
}

std::set<std::string> met_by(const std::vector<VerifyKernel>& kernels) {
  std::set<std::string> met;
  for (const VerifyKernel& kernel : kernels)
    met.merge(asked(kernel.specs.front().features, kernel.specs.front().head_dim));
  return met;
}

TEST(VerifyFeatures, EverySettingIsAValidCombination) {
  for (const VerifyFeature& feature : verify_features()) {
    EXPECT_FALSE(feature.settings.empty()) << feature.name;
    for (const auto& setting : feature.settings) {
      const auto ok = validate(setting.features);
      EXPECT_TRUE(ok.has_value()) << feature.name << " " << to_json(setting.features) << ": "
                                  << (ok ? "" : ok.error().message);
    }
  }
}

TEST(VerifyFeatures, ScoresAreValidAndFoundByTheirText) {
  for (const VerifyScore& score : verify_scores()) {
    const auto ok = score_source(score.text);
    EXPECT_TRUE(ok.has_value()) << score.text << ": " << (ok ? "" : ok.error().message);
    ASSERT_TRUE(score_function(score.text)) << score.text;
    EXPECT_EQ(score_function(score.text)(0.75, 9, 4, 1), score.function(0.75, 9, 4, 1));
  }
  EXPECT_FALSE(score_function("score * 3.0f"));
}

TEST(VerifyFeatures, EverySettingHasAKernelOnEveryArch) {
  for (const Arch arch : {kHopper, kAmpere}) {
    const auto kernels = feature_kernels(arch);
    for (const VerifyFeature& feature : verify_features()) {
      for (const auto& setting : feature.settings) {
        const KvFormat format = setting.features.kv_format;
        if (setting.features.append && format != KvFormat::same && format != KvFormat::int8 && arch < Arch{8, 9, false})
          continue;  // Nothing converts the format on this architecture.
        if (row_format(setting.features) != nullptr && arch != kHopper) continue;
        const bool met = std::any_of(kernels.begin(), kernels.end(), [&](const VerifyKernel& kernel) {
          const KernelSpec& spec = kernel.specs.front();
          return kernel.group == "feature: " + feature.name && spec.features == setting.features &&
                 (setting.head_dim == 0 || spec.head_dim == setting.head_dim);
        });
        EXPECT_TRUE(met) << to_string(arch) << " " << feature.name << " " << to_json(setting.features) << " d"
                         << setting.head_dim;
      }
    }
    EXPECT_EQ(met_by(kernels), all_features(arch));
  }
}

TEST(VerifyFeatures, RowsOfAFormatOfTheirOwnAreReadWithAndWithoutRoles) {
  std::set<std::pair<bool, FixUp>> met;
  std::set<int> groups;
  bool batch_of_row_blocks = false;
  for (const VerifyKernel& kernel : feature_kernels(kHopper)) {
    const KernelSpec& spec = kernel.specs.front();
    if (row_format(spec.features) == nullptr) continue;
    EXPECT_EQ(kernel.group, "feature: latent rows of a format of their own");
    EXPECT_NE(layout_of(kernel.specs.back()).family, &kWgmmaRoles) << "one that cannot spill stands by";
    met.insert({(layout_of(spec).family == &kWgmmaRoles), spec.fixup});
    groups.insert(spec.group);
    batch_of_row_blocks |= layout_of(spec).row_blocks_in_step > 1;
  }
  EXPECT_EQ(met.size(), 4u) << "both families with both fix-ups";
  EXPECT_TRUE(groups.contains(128) && groups.contains(16) && groups.contains(1));
  EXPECT_TRUE(batch_of_row_blocks);
}

TEST(VerifyFeatures, LatentGroupsOfAnySizeHaveRolesWithEachFixUp) {
  std::set<std::tuple<int, FixUp, bool>> met;
  std::set<std::pair<int, FixUp>> two_ctas_gather;  // page sizes
  for (const VerifyKernel& kernel : feature_kernels(kHopper)) {
    const KernelSpec& spec = kernel.specs.front();
    if (row_format(spec.features) == nullptr && (layout_of(spec).family == &kWgmmaRoles))
      met.insert({spec.group, spec.fixup, layout_of(spec).converts_rows});
    if (layout_of(spec).gathers_rows && spec.ctas_per_sm == 2)
      two_ctas_gather.insert({spec.features.page_size, spec.fixup});
  }
  for (const int group : {17, 33, 64, 95, 128}) {
    for (const bool converts : {false, true}) {
      EXPECT_TRUE(met.contains({group, FixUp::ticket, converts}) && met.contains({group, FixUp::wait, converts}))
          << group << " " << converts;
    }
  }
  for (const auto& each : {std::pair{1, FixUp::ticket}, {4, FixUp::wait}, {100, FixUp::ticket}})
    EXPECT_TRUE(two_ctas_gather.contains(each)) << "pages of " << each.first;
}

TEST(VerifyFeatures, PagedProblemsHaveCasesWithHoles) {
  const auto with_holes = [](const std::vector<PlannedCase>& cases) {
    return std::count_if(cases.begin(), cases.end(), [](const PlannedCase& c) { return c.shape.hole_every > 0; });
  };
  EXPECT_EQ(with_holes(feature_cases({})), 0);
  EXPECT_GE(with_holes(feature_cases({.features = {.page_size = 16}})), 3);
  std::ptrdiff_t random = 0;
  for (std::uint64_t seed = 1; seed < 40; ++seed) {
    EXPECT_EQ(with_holes(random_cases({}, seed)), 0);
    random += with_holes(random_cases({.features = {.page_size = 16}}, seed));
  }
  EXPECT_GT(random, 5);
}

TEST(VerifyFeatures, EveryLoadPathThatHasAFeatureIsCheckedWithIt) {
  const auto kernels = feature_kernels(kHopper);
  for (const VerifyFeature& feature : verify_features()) {
    for (const LoadPath load : load_paths_of(kHopper)) {
      const bool known = std::any_of(feature.settings.begin(), feature.settings.end(), [&](const auto& setting) {
        return !kernel_variants({.arch = kHopper,
                                 .head_dim = setting.head_dim > 0 ? setting.head_dim : 64,
                                 .group = 1,
                                 .features = setting.features,
                                 .load = load},
                                0)
                    .empty();
      });
      const bool met = std::any_of(kernels.begin(), kernels.end(), [&](const VerifyKernel& kernel) {
        return kernel.group == "feature: " + feature.name && kernel.specs.front().load == load;
      });
      EXPECT_TRUE(met || !known) << feature.name << " " << to_string(load);
    }
  }
}

void expect_sound(const std::vector<VerifyKernel>& kernels, Arch arch) {
  std::set<std::string> names;
  for (const VerifyKernel& kernel : kernels) {
    ASSERT_FALSE(kernel.specs.empty());
    for (const KernelSpec& spec : kernel.specs) {
      EXPECT_TRUE(validate(spec).has_value()) << kernel_name(spec);
      EXPECT_EQ(spec.arch, arch);
      EXPECT_EQ(spec.features, kernel.specs.front().features);
    }
    names.insert(kernel_name(kernel.specs.front()));
  }
  EXPECT_EQ(names.size(), kernels.size()) << "a kernel is there twice";
}

TEST(VerifyFeatures, KernelsAreValidAndDifferent) {
  for (const Arch arch : {kHopper, kAmpere}) expect_sound(feature_kernels(arch), arch);
}

TEST(VerifyRandom, KernelsAreValidAndDifferentAndHaveEveryFeature) {
  for (const Arch arch : {kHopper, kAmpere}) {
    RecordProperty("seed", std::to_string(kSeed));
    const auto kernels = random_kernels(arch, kSeed, 250);
    EXPECT_EQ(kernels.size(), 250u);
    expect_sound(kernels, arch);
    EXPECT_EQ(met_by(kernels), all_features(arch));
    std::set<LoadPath> loads;
    for (const VerifyKernel& kernel : kernels) loads.insert(kernel.specs.front().load);
    EXPECT_EQ(loads.size(), load_paths_of(arch).size());
  }
}

TEST(VerifyRandom, ALongRunFindsAsManyKernelsAsItPromises) {
  EXPECT_EQ(random_combinations({}), 2000u);
  const std::size_t wanted = random_combinations({.extended = true}) / kRandomCasesPerKernel;
  EXPECT_EQ(random_kernels(kHopper, kSeed, wanted).size(), wanted);
}

TEST(VerifyRandom, ASeedAlwaysGivesTheSameKernelsAndCases) {
  const auto one = random_kernels(kHopper, 5, 40), two = random_kernels(kHopper, 5, 40),
             other = random_kernels(kHopper, 6, 40);
  ASSERT_EQ(one.size(), two.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].specs, two[i].specs);
    different += one[i].specs != other[i].specs;
    const auto a = random_cases(one[i].specs.front(), 5), b = random_cases(one[i].specs.front(), 5);
    ASSERT_EQ(a.size(), kRandomCasesPerKernel);
    for (std::size_t k = 0; k < a.size(); ++k) {
      EXPECT_EQ(a[k].shape.context_lengths, b[k].shape.context_lengths);
      EXPECT_EQ(a[k].grids, b[k].grids);
    }
  }
  EXPECT_GT(different, 35u);
}

TEST(VerifyRandom, BatchesHaveEveryWayOfFindingATilePosition) {
  // In templates/line/walk.cuh a lane has one request, two or eight, or the warps sum up the batch together.
  constexpr int kMostOf[] = {32, 64, 256, 1 << 30};
  std::array<int, std::size(kMostOf)> cases{}, with_window{}, with_ragged_q{}, batch_invariant{};
  for (const VerifyKernel& kernel : random_kernels(kHopper, kSeed, 250)) {
    const Features& features = kernel.specs.front().features;
    for (const PlannedCase& planned : random_cases(kernel.specs.front(), kSeed)) {
      const auto batch = static_cast<int>(planned.shape.context_lengths.size());
      const auto way = std::lower_bound(std::begin(kMostOf), std::end(kMostOf), batch) - std::begin(kMostOf);
      const auto at = static_cast<std::size_t>(way);
      ++cases[at], with_window[at] += features.window > 0, with_ragged_q[at] += features.ragged_q;
      batch_invariant[at] += features.batch_invariant;
    }
  }
  for (std::size_t way = 0; way < cases.size(); ++way) {
    EXPECT_GT(cases[way], 0) << way;
    EXPECT_GT(with_window[way], 0) << way;
    EXPECT_GT(with_ragged_q[way], 0) << way;
    EXPECT_GT(batch_invariant[way], 0) << way;
  }
}

TEST(VerifyRandom, CasesFitTheirKernels) {
  for (const VerifyKernel& kernel : random_kernels(kHopper, kSeed, 100)) {
    const KernelSpec& spec = kernel.specs.front();
    auto cases = random_cases(spec, kSeed);
    const auto planned = feature_cases(spec);
    cases.insert(cases.end(), planned.begin(), planned.end());
    for (const PlannedCase& planned_case : cases) {
      const CaseShape& shape = planned_case.shape;
      EXPECT_FALSE(shape.context_lengths.empty());
      EXPECT_FALSE(planned_case.grids.empty());
      EXPECT_TRUE(shape.query_tokens.empty() || shape.query_tokens.size() == shape.context_lengths.size());
      for (const int count : shape.query_tokens) EXPECT_TRUE(count >= 0 && count <= spec.features.q_len);
      const bool adds_to_scores = spec.features.alibi || !spec.features.score.empty();
      EXPECT_TRUE(!adds_to_scores || shape.data != DataKind::extreme);
    }
  }
}

}  // namespace
}  // namespace leanattn
