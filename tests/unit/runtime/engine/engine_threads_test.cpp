// engine_threads_test.cpp -- sixteen threads on one engine, with a cubin.db that evicts kernels and a tuning.db that is
// written meanwhile. The thread sanitizer runs this (preset tsan).
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <random>
#include <thread>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "cache/tuning/tuning_db.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tests/unit/cache/cache_fixture.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

using cache_test::ScopedVariable;

/// Does to the cache what a compilation does: a kernel that is not found takes a turn and stores a cubin of 100 kB.
Result<PreparedKernel> prepare_through(CubinCache& cache, const KernelSpec& spec) {
  const std::string key = cubin_key(kernel_identity(spec), {}, "13.0", to_string(spec.arch));
  if (!cache.load(key)) {
    const CompileTurn turn = cache.wait_for_turn(key);
    if (!cache.load(key)) {
      std::mt19937_64 random(std::hash<std::string>()(key));
      CubinEntry entry{{}, "{}"};
      for (int i = 0; i < 100000; ++i) entry.cubin.push_back(static_cast<std::uint8_t>(random()));
      cache.store(key, entry);
    }
  }
  return pretended(spec);
}

TEST(EngineThreads, LookUpsCompilesReloadsAndEvictionsGoOnTogether) {
  const TemporaryDirectory directory;
  const ScopedVariable patience("LEANATTN_BUSY_TIMEOUT_MS", "120000");
  const ScopedVariable one_megabyte("LEANATTN_CUBIN_CACHE_MB", "1");
  const ScopedVariable no_site("LEANATTN_SITE_DB", std::nullopt);
  const DeviceFacts device = fictional_gpu();
  const std::shared_ptr<CubinCache> cubins = open_cubin_db(directory.path(), nullptr);
  EngineParts parts = fictional_parts();
  parts.prepare = [&](const KernelSpec& spec) { return prepare_through(*cubins, spec); };
  parts.open_winners = [&] { return open_layered_winners(device_model(device), directory.path()); };
  EngineCore engine(std::move(parts));

  constexpr int kThreads = 16, kRounds = 300, kWinners = 24;
  const std::uint64_t seed = cache_test::random_seed();
  std::atomic<int> wrong{0};
  std::barrier start(kThreads);
  const auto look_up = [&](int thread) {
    std::mt19937 random(static_cast<unsigned>(seed) + static_cast<unsigned>(thread));
    std::uniform_int_distribution<int> head_dims(1, 16), batch(1, 64), context(1, 200);
    const WhenNotLoaded when_missing = thread % 2 == 0 ? WhenNotLoaded::compile : WhenNotLoaded::stand_in;
    for (int round = 0; round < kRounds; ++round) {
      const DecodeProblem problem{.q_heads = 32, .kv_heads = 8, .head_dim = 16 * head_dims(random)};
      const Shape shape{.batch = batch(random), .longest_context = 64 * context(random)};
      const auto plan = engine.plan(problem, shape, nullptr, when_missing);
      const bool right = plan && (*plan)->limits().problem == problem && (*plan)->limits().size.batch == shape.batch &&
                         (*plan)->choice().config.spec.head_dim == problem.head_dim;
      if (!right) ++wrong;
      if (!engine.lookup(problem, shape)) ++wrong;
    }
  };
  const auto tune = [&] {
    const auto database = TuningDb::open(directory.path(), OpenMode::read_write, nullptr);
    if (!database) return void(++wrong);
    const auto session = (*database)->begin_session(device_model(device), {}, "threads");
    if (!session) return void(++wrong);
    for (int i = 1; i <= kWinners; ++i) {
      const DecodeProblem problem{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
      Trial trial;
      trial.problem = to_json(problem);
      trial.shape = to_json(Shape{.batch = i, .longest_context = 4096});
      trial.policy = "cold";
      trial.config = to_json(tuned_config(problem, 132 + i));
      trial.samples = 5;
      trial.median_us = 10;
      if (!(*database)->add_trial(*session, trial)) ++wrong;
      if (!(*database)->rebuild_winners(device_model(device), trial.problem, trial.shape, trial.policy)) ++wrong;
      engine.reload();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      i == 0 ? tune() : look_up(i);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  const auto last =
      engine.lookup({.q_heads = 32, .kv_heads = 8, .head_dim = 128}, {.batch = kWinners, .longest_context = 4096});
  ASSERT_TRUE(last);
  EXPECT_EQ(last->provenance, Provenance::exact) << "the last reload saw the last winner";
}

}  // namespace
}  // namespace leanattn
