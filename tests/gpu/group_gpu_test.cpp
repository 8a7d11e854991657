// group_gpu_test.cpp -- groups of GPUs that share contexts, with ranks on all GPUs that are alike, and several on each
// where there are more ranks: every load path and fix-up, both placements of the output, both ways of dealing contexts,
// graphs whose lengths change, ranks that run ahead, and ranks that never come. Groups over NCCL need two GPUs.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "generator/generator.hpp"
#include "leanattn/leanattn.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/nccl.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/gpu/gpu_fixture.hpp"
#include "tests/thoroughness.hpp"
#include "tuner/oracle/group_case.hpp"

namespace leanattn {
namespace {

constexpr std::int64_t kGroupBoundMs = 200;

class GroupOnGpu : public GpuTest {
 protected:
  /// A kernel of these features and heads with small tunables, which leave room for the CTAs of other ranks.
  KernelSpec spec_of(LoadPath load, FixUp fixup, const Features& features, int group = 4, bool lse = true) {
    KernelSpec spec = base_spec(runner->device().arch, DecodeProblem{.q_heads = group, .kv_heads = 1, .head_dim = 128});
    spec.group = group, spec.lse = lse, spec.features = features;
    spec.load = load, spec.fixup = fixup;
    spec.warps = 4, spec.warp_tokens = 16, spec.tile = 64, spec.ctas_per_sm = 1;
    spec.stages = loads_to_registers(load) ? 1 : 2;
    if (load == LoadPath::ldg) spec.head_dim = 64;
    return spec;
  }
  std::unique_ptr<LoadedKernel> kernel_of(const KernelSpec& spec) {
    const auto emitted = emit(spec);
    if (!emitted) return ADD_FAILURE() << emitted.error().message, nullptr;
    auto loaded = LoadedKernel::prepare(*emitted, &cubins());
    if (!loaded) return ADD_FAILURE() << loaded.error().message << loaded.error().log, nullptr;
    return std::make_unique<LoadedKernel>(*std::move(loaded));
  }
  /// What was compiled in this process.
  static CubinCache& cubins() {
    static const auto cache = open_cubin_db(std::nullopt, nullptr);
    return *cache;
  }
  /// Compiles kernels side by side, each of which takes a second, so that kernel_of finds them.
  static void compile_together(const std::vector<KernelSpec>& specs) {
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < std::min<std::size_t>(specs.size(), std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back([&] {
        for (std::size_t at = next++; at < specs.size(); at = next++) {
          if (const auto emitted = emit(specs[at])) static_cast<void>(compile(*emitted, &cubins()));
        }
      });
    }
  }
  Result<GroupCase> case_of(const KernelSpec& spec, std::vector<int> lengths, int kv_heads = 4,
                            std::int64_t bound_ms = 10000, int most_gpus = 8) {
    KernelSpec whole = spec;
    whole.features.context_parallel = 1, whole.features.context_interleave = 0;
    whole.features.replicate_output = false, whole.features.page_size = 0;
    auto made = runner->make_case(
        whole, {.kv_heads = kv_heads, .context_lengths = std::move(lengths), .context_capacity = 2500});
    if (!made) return tl::unexpected(made.error());
    return GroupCase::create(std::move(*made), spec.features, bound_ms, stream, {.most_gpus = most_gpus});
  }
  void expect_right(GroupCase& group, const LoadedKernel& kernel, std::int64_t grid, int launches = 2) {
    const std::string what = kernel_name(kernel.spec()) + ", grid " + std::to_string(grid);
    const auto report = group.check(kernel, {grid, static_cast<int>(grid % 3)}, launches);
    ASSERT_TRUE(report) << what << ": " << report.error().message;
    EXPECT_TRUE(report->passed()) << what << ": " << report->first_failure;
  }
  /// Kernels with ranks of ragged parts, each with a grid of 40 CTAs or as many as fit.
  void expect_all_right(const std::vector<KernelSpec>& specs);
  Result<void> sync(const GroupCase& group) {
    Result<void> all;
    for (int rank = 0; rank < group.ranks(); ++rank) {
      if (auto ok = group.stream(rank).synchronize(); !ok) all = ok;
    }
    return all;
  }
  void expect_engines_to_agree(int most_gpus);
  /// Ranks of two GPUs with an engine each, over NCCL.
  struct OverNccl;
  void open_over_nccl(OverNccl& ranks, const Features& features, int kv_heads = 4);
  static int current_device() {
    CUdevice device = 0;
    EXPECT_EQ(driver().value()->cuCtxGetDevice(&device), CUDA_SUCCESS);
    return device;
  }
  std::vector<LoadPath> loads() {
    if (runner->device().arch.major != 9) return {LoadPath::cp_async, LoadPath::ldg};
    return {LoadPath::cp_async, LoadPath::bulk, LoadPath::tensor, LoadPath::ldg, LoadPath::vector};
  }
};

const std::vector<int> kRagged{2000, 1234, 0, 77, 1, 2311};

void GroupOnGpu::expect_all_right(const std::vector<KernelSpec>& specs) {
  ASSERT_FALSE(specs.empty());
  compile_together(specs);
  for (const KernelSpec& spec : specs) {
    const auto kernel = kernel_of(spec);
    ASSERT_TRUE(kernel);
    auto group = case_of(spec, kRagged);
    ASSERT_TRUE(group) << group.error().message;
    expect_right(*group, *kernel, std::min<std::int64_t>(group->most_ctas(*kernel), 40));
    if (HasFatalFailure()) return;
  }
}

TEST_F(GroupOnGpu, TwoRanksAgreeWithTheOracleOnEveryLoadPathAndFixUp) {
  for (const LoadPath load : loads()) {
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      const auto kernel = kernel_of(spec_of(load, fixup, {.context_parallel = 2}, load == LoadPath::vector ? 1 : 4));
      ASSERT_TRUE(kernel);
      auto group = case_of(kernel->spec(), kRagged);
      ASSERT_TRUE(group) << group.error().message;
      // More CTAs than tile positions, one CTA, and all that fit.
      for (const std::int64_t grid : {std::int64_t{1}, std::int64_t{13}, group->most_ctas(*kernel)})
        expect_right(*group, *kernel, std::min(grid, group->most_ctas(*kernel)));
    }
  }
}

TEST_F(GroupOnGpu, WindowsOverWholeContextsAgreeWithTheOracle) {
  std::vector<KernelSpec> specs;
  for (const LoadPath load : loads()) {
    for (const int unit : {0, 1, 16}) {
      for (const int q_len : {1, 3}) {
        if (load == LoadPath::vector && q_len > 1) continue;  // which has one query row
        const Features features{.page_size = unit == 16 ? 16 : 0,
                                .q_len = q_len,
                                .window = q_len == 1 ? 64 : 700,
                                .sink_tokens = unit == 1 ? 0 : 5,
                                .context_parallel = 2,
                                .context_interleave = unit};
        const FixUp fixup = (unit + q_len) % 2 == 0 ? FixUp::ticket : FixUp::wait;
        specs.push_back(spec_of(load, fixup, features, load == LoadPath::vector ? 1 : 4));
      }
    }
  }
  expect_all_right(specs);
}

TEST_F(GroupOnGpu, ScoresOfPositionsInWholeContextsAgreeWithTheOracle) {
  std::vector<KernelSpec> specs;
  for (const LoadPath load : loads()) {
    for (const int unit : {0, 16}) {
      for (const bool expression : {false, true}) {
        const Features features{.q_len = load == LoadPath::vector ? 1 : 2,
                                .alibi = !expression,
                                .score = expression ? "score - 0.01f * (q_index - kv_index)" : "",
                                .context_parallel = 2,
                                .context_interleave = unit};
        specs.push_back(
            spec_of(load, expression ? FixUp::ticket : FixUp::wait, features, load == LoadPath::vector ? 1 : 4));
      }
    }
  }
  expect_all_right(specs);
}

TEST_F(GroupOnGpu, NewTokensAreWrittenByTheRankThatOwnsThemAndByNoOther) {
  std::vector<KernelSpec> specs;
  for (const LoadPath load : loads()) {
    for (const int unit : {0, 1, 16}) {
      for (const bool rotated : {false, true}) {
        const Features features{.page_size = unit == 16 ? 16 : 0,
                                .q_len = load == LoadPath::vector ? 1 : 3,
                                .ragged_q = unit == 1,
                                .append = true,
                                .rope = rotated ? Rope::half_split : Rope::none,
                                .context_parallel = 2,
                                .context_interleave = unit};
        specs.push_back(
            spec_of(load, rotated ? FixUp::ticket : FixUp::wait, features, load == LoadPath::vector ? 1 : 4));
      }
    }
  }
  expect_all_right(specs);
}

TEST_F(GroupOnGpu, PlacementsAndWaysOfDealingAgreeWithTheOracle) {
  std::vector<KernelSpec> specs;
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int unit : {0, 1, 16, 256}) {
      for (const int q_len : {1, 4}) {
        for (const bool replicate : {false, true}) {
          if (!replicate && ranks == 3) continue;  // 4 KV heads of 4 query heads cannot be dealt to 3
          const Features features{.page_size = unit == 16 ? 16 : 0,
                                  .q_len = q_len,
                                  .ragged_q = q_len > 1 && unit == 1,
                                  .context_parallel = ranks,
                                  .context_interleave = unit,
                                  .replicate_output = replicate};
          const FixUp fixup = (ranks + q_len) % 2 == 0 ? FixUp::ticket : FixUp::wait;
          const LoadPath load =
              runner->device().arch.major == 9 && unit % 16 == 0 ? LoadPath::tensor : LoadPath::cp_async;
          specs.push_back(spec_of(load, fixup, features));
        }
      }
    }
  }
  expect_all_right(specs);
}

