// run_plan_test.cpp -- what a quick run of verify has, and that it is small.
#include "tuner/verify/run_plan.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "generator/families/family.hpp"
#include "generator/feature_table.hpp"
#include "tuner/verify/feature_plan.hpp"

namespace leanattn {
namespace {

constexpr Arch kRunHopper{9, 0, true};
constexpr Arch kRunAmpere{8, 0, false};

/// A plan, which is made once.
const RunPlan& plan_of(Arch arch, bool quick) {
  static std::map<std::pair<Arch, bool>, RunPlan> plans;
  const auto [plan, made] = plans.try_emplace({arch, quick});
  if (made) plan->second = plan_run(arch, {.quick = quick});
  return plan->second;
}

/// The traits that the kernels of the parts meet.
std::set<std::string> met_by(const RunPlan& plan) {
  std::set<std::string> met;
  for (const VerifyKernel& kernel : std::span(plan.kernels).subspan(plan.representatives)) {
    const std::vector<std::string> traits = traits_of(kernel.specs.front());
    met.insert(traits.begin(), traits.end());
  }
  return met;
}

TEST(RunPlan, AQuickRunMeetsEveryTraitOfAWholeOne) {
  for (const Arch arch : {kRunHopper, kRunAmpere}) {
    const RunPlan &quick = plan_of(arch, true), &whole = plan_of(arch, false);
    const std::set<std::string> wanted = met_by(whole);
    EXPECT_EQ(met_by(quick), wanted) << to_string(arch);
    ASSERT_TRUE(quick.coverage);
    EXPECT_FALSE(whole.coverage);
    EXPECT_EQ(quick.coverage->kernels, quick.kernels.size() - quick.representatives);
    EXPECT_EQ(quick.coverage->of_kernels, whole.kernels.size() - whole.representatives);
    EXPECT_EQ(quick.coverage->traits, wanted.size());
  }
}

/// The features that a spec asks for, by name; of those that are enumerations, with the value.
std::set<std::string> names_of_features(const KernelSpec& spec) {
  std::set<std::string> names;
  const auto look = [&]<class T>(const Feature<T>& feature) {
    if (feature.differs(spec.features) == 0) return;
    if constexpr (std::is_enum_v<T>)
      names.insert(fmt::format("{} {}", feature.name, enumerator(spec.features.*feature.member).name));
    else
      names.insert(feature.name);
  };
  std::apply([&](const auto&... feature) { (look(feature), ...); }, kFeatures);
  return names;
}

TEST(RunPlan, AQuickRunHasEachFamilyOnEachOfItsLoadPathsAndEachFeature) {
  std::set<std::string> all_features;
  const auto name = [&]<class T>(const Feature<T>& feature) {
    if constexpr (std::is_enum_v<T>) {
      for (const Enumerator& value : std::span(Enumeration<T>::kAll).subspan(1))
        all_features.insert(fmt::format("{} {}", feature.name, value.name));
    } else {
      all_features.insert(feature.name);
    }
  };
  std::apply([&](const auto&... feature) { (name(feature), ...); }, kFeatures);
  for (const Arch arch : {kRunHopper, kRunAmpere}) {
    const std::vector<LoadPath> loads = load_paths_of(arch);
    std::set<std::string> families_wanted, families_met, features, dtypes;
    for (const KernelFamily* const family : families()) {
      for (const LoadPath load : loads) {
        if (has_load(*family, load)) families_wanted.insert(fmt::format("{} {}", family->name, to_string(load)));
      }
    }
    for (const VerifyKernel& kernel : plan_of(arch, true).kernels) {
      const KernelSpec& spec = kernel.specs.front();
      families_met.insert(fmt::format("{} {}", family_of(spec).name, to_string(spec.load)));
      dtypes.emplace(to_string(spec.dtype));
      features.merge(names_of_features(spec));
    }
    EXPECT_EQ(families_met, families_wanted) << to_string(arch);
    EXPECT_EQ(dtypes, (std::set<std::string>{"bf16", "fp16"}));
    std::set<std::string> wanted = all_features;
    if (arch == kRunAmpere)
      std::erase_if(wanted, [&](const std::string& one) { return one.starts_with("kv_format fp8_ds_"); });
    EXPECT_EQ(features, wanted) << to_string(arch);
  }
}

TEST(RunPlan, ALoadPathMeetsTypesCachesAndFeatures) {
  const std::set<std::string> met = met_by(plan_of(kRunHopper, true));
  for (const LoadPath load : load_paths_of(kRunHopper)) {
    for (const char* trait : {"bf16", "fp16", "layout strided", "fix-up ticket", "fix-up wait", "LSE", "no LSE",
                              "dependent launch", "cache of q's type", "dense cache", "pages", "window", "sink logits",
                              "score expression", "ragged query tokens"})
      EXPECT_TRUE(met.contains(fmt::format("{}, load path {}", trait, to_string(load)))) << trait;
  }
  for (const char* one :
       {"pages, cache fp8_e4m3 with a scale per token", "append, cache nvfp4 with a scale per tensor",
        "head size up to 512, a multiple of 64", "group up to 64", "warps up to 16", "rank of a group"})
    EXPECT_TRUE(met.contains(one)) << one;
}

TEST(RunPlan, EveryFeatureIsATrait) {
  std::set<std::string> plain;
  for (const VerifyKernel& kernel : verify_combinations(kRunHopper)) {
    const std::vector<std::string> traits = traits_of(kernel.specs.front());
    plain.insert(traits.begin(), traits.end());
  }
  for (const VerifyKernel& kernel : feature_kernels(kRunHopper)) {
    if (kernel.group == "feature: head sizes") continue;  // the combinations have such heads, too
    const std::vector<std::string> traits = traits_of(kernel.specs.front());
    EXPECT_TRUE(std::any_of(traits.begin(), traits.end(), [&](const auto& trait) { return !plain.contains(trait); }))
        << kernel.group << " " << kernel_name(kernel.specs.front());
  }
}

TEST(RunPlan, AQuickRunIsSmall) {
  for (const Arch arch : {kRunHopper, kRunAmpere}) {
    const RunPlan& plan = plan_of(arch, true);
    std::set<std::string> compiled, scores;
    std::size_t cases = 0, groups = 0;
    for (const RunPart& part : plan.parts) {
      for (const VerifyKernel& kernel : part.of(plan.kernels)) {
        const KernelSpec& spec = kernel.specs.front();
        compiled.insert(kernel_name(spec));
        scores.insert(spec.features.score);
        if (part.rank_lengths) {
          cases += 3, ++groups;  // two grids, and graphs
          continue;
        }
        for (const PlannedCase& planned : part.run.cases(spec)) cases += planned.grids.size();
      }
    }
    for (std::size_t i = 0; i < plan.representatives; ++i) compiled.insert(kernel_name(plan.kernels[i].specs.front()));
    EXPECT_LE(compiled.size(), 110u) << to_string(arch);
    EXPECT_LE(cases, 800u) << to_string(arch);
    EXPECT_LE(groups, 8u) << "each takes more than a second";
    EXPECT_LE(scores.size(), 2u) << "the oracle is compiled for each";
  }
}

TEST(RunPlan, PartsHaveAllKernelsInOrderAlsoIfFewWereChosen) {
  for (const bool quick : {false, true}) {
    const RunPlan& plan = plan_of(kRunHopper, quick);
    ASSERT_EQ(plan.parts.size(), 7u);
    std::size_t at = plan.representatives;
    EXPECT_EQ(at, quick ? 16u : 22u);
    for (const RunPart& part : plan.parts) {
      EXPECT_EQ(part.begin, at);
      EXPECT_LT(part.begin, part.end + (quick ? 1 : 0)) << "others may have all that is in a part of a quick run";
      for (const VerifyKernel& kernel : part.of(plan.kernels)) {
        EXPECT_EQ(has_part_of_context(kernel.specs.front().features), static_cast<bool>(part.rank_lengths));
        EXPECT_NE(static_cast<bool>(part.run.cases), static_cast<bool>(part.rank_lengths));
      }
      at = part.end;
    }
    EXPECT_EQ(at, plan.kernels.size());
  }
}

TEST(RunPlan, TheSameOptionsGiveTheSameCrossSection) {
  const RunPlan again = plan_run(kRunHopper, {.quick = true});
  const RunPlan& plan = plan_of(kRunHopper, true);
  ASSERT_EQ(again.kernels.size(), plan.kernels.size());
  for (std::size_t i = 0; i < plan.kernels.size(); ++i) EXPECT_EQ(again.kernels[i].specs, plan.kernels[i].specs);
}

TEST(RunPlan, HasOnlyThePartAndTheNamesThatAreAskedFor) {
  const RunPlan features = plan_run(kRunHopper, {.only = VerifyPart::features});
  EXPECT_EQ(features.representatives, 0u);
  for (const VerifyKernel& kernel : features.kernels) EXPECT_EQ(kernel.group.rfind("feature: ", 0), 0u);
  const RunPlan named = plan_run(kRunHopper, {.quick = true, .only = VerifyPart::combinations, .filter = "_d96_"});
  EXPECT_FALSE(named.kernels.empty());
  for (const VerifyKernel& kernel : named.kernels)
    EXPECT_NE(kernel_name(kernel.specs.front()).find("_d96_"), std::string::npos);
  const RunPlan none = plan_run(kRunHopper, {.only = VerifyPart::features, .filter = "no kernel"});
  EXPECT_TRUE(none.kernels.empty());
}

}  // namespace
}  // namespace leanattn
