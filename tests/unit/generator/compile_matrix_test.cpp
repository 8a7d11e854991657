// Kernels of every arch, head_dim, load path, dtype and fix-up compile under NVRTC without a spill or a warning, and so
// does every feature: a covering part of them on every change, all of them at night (CompileMatrixInFull). Compiled on
// all cores.
#include <gtest/gtest.h>

#include <cstdio>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/lookup/default_config.hpp"
#include "tests/thoroughness.hpp"
#include "tests/unit/generator/compile_matrix.hpp"
#include "tests/unit/generator/on_all_cores.hpp"

namespace leanattn {
namespace {

/// compile() also rejects what spills, and a log that says nothing about it (runtime/cuda/compiler_test.cpp). Engines
/// may compile with warnings as errors, which NVRTC can do from 13.1 on, so no log has a warning.
void expect_all_compile(const std::vector<KernelSpec>& specs) {
  expect_no_failure(specs.size(), [&](std::size_t i) -> std::string {
    const auto kernel = emit(specs[i]);
    const auto compiled = kernel ? compile(*kernel) : tl::unexpected(kernel.error());
    if (!compiled) return kernel_name(specs[i]) + ": " + compiled.error().message + "\n" + compiled.error().log;
    if (compiled->log.find("warning") == std::string::npos) return "";
    return kernel_name(specs[i]) + " compiles with warnings\n" + compiled->log;
  });
  ::testing::Test::RecordProperty("kernels", static_cast<int>(specs.size()));
}

TEST(CompileMatrix, EveryLoadPathCompilesWithoutSpillsOnEveryArchWithSomeOfTheHeadDims) {
  const std::vector<KernelSpec> specs = matrix(Combinations::covering);
  std::set<std::pair<std::string, LoadPath>> met;
  std::set<int> head_dims;
  for (const KernelSpec& spec : specs) met.emplace(to_string(spec.arch), spec.load), head_dims.insert(spec.head_dim);
  // Five load paths from Hopper on; before it there are no bulk copies, and elsewhere no tensor maps.
  std::size_t expected = 1;
  for (const Arch arch : matrix_arches()) expected += arch.major < 9 ? 3 : 4;
  ASSERT_EQ(met.size(), expected);
  for (const int head_dim : {64, 96, 128, 256}) ASSERT_TRUE(head_dims.contains(head_dim)) << head_dim;
  expect_all_compile(specs);
}

TEST(CompileMatrix, FeaturesCompileWithoutSpillsOnHopperAndOnOtherArchesInTurn) {
  const std::vector<KernelSpec> specs = features_matrix(Combinations::covering);
  ASSERT_EQ(matrix_arches().size() % 2, 0u);
  std::size_t features = 0;  // with a load path on Hopper or elsewhere
  for (std::size_t i = 0; i < matrix_features().size(); ++i)
    features += (in_turn(i % 2, 2) ? 1 : 0) + (in_turn((i + 1) % 4, 4) ? 1 : 0);
  ASSERT_EQ(specs.size(), matrix_arches().size() / 2 * (5 + 2) + features)
      << "every second feature has a load path on Hopper, and half of the others have one elsewhere; of two arches one "
         "has a head_dim, and both have latent caches";
  expect_all_compile(specs);
}

TEST(CompileMatrix, HasKernelsOfEveryFamily) {
  std::set<const KernelFamily*> met;
  for (const KernelSpec& spec : matrix(Combinations::all)) met.insert(&family_of(spec));
  EXPECT_EQ(met.size(), families().size());
}

/// Many kernels over latent caches of bytes spill more than they may. An engine takes the first of the default kernels
/// that compiles.
TEST(CompileMatrix, EveryLatentCacheOfBytesHasADefaultKernelThatCompiles) {
  struct Cache {
    Arch arch;
    int heads;
    Features features;
  };
  const auto latent = [](Features features) {
    features.page_size = 64, features.v_head_dim = 512, features.latent = true;
    return features;
  };
  constexpr Arch kAmpere{8, 0, false}, kHopper{9, 0, true}, kBlackwell{10, 0, true};
  const Features bytes = latent({.q_len = 4, .ragged_q = true, .kv_format = KvFormat::fp8_e4m3}),
                 by_token = latent(
                     {.q_len = 4, .ragged_q = true, .kv_format = KvFormat::fp8_e4m3, .kv_scale = KvScale::token}),
                 appended = latent({.kv_format = KvFormat::fp8_ds_mla, .append = true, .rope = Rope::interleaved});
  const Cache kCaches[] = {{kAmpere, 16, by_token}, {kHopper, 16, bytes},      {kHopper, 128, bytes},
                           {kHopper, 16, by_token}, {kHopper, 16, appended},   {kHopper, 128, appended},
                           {kBlackwell, 16, bytes}, {kBlackwell, 16, by_token}};
  std::vector<Cache> caches;
  for (std::size_t i = 0; i < std::size(kCaches); ++i) {
    if (in_turn(i % 2, 2)) caches.push_back(kCaches[i]);
  }
  expect_no_failure(caches.size(), [&](std::size_t i) -> std::string {
    const Cache& cache = caches[i];
    const DecodeProblem problem{.q_heads = cache.heads, .kv_heads = 1, .head_dim = 576, .features = cache.features};
    const DeviceFacts device = facts_for_arch(cache.arch, 132).value();
    std::string failures;
    for (const Config& config : default_configs({device, problem, {.batch = 8, .longest_context = 4096}})) {
      const auto kernel = emit(config.spec);
      const auto compiled = kernel ? compile(*kernel) : tl::unexpected(kernel.error());
      if (compiled) return "";
      failures += compiled.error().message + "\n";
    }
    return to_string(cache.arch) + " " + to_json(problem) + " has no kernel that compiles\n" + failures;
  });
}

/// Several query tokens of many heads are row blocks, whose kernels of another load path take twenty times as long.
TEST(CompileMatrix, TheFirstDefaultKernelOfManyHeadsOverALatentCacheCompiles) {
  struct Step {
    int heads, q_len;
  };
  constexpr Step kSteps[] = {{128, 1}, {128, 2}, {64, 4}};
  expect_no_failure(std::size(kSteps), [&](std::size_t i) -> std::string {
    const auto [heads, q_len] = kSteps[i];
    DecodeProblem problem{.q_heads = heads, .kv_heads = 1, .head_dim = 576};
    problem.features = {.page_size = 64, .q_len = q_len, .v_head_dim = 512, .latent = true};
    const DeviceFacts device = facts_for_arch({9, 0, true}, 132).value();
    const Config config = default_config({device, problem, {.batch = 3, .longest_context = 3406}});
    const auto kernel = emit(config.spec);
    const auto compiled = kernel ? compile(*kernel) : tl::unexpected(kernel.error());
    return compiled && (layout_of(config.spec).family == &kWgmmaRoles)
               ? ""
               : kernel_name(config.spec) + (compiled ? " has no roles" : ": " + compiled.error().message);
  });
}

/// For each NVRTC that is supported (scripts/test runs it with the oldest and the newest): every load path and fix-up,
/// of which a change has every load path with one, in turn, two kernels with many features, and one of clusters.
TEST(NvrtcVersions, KernelsOfEveryLoadPathCompileWithoutSpills) {
  std::vector<KernelSpec> specs;
  for (const LoadPath load : kLoadPaths) {
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      if (!in_turn((static_cast<std::size_t>(load) + static_cast<std::size_t>(fixup)) % 2, 2)) continue;
      specs.push_back(matrix_spec({9, 0, true}, DType::bf16, 128, load, fixup, load == LoadPath::vector ? 1 : 4));
    }
  }
  specs.push_back(matrix_spec({8, 0}, DType::fp16, 64, LoadPath::cp_async, FixUp::wait, 8));
  KernelSpec cached = matrix_spec({8, 9}, DType::fp16, 128, LoadPath::cp_async, FixUp::ticket, 4);
  cached.features = {.page_size = 16, .kv_format = KvFormat::fp8_e4m3, .kv_scale = KvScale::head, .append = true};
  specs.push_back(cached);
  KernelSpec masked = matrix_spec({9, 0, true}, DType::bf16, 128, LoadPath::bulk, FixUp::ticket, 4);
  masked.features = {.page_size = 8, .q_len = 2, .window = 100, .soft_cap = 30, .alibi = true};
  specs.push_back(masked);
  KernelSpec cluster = matrix_spec({9, 0, true}, DType::bf16, 576, LoadPath::tensor, FixUp::ticket, 128);
  cluster.features = {.page_size = 64, .kv_format = KvFormat::fp8_ds_mla, .v_head_dim = 512, .latent = true};
  cluster.warps = 8, cluster.stages = 2;
  ASSERT_EQ(layout_of(cluster).converting_ctas, 2);
  specs.push_back(cluster);
  // NVRTC 13.1 and newer spill 4 bytes of it, and 13.0 none.
  const DecodeProblem eight_tokens{.features = {.q_len = 8}};
  specs.push_back(
      default_config({facts_for_arch({9, 0, true}, 132).value(), eight_tokens, {.batch = 4, .longest_context = 8192}})
          .spec);
  const auto version = nvrtc_version();
  ASSERT_TRUE(version) << version.error().message;
  std::printf("NVRTC %s\n", version->c_str());
  expect_all_compile(specs);
}

/// Takes minutes: for every night rather than every change.
TEST(CompileMatrixInFull, EveryFeatureCompilesWithoutSpillsOnEveryArch) {
  const std::vector<KernelSpec> specs = features_matrix(Combinations::all);
  ASSERT_EQ(specs.size(), matrix_arches().size() * (matrix_features().size() + 6))
      << "every feature has a load path on every arch";
  expect_all_compile(specs);
}
TEST(CompileMatrixInFull, EveryCombinationCompilesWithoutSpillsOnEveryArch) {
  const std::vector<KernelSpec> specs = matrix(Combinations::all);
  ASSERT_GE(specs.size(), 150u);
  expect_all_compile(specs);
}

}  // namespace
}  // namespace leanattn