TEST_F(GroupOnGpu, RanksShareTheQueryHeadsOfOneKvHead) {
  for (const int ranks : {2, 4}) {
    const auto kernel = kernel_of(spec_of(LoadPath::cp_async, FixUp::ticket, {.context_parallel = ranks}, 8));
    ASSERT_TRUE(kernel);
    auto group = case_of(kernel->spec(), kRagged, 1);
    ASSERT_TRUE(group) << group.error().message;
    expect_right(*group, *kernel, 20);
  }
}

TEST_F(GroupOnGpu, GraphsStayRightWhileLengthsChange) {
  for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
    const auto kernel = kernel_of(spec_of(LoadPath::cp_async, fixup, {.q_len = 4, .context_parallel = 2}));
    ASSERT_TRUE(kernel);
    auto group = case_of(kernel->spec(), kRagged);
    ASSERT_TRUE(group) << group.error().message;
    const LaunchGrid grid(std::min<std::int64_t>(group->most_ctas(*kernel), 50), 1);
    ASSERT_TRUE(group->prepare(*kernel)) << "nothing is loaded during a capture";
    std::vector<Graph> graphs;
    for (int rank = 0; rank < 2; ++rank) {
      const auto bound = group->bind(rank, kernel->spec(), grid);
      ASSERT_TRUE(bound) << bound.error().message;
      const CurrentContext scope = group->enter(rank);
      auto graph =
          Graph::capture(group->stream(rank), [&](CUstream_st*) { return group->launch(rank, *kernel, grid, *bound); });
      ASSERT_TRUE(graph) << graph.error().message;
      graphs.push_back(*std::move(graph));
    }
    const std::vector<std::vector<int>> sets{
        kRagged, {0, 0, 0, 0, 0, 0}, {5, 2400, 700, 3, 0, 128}, {1, 1, 1, 1, 1, 1}};
    for (int round = 0; round < tries(12, 200); ++round) {
      ASSERT_TRUE(group->set_context_lengths(sets[static_cast<std::size_t>(round) % sets.size()]));
      ASSERT_TRUE(group->reset_outputs());
      for (int replay = 0; replay < 3; ++replay)
        for (int rank = 0; rank < 2; ++rank)
          ASSERT_TRUE(
              graphs[static_cast<std::size_t>((rank + round) % 2)].launch(group->stream((rank + round) % 2).get()));
      ASSERT_TRUE(sync(*group));
      const auto report = group->compare(kernel->spec());
      ASSERT_TRUE(report) << report.error().message;
      ASSERT_TRUE(report->passed()) << to_string(fixup) << ", round " << round << ": " << report->first_failure;
    }
  }
}

