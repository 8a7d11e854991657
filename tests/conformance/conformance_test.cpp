// conformance_test.cpp -- every case of other libraries' tests agrees with the FP64 oracle, on the kernel that a
// look-up gives without tuning.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "runtime/lookup/default_config.hpp"
#include "tests/conformance/peer_grid.hpp"
#include "tests/gpu/gpu_fixture.hpp"

namespace leanattn {

std::span<const PeerGrid> peer_grids() {
  static const std::vector<PeerGrid> grids{
#include "tests/conformance/peer_grids.inc"
  };
  return grids;
}

namespace {

constexpr std::int64_t kMostKvBytes = 2ll << 30;  // of one case, because the largest cases would take minutes each

struct Played {
  CaseShape shape;
  std::vector<Config> configs;  // in the order in which they are tried
};

/// The cases of a grid that share a kernel.
struct PlayedKernel {
  VerifyKernel kernel;
  std::vector<Played> cases;
};

/// The cases of a grid. `too_large` counts those that are left out.
std::vector<PlayedKernel> cases_of(const PeerGrid& grid, const DeviceFacts& device, int& too_large) {
  std::vector<PlayedKernel> kernels;
  std::vector<std::vector<int>> batches = grid.ragged;
  for (const int batch : grid.batches) {
    for (const int context : grid.contexts) batches.emplace_back(batch, context);
  }
  const auto add = [&](const DecodeProblem& problem, const std::vector<int>& lengths, DataKind data) {
    Shape shape{.batch = static_cast<int>(lengths.size()), .longest_context = 1};
    for (const int length : lengths) {
      shape.longest_context = std::max<std::int64_t>(shape.longest_context, length);
      shape.total_context += std::max(length, 0);
    }
    shape.total_context = std::max(shape.total_context, shape.longest_context);
    if (kv_bytes(problem, shape) > kMostKvBytes) {
      ++too_large;
      return;
    }
    ASSERT_TRUE(validate(problem, shape).has_value()) << validate(problem, shape).error().message;
    Played played{.shape = {.kv_heads = problem.kv_heads,
                            .context_lengths = lengths,
                            .padded = lengths.size() % 2 == 1,
                            .data = data,
                            .shared_prefix = lengths.size() > 3 ? lengths[0] / 2 : 0},
                  .configs = default_configs({device, problem, shape})};
    VerifyKernel kernel{.group = grid.name, .specs = {}, .required = true};
    for (const Config& config : played.configs) kernel.specs.push_back(config.spec);
    const auto same = std::find_if(kernels.begin(), kernels.end(),
                                   [&](const PlayedKernel& other) { return other.kernel.specs == kernel.specs; });
    if (same != kernels.end()) {
      same->cases.push_back(std::move(played));
    } else {
      kernels.push_back({.kernel = std::move(kernel), .cases = {}});
      kernels.back().cases.push_back(std::move(played));
    }
  };
  for (const auto& [q_heads, kv_heads] : grid.heads) {
    for (const int head_dim : grid.head_dims) {
      for (const DType dtype : grid.dtypes) {
        for (const KvLayout layout : grid.layouts) {
          for (Features features : grid.features) {
            for (const int page_size : grid.page_sizes) {
              features.page_size = page_size;
              for (const std::vector<int>& lengths : batches) {
                for (const DataKind data : grid.data) {
                  add({.q_heads = q_heads,
                       .kv_heads = kv_heads,
                       .head_dim = head_dim,
                       .dtype = dtype,
                       .layout = layout,
                       .lse = true,
                       .pdl = false,
                       .features = features},
                      lengths, data);
                }
              }
            }
          }
        }
      }
    }
  }
  return kernels;
}

const Config& config_of(const std::vector<Config>& configs, const KernelSpec& spec) {
  const auto found =
      std::find_if(configs.begin(), configs.end(), [&](const Config& config) { return config.spec == spec; });
  return found != configs.end() ? *found : configs.front();
}

class Conformance : public GpuTest, public testing::WithParamInterface<std::size_t> {};

INSTANTIATE_TEST_SUITE_P(Peers, Conformance, testing::Range<std::size_t>(0, peer_grids().size()),
                         [](const auto& parameter) { return peer_grids()[parameter.param].name; });

TEST_P(Conformance, EveryCaseAgreesWithTheOracle) {
  const PeerGrid& grid = peer_grids()[GetParam()];
  int too_large = 0;
  const auto played = cases_of(grid, runner->device(), too_large);
  ASSERT_FALSE(played.empty());
  std::vector<VerifyKernel> kernels;
  for (const PlayedKernel& entry : played) kernels.push_back(entry.kernel);
  VerifyGroup group;
  CompileQueue queue(kernels, nullptr);
  for (const PlayedKernel& entry : played) {
    const auto choice = queue.next();
    ASSERT_TRUE(choice.has_value());
    const auto kernel = runner->load(group, *choice);
    ASSERT_TRUE(kernel.has_value()) << kernel.error().message;
    if (*kernel == nullptr) continue;  // The group has recorded a failure.
    for (const Played& one : entry.cases) {
      auto decode_case = runner->make_case((*kernel)->spec(), one.shape);
      if (!decode_case && decode_case.error().code == ErrorCode::out_of_memory) {
        ++too_large;
        continue;
      }
      ASSERT_TRUE(decode_case.has_value()) << decode_case.error().message;
      const Config& config = config_of(one.configs, (*kernel)->spec());
      const auto ok = runner->check(group, *decode_case, **kernel, config, 2);
      ASSERT_TRUE(ok.has_value()) << ok.error().message;
    }
  }
  RecordProperty("cases", std::to_string(group.cases));
  RecordProperty("too_large", std::to_string(too_large));
  if (too_large > 0) std::printf("%s: %d cases were too large and left out\n", grid.name.c_str(), too_large);
  expect_clean(group);
}

class ConformanceEdges : public GpuTest {
 protected:
  /// The default kernel of a problem: the first one that compiles.
  std::unique_ptr<LoadedKernel> load_default(const DecodeProblem& problem, const Shape& shape, Config& config) {
    VerifyKernel kernel{.group = {}, .specs = {}, .required = true};
    const auto configs = default_configs({runner->device(), problem, shape});
    for (const Config& one : configs) kernel.specs.push_back(one.spec);
    auto loaded = load(kernel);
    if (loaded != nullptr) config = config_of(configs, loaded->spec());
    return loaded;
  }
};

TEST_F(ConformanceEdges, VeryLowEqualScoresGiveExactlyOneAndTheirLse) {
  // FlashInfer: q = 64, k = -64, v = 1.
  for (const int head_dim : {64, 128, 256}) {
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      for (const KvFormat format : {KvFormat::same, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8}) {
        const DecodeProblem problem{.q_heads = 8,
                                    .kv_heads = 2,
                                    .head_dim = head_dim,
                                    .dtype = dtype,
                                    .lse = true,
                                    .features = {.kv_format = format}};
        Config config;
        const auto kernel = load_default(problem, {.batch = 4, .longest_context = 2048}, config);
        ASSERT_NE(kernel, nullptr);
        auto made = runner->make_case(kernel->spec(),
                                      {.kv_heads = 2, .context_lengths = {1, 64, 777, 2048}, .data = DataKind::ones});
        ASSERT_TRUE(made.has_value()) << made.error().message;
        const auto reference = made->reference(stream);
        ASSERT_TRUE(reference.has_value()) << reference.error().message;
        const auto report = made->check(*kernel, config, stream);
        ASSERT_TRUE(report.has_value()) << report.error().message;
        EXPECT_TRUE(report->passed()) << kernel_name(kernel->spec()) << ": " << report->first_failure;
        std::vector<std::uint16_t> o((*reference)->o.size());
        std::vector<float> lse((*reference)->lse.size());
        ASSERT_TRUE(
            copy_to_host(o.data(), made->args().o, static_cast<std::int64_t>(o.size()) * 2, runner->stream_object()));
        ASSERT_TRUE(copy_to_host(lse.data(), made->args().lse, static_cast<std::int64_t>(lse.size()) * 4,
                                 runner->stream_object()));
        const std::uint16_t one = bits_of(dtype, 1.0f);
        EXPECT_EQ(std::count(o.begin(), o.end(), one), static_cast<std::ptrdiff_t>(o.size()))
            << kernel_name(kernel->spec());
        for (std::size_t i = 0; i < lse.size(); ++i) {
          const double expected = (*reference)->lse[i];
          EXPECT_LE(std::abs(lse[i] - expected), 1e-5 * std::abs(expected)) << kernel_name(kernel->spec());
        }
      }
    }
  }
}

TEST_F(ConformanceEdges, PagesBeyondTwoToThe31stElementAreFound) {
  const auto oracles = OracleKernels::load(runner->device().arch, nullptr);
  ASSERT_TRUE(oracles.has_value()) << oracles.error().message;
  for (const KvLayout layout : {KvLayout::contiguous, KvLayout::strided}) {
    for (const KvFormat format : {KvFormat::same, KvFormat::fp8_e4m3}) {
      const DecodeProblem problem{.q_heads = 8,
                                  .kv_heads = 2,
                                  .head_dim = 128,
                                  .layout = layout,
                                  .lse = true,
                                  .features = {.page_size = 16, .kv_format = format}};
      constexpr std::int64_t kPageElements = 16 * 2 * 128;
      const std::int64_t pages = (std::int64_t{1} << 31) / kPageElements + 1000;
      const std::int64_t bytes = pages * kPageElements * 2 * (format == KvFormat::same ? 2 : 1);
      const auto memory = device_memory();
      ASSERT_TRUE(memory.has_value()) << memory.error().message;
      if (memory->free_bytes < bytes + (1ll << 30))
        GTEST_SKIP() << "a pool of " << bytes << " bytes, and " << memory->free_bytes << " are free";
      Config config;
      const auto kernel = load_default(problem, {.batch = 3, .longest_context = 3000}, config);
      ASSERT_NE(kernel, nullptr);
      auto made = DecodeCase::create(*oracles, problem, {3000, 17, 600}, {.pool_pages = pages}, stream);
      ASSERT_TRUE(made.has_value()) << made.error().message;
      const auto report = made->check(*kernel, config, stream);
      ASSERT_TRUE(report.has_value()) << report.error().message;
      EXPECT_TRUE(report->passed()) << kernel_name(kernel->spec()) << ": " << report->first_failure;
    }
  }
}

TEST(PeerGrids, AreNamedOnceAndHaveCases) {
  std::map<std::string, int> names;
  for (const PeerGrid& grid : peer_grids()) {
    EXPECT_EQ(++names[grid.name], 1) << grid.name;
    EXPECT_TRUE(std::all_of(grid.name.begin(), grid.name.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0;
    })) << grid.name;
    DeviceFacts device;
    device.arch = {9, 0, true};
    device.sm_count = 132;
    int too_large = 0;
    EXPECT_FALSE(cases_of(grid, device, too_large).empty()) << grid.name;
    EXPECT_FALSE(grid.tolerance.empty()) << grid.name;
  }
}

}  // namespace
}  // namespace leanattn