TEST_F(GroupOnGpu, ARankThatRunsAheadOverwritesNothing) {
  const auto kernel = kernel_of(spec_of(LoadPath::cp_async, FixUp::ticket, {.context_parallel = 2}));
  ASSERT_TRUE(kernel);
  auto group = case_of(kernel->spec(), kRagged);
  ASSERT_TRUE(group) << group.error().message;
  constexpr std::int64_t kGrid = 30;
  std::vector<LeanDecodeArgs> bound;
  for (int rank = 0; rank < 2; ++rank) bound.push_back(group->bind(rank, kernel->spec(), kGrid).value());
  for (const int ahead : {0, 1}) {
    ASSERT_TRUE(group->reset_outputs());
    // All launches of one rank are enqueued before the first of the other.
    for (const int rank : {ahead, 1 - ahead})
      for (int i = 0; i < tries(100, 500); ++i)
        ASSERT_TRUE(group->launch(rank, *kernel, kGrid, bound[static_cast<std::size_t>(rank)]));
    ASSERT_TRUE(sync(*group));
    const auto report = group->compare(kernel->spec());
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed()) << report->first_failure;
  }
}

TEST_F(GroupOnGpu, ARankThatNeverComesIsNamedAndTheGroupWorksAfterAReset) {
  for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
    const auto kernel =
        kernel_of(spec_of(LoadPath::cp_async, fixup, {.context_parallel = 3, .replicate_output = true}));
    ASSERT_TRUE(kernel);
    auto group = case_of(kernel->spec(), kRagged, 4, kGroupBoundMs);
    ASSERT_TRUE(group) << group.error().message;
    constexpr std::int64_t kGrid = 20;
    for (const int missing : {1, 2}) {
      ASSERT_TRUE(group->reset_outputs());
      for (int rank = 0; rank < 3; ++rank) {
        const auto bound = group->bind(rank, kernel->spec(), kGrid);
        ASSERT_TRUE(bound) << bound.error().message;
        if (rank == missing) continue;
        ASSERT_TRUE(group->launch(rank, *kernel, kGrid, *bound));
      }
      ASSERT_TRUE(sync(*group)) << "the launches end by themselves";
      for (int rank = 0; rank < 3; ++rank) {
        const auto answer = group->status(rank).check();
        if (rank == missing) {
          EXPECT_TRUE(answer);
          continue;
        }
        ASSERT_FALSE(answer);
        EXPECT_EQ(answer.error().code, ErrorCode::group_broken);
        EXPECT_NE(answer.error().message.find("rank " + std::to_string(missing)), std::string::npos)
            << answer.error().message;
      }
      ASSERT_TRUE(group->reset());
      expect_right(*group, *kernel, kGrid);
    }
  }
}

TEST_F(GroupOnGpu, ARankWithAnotherKernelBatchScaleOrLengthsIsNamed) {
  for (const double soft_cap : {0.0, 30.0}) {  // kernels that change scores take the scale from another argument
    const auto kernel =
        kernel_of(spec_of(LoadPath::cp_async, FixUp::ticket, {.soft_cap = soft_cap, .context_parallel = 2}));
    ASSERT_TRUE(kernel);
    auto group = case_of(kernel->spec(), kRagged, 4, kGroupBoundMs);
    ASSERT_TRUE(group) << group.error().message;
    constexpr std::int64_t kGrid = 20;
    for (const int what : {0, 1, 2}) {
      for (int rank = 0; rank < 2; ++rank) {
        LeanDecodeArgs args = group->bind(rank, kernel->spec(), kGrid).value();
        if (rank == 1 && what == 0) args.batch = 3;
        if (rank == 1 && what == 1) (soft_cap > 0 ? args.score_scale : args.scale_log2) *= 2;
        if (rank == 1 && what == 2) args.full_lengths = args.context_lengths;  // its own instead of all
        ASSERT_TRUE(group->launch(rank, *kernel, kGrid, args));
      }
      ASSERT_TRUE(sync(*group));
      const auto answer = group->status(0).check();
      ASSERT_FALSE(answer) << what;
      EXPECT_EQ(answer.error().code, ErrorCode::group_broken);
      EXPECT_NE(answer.error().message.find("rank 1"), std::string::npos) << answer.error().message;
      EXPECT_NE(answer.error().message.find("another kernel, batch or scale"), std::string::npos)
          << answer.error().message;
      ASSERT_TRUE(group->reset());
    }
    expect_right(*group, *kernel, kGrid);
  }
}

/// Two ranks with an engine each, through the public interface.
void GroupOnGpu::expect_engines_to_agree(int most_gpus) {
  const KernelSpec spec = spec_of(LoadPath::cp_async, FixUp::ticket, {.context_parallel = 2});
  auto group = case_of(spec, kRagged, 4, 10000, most_gpus);
  ASSERT_TRUE(group) << group.error().message;
  if (group->gpus() < most_gpus) GTEST_SKIP() << "this machine has one GPU of this kind";
  const Problem problem{.q_heads = 16, .kv_heads = 4, .head_dim = 128, .lse = true, .context_parallel = 2};
  std::vector<Engine> engines;
  for (int rank = 0; rank < 2; ++rank) {
    // The GPUs of the case in their order; the tests run on GPU 0.
    const CurrentContext scope = group->enter(rank);
    EngineOptions options;
    options.disk_cache = false;
    options.device = current_device();
    auto engine = Engine::create(options);
    ASSERT_TRUE(engine) << engine.error().message;
    engines.push_back(std::move(*engine));
  }
  auto groups = Group::of_engines({&engines[0], &engines[1]}, Group::bytes(problem, 6).value());
  ASSERT_TRUE(groups) << groups.error().message;
  std::vector<Plan> plans;
  std::vector<DeviceBuffer> workspaces;
  for (std::size_t r = 0; r < 2; ++r) {
    const CurrentContext scope = group->enter(static_cast<int>(r));
    const auto plan = engines[r].plan(problem, {.batch = 6, .longest_context = 1200}, (*groups)[r]);
    ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
    plans.push_back(*plan);
    workspaces.push_back(DeviceBuffer::allocate(plan->workspace_bytes()).value());
    ASSERT_TRUE(plan->init_workspace(workspaces.back().data(), workspaces.back().bytes(),
                                     group->stream(static_cast<int>(r)).get()));
    // The case binds a workspace of its own for its comparison.
    ASSERT_TRUE(group->bind(static_cast<int>(r), spec, 1));
  }
  ASSERT_TRUE(sync(*group));
  for (int launch = 0; launch < 3; ++launch) {
    ASSERT_TRUE(group->reset_outputs());
    for (int rank = 0; rank < 2; ++rank) {
      const LeanDecodeArgs block = group->args(rank);
      DecodeArgs args;
      args.q = block.q, args.k = block.k, args.v = block.v, args.o = block.o, args.lse = block.lse;
      args.context_lengths = block.context_lengths, args.full_context_lengths = block.full_lengths;
      args.batch = block.batch, args.context_capacity = block.context_capacity;
      args.scale = block.score_scale;
      const auto r = static_cast<std::size_t>(rank);
      const auto launched = plans[r].launch(args, workspaces[r].data(), group->stream(rank).get());
      ASSERT_TRUE(launched) << launched.error().message;
    }
    ASSERT_TRUE(sync(*group));
    ASSERT_TRUE(engines[0].check() && engines[1].check());
    const auto report = group->compare(spec);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed()) << report->first_failure;
  }
  for (std::size_t r = 0; r < 2; ++r) {
    const CurrentContext scope = group->enter(static_cast<int>(r));
    workspaces[r] = DeviceBuffer();
  }
}

struct GroupOnGpu::OverNccl {
  ~OverNccl() {
    for (std::size_t rank = 0; rank < workspaces.size(); ++rank) {
      const CurrentContext scope = group->enter(static_cast<int>(rank));
      workspaces[rank] = DeviceBuffer();
    }
  }
  KernelSpec spec;
  Problem problem;
  const PlanShape shape{.batch = 6, .longest_context = 1200};
  std::unique_ptr<GroupCase> group;  ///< has the data, and judges the results
  std::vector<Engine> engines;
  std::vector<Group> groups;
  std::vector<Plan> plans;
  std::vector<DeviceBuffer> workspaces;

  CUstream_st* stream(std::size_t rank) const { return group->stream(static_cast<int>(rank)).get(); }
  Result<void> launch(std::size_t rank) const {
    const LeanDecodeArgs block = group->args(static_cast<int>(rank));
    const Features& features = spec.features;
    DecodeArgs args;
    args.q = block.q, args.k = block.k, args.v = block.v, args.o = block.o, args.lse = block.lse;
    args.context_lengths = block.context_lengths, args.full_context_lengths = block.full_lengths;
    if (needs_positions(features) && features.context_interleave == 0) args.context_starts = block.context_starts;
    if (features.ragged_q) args.q_offsets = block.q_offsets;
    if (features.sink_logits) args.sink_logits = block.sink_logits;
    if (features.alibi) args.alibi_slopes = block.alibi_slopes;
    if (features.rope != Rope::none) args.rope_table = block.rope_table;
    if (features.append) args.k_new = block.k_new, args.v_new = block.v_new;
    if (features.page_size > 0) {
      args.page_table = block.page_table, args.page_table_stride = block.page_table_stride;
      args.pool_pages = block.pool_pages, args.max_pages = static_cast<int>(block.page_table_stride);
    } else {
      args.context_capacity = block.context_capacity;
    }
    args.batch = block.batch;
    args.scale = block.score_scale;
    return plans[rank].launch(args, workspaces[rank].data(), stream(rank));
  }
  /// Compares once all streams have ended. A part's O is rounded to 16 bits before it is merged, which may cost half as
  /// much again as the rounding of the result.
  void expect_right(const std::string& what) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(group->stream(static_cast<int>(rank)).synchronize());
      const auto checked = engines[rank].check();
      ASSERT_TRUE(checked) << what << ": " << checked.error().message;
    }
    const auto report = group->compare(spec);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->unwritten + report->pattern_mismatches + report->stray_writes + report->workspace_left +
                  report->wrong_appended,
              0)
        << what << ": " << report->first_failure;
    EXPECT_LE(report->error_ratio, 3.0) << what << ": " << report->first_failure;
    EXPECT_LE(report->mean_ratio, 3.0) << what << ": " << report->first_failure;
    EXPECT_LE(report->lse_ratio, 1.0) << what << ": " << report->first_failure;
  }
};

void GroupOnGpu::open_over_nccl(OverNccl& ranks, const Features& features, int kv_heads) {
  if (const auto api = nccl(); !api) GTEST_SKIP() << api.error().message;
  ranks.spec = spec_of(LoadPath::cp_async, FixUp::ticket, features);
  auto group = case_of(ranks.spec, kRagged, kv_heads);
  ASSERT_TRUE(group) << group.error().message;
  ranks.group = std::make_unique<GroupCase>(*std::move(group));
  if (ranks.group->gpus() < 2) GTEST_SKIP() << "this machine has one GPU of this kind";
  Problem& problem = ranks.problem;
  problem.q_heads = 4 * kv_heads, problem.kv_heads = kv_heads, problem.head_dim = 128, problem.lse = true;
  problem.context_parallel = 2, problem.context_interleave = features.context_interleave;
  problem.replicate_output = features.replicate_output;
  problem.q_len = features.q_len, problem.ragged_q = features.ragged_q, problem.sink_logits = features.sink_logits;
  problem.page_size = features.page_size;
  problem.window = features.window, problem.sink_tokens = features.sink_tokens;
  problem.alibi = features.alibi, problem.score = features.score, problem.append = features.append;
  if (features.rope == Rope::half_split) problem.rope = RopePairing::half_split;
  for (int rank = 0; rank < 2; ++rank) {
    const CurrentContext scope = ranks.group->enter(rank);
    EngineOptions options;
    options.disk_cache = false;
    options.device = current_device();
    auto engine = Engine::create(options);
    ASSERT_TRUE(engine) << engine.error().message;
    ranks.engines.push_back(std::move(*engine));
  }
  auto groups =
      Group::of_engines({&ranks.engines[0], &ranks.engines[1]}, Group::bytes(problem, 6).value(), GroupTransport::nccl);
  ASSERT_TRUE(groups) << groups.error().message;
  ranks.groups = std::move(*groups);
  for (std::size_t r = 0; r < 2; ++r) {
    const CurrentContext scope = ranks.group->enter(static_cast<int>(r));
    const auto plan = ranks.engines[r].plan(problem, ranks.shape, ranks.groups[r]);
    ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
    ranks.plans.push_back(*plan);
    ranks.workspaces.push_back(DeviceBuffer::allocate(plan->workspace_bytes()).value());
    ASSERT_TRUE(plan->init_workspace(ranks.workspaces.back().data(), ranks.workspaces.back().bytes(), ranks.stream(r)));
    // The case binds a workspace of its own for its comparison.
    ASSERT_TRUE(ranks.group->bind(static_cast<int>(r), ranks.spec, 1));
  }
}

TEST_F(GroupOnGpu, RanksOverNcclAgreeWithTheOracle) {
  struct Case {
    const char* what;
    Features features;
  };
  for (const Case& one :
       {Case{"scattered", {.context_parallel = 2}},
        Case{"replicated", {.context_parallel = 2, .replicate_output = true}},
        Case{"sink logits, pages", {.page_size = 16, .sink_logits = true, .context_parallel = 2}},
        Case{"four tokens of contiguous parts", {.q_len = 4, .context_parallel = 2}},
        Case{"four tokens in turn", {.page_size = 16, .q_len = 4, .context_parallel = 2, .context_interleave = 1}},
        Case{"ragged tokens", {.q_len = 4, .ragged_q = true, .context_parallel = 2, .context_interleave = 16}},
        Case{"a window", {.window = 300, .sink_tokens = 5, .context_parallel = 2}},
        Case{"a window over units in turn",
             {.page_size = 16, .q_len = 2, .window = 300, .context_parallel = 2, .context_interleave = 16}},
        Case{"ALiBi", {.q_len = 2, .alibi = true, .context_parallel = 2}},
        Case{"a score expression",
             {.score = "score - 0.01f * (q_index - kv_index)", .context_parallel = 2, .context_interleave = 1}},
        Case{"new tokens", {.q_len = 2, .append = true, .rope = Rope::half_split, .context_parallel = 2}},
        Case{"new tokens of units in turn",
             {.page_size = 16, .append = true, .context_parallel = 2, .context_interleave = 1}}}) {
    OverNccl ranks;
    open_over_nccl(ranks, one.features);
    if (IsSkipped() || HasFatalFailure()) return;
    for (int launch = 0; launch < 3; ++launch) {
      ASSERT_TRUE(ranks.group->reset_outputs());
      for (std::size_t rank = 0; rank < 2; ++rank) {
        const auto launched = ranks.launch(rank);
        ASSERT_TRUE(launched) << one.what << ": " << launched.error().message;
      }
      ranks.expect_right(one.what);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(GroupOnGpu, GraphsOverNcclStayRightWhileLengthsChange) {
  OverNccl ranks;
  open_over_nccl(ranks, {.q_len = 4, .context_parallel = 2});
  if (IsSkipped() || HasFatalFailure()) return;
  std::vector<Graph> graphs;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const CurrentContext scope = ranks.group->enter(static_cast<int>(rank));
    auto graph =
        Graph::capture(ranks.group->stream(static_cast<int>(rank)), [&](CUstream_st*) { return ranks.launch(rank); });
    ASSERT_TRUE(graph) << graph.error().message;
    graphs.push_back(*std::move(graph));
  }
  const std::vector<std::vector<int>> sets{kRagged, {4, 4, 4, 4, 4, 4}, {5, 2400, 700, 4, 9, 128}};
  for (int round = 0; round < tries(12, 200); ++round) {
    ASSERT_TRUE(ranks.group->set_context_lengths(sets[static_cast<std::size_t>(round) % sets.size()]));
    ASSERT_TRUE(ranks.group->reset_outputs());
    for (int replay = 0; replay < 3; ++replay) {
      for (std::size_t i = 0; i < 2; ++i) {
        const std::size_t rank = (i + static_cast<std::size_t>(round)) % 2;
        const CurrentContext scope = ranks.group->enter(static_cast<int>(rank));
        ASSERT_TRUE(graphs[rank].launch(ranks.stream(rank)));
      }
    }
    ranks.expect_right("round " + std::to_string(round));
    if (HasFatalFailure()) return;
  }
}

TEST_F(GroupOnGpu, ARankThatNeverComesOverNcclEndsTheLaunchAndTheGroupIsConnectedAgain) {
  setenv("LEANATTN_WAIT_BOUND_MS", "500", 1);
  OverNccl ranks;
  open_over_nccl(ranks, {.context_parallel = 2});
  unsetenv("LEANATTN_WAIT_BOUND_MS");
  if (IsSkipped() || HasFatalFailure()) return;
  ASSERT_TRUE(ranks.launch(0));
  ASSERT_TRUE(ranks.group->stream(0).synchronize()) << "the launch ends, because its communicator is aborted";
  const auto answer = ranks.engines[0].check();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::group_broken);
  EXPECT_NE(answer.error().message.find("did not send its results within 500 ms"), std::string::npos)
      << answer.error().message;
  EXPECT_FALSE(ranks.launch(0)) << "nothing is launched until the group is connected again";
  EXPECT_TRUE(ranks.engines[1].check()) << "it has waited for nobody";
  const Group::NcclId id = Group::nccl_id().value();
  for (Group& group : ranks.groups) {
    const auto again = group.connect_nccl(id);
    ASSERT_TRUE(again) << again.error().message;
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const auto plan = ranks.engines[rank].plan(ranks.problem, ranks.shape, ranks.groups[rank]);
    ASSERT_TRUE(plan) << plan.error().message;  // which has waited for the other rank
  }
  for (int launch = 0; launch < 2; ++launch) {
    ASSERT_TRUE(ranks.group->reset_outputs());
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const auto launched = ranks.launch(rank);
      ASSERT_TRUE(launched) << launched.error().message;
    }
    ranks.expect_right("connected again");
    if (HasFatalFailure()) return;
  }
}

TEST_F(GroupOnGpu, TwoEnginesOfOneGpuStandInForTwoRanks) { expect_engines_to_agree(1); }

TEST_F(GroupOnGpu, EnginesOfTwoGpusAreTwoRanks) { expect_engines_to_agree(2); }

}  // namespace
}  // namespace leanattn
