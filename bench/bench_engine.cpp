// bench_engine.cpp -- what an engine costs the host. It needs no GPU: the driver is the tests' fake libcuda, which does
// nothing, so that all the time is the library's. It times launches beside bare ones and opening with many winners, and
// measures memory.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cache/tuning/tuning_db.hpp"
#include "leanattn/leanattn.h"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tests/temporary_directory.hpp"
#include "tests/unit/runtime/fake_cuda.hpp"

namespace leanattn {
namespace {

constexpr int kWinners = 20000;

void pretend_an_h200() {
  fake_gpu() = FakeGpu{};
  fake_gpu().quiet = true;
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9;
}

/// Writes a tuning.db with kWinners winners of `problems` problems, one of which is the default one. They share their
/// kernels; a problem has 40 batches and up to 500 contexts, and some dozens of configurations.
Result<void> write_winners(const std::filesystem::path& directory, int problems) {
  const auto device = device_facts(0);
  if (!device) return tl::unexpected(device.error());
  auto database = TuningDb::open(std::nullopt, OpenMode::read_write, nullptr);
  if (!database) return tl::unexpected(database.error());
  const auto session = (*database)->begin_session(device_model(*device), current_environment(*device), "bench");
  if (!session) return tl::unexpected(session.error());
  for (int i = 0; i < kWinners; ++i) {
    DecodeProblem problem;
    problem.kv_heads = 8 + i % problems;
    problem.q_heads = 4 * problem.kv_heads;
    const int j = i / problems;
    const Shape shape{.batch = 1 + j % 40, .longest_context = 128 * (1 + j / 40)};
    Trial trial;
    trial.problem = to_json(problem);
    trial.shape = to_json(shape);
    trial.policy = "cold";
    Config config = default_config({*device, problem, shape});
    config.grid = 1 + i % 64;
    trial.config = to_json(config);
    trial.kernel_revision = kernel_revision(config.spec);
    trial.samples = 5;
    trial.median_us = 10;
    if (auto added = (*database)->add_trial(*session, trial); !added) return tl::unexpected(added.error());
  }
  if (auto rebuilt = (*database)->rebuild_winners(); !rebuilt) return rebuilt;
  return (*database)->export_to(directory / "tuning.db");
}

/// Bytes of the heap that are in use.
double heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
}

void open_with_twenty_thousand_winners(benchmark::State& state) {
  pretend_an_h200();
  const TemporaryDirectory directory(std::filesystem::temp_directory_path());
  const int problems = static_cast<int>(state.range(0));
  if (const auto written = write_winners(directory.path(), problems); !written)
    return state.SkipWithError(written.error().message.c_str());
  double bytes = 0;
  for (auto _ : state) {
    const double before = heap_bytes();
    const auto engine = EngineCore::open({.device = 0, .cache_dir = directory.path(), .disk_cache = true});
    if (!engine) return state.SkipWithError(engine.error().message.c_str());
    state.PauseTiming();
    const auto choice = (*engine)->lookup({}, {.batch = 40, .longest_context = kWinners / problems / 40 * 128});
    if (!choice || choice->provenance != Provenance::exact) return state.SkipWithError("the last winner is not there");
    bytes = heap_bytes() - before;
    state.ResumeTiming();
  }
  state.counters["heap_MB"] = bytes / 1e6;
}
BENCHMARK(open_with_twenty_thousand_winners)->Unit(benchmark::kMillisecond)->ArgName("problems")->Arg(1)->Arg(40);

/// The first look-up of a problem reads its winners. Those of similar problems are read with the first shape that was
/// not tuned.
void first_lookup_among_twenty_thousand_winners(benchmark::State& state) {
  pretend_an_h200();
  const TemporaryDirectory directory(std::filesystem::temp_directory_path());
  const int problems = static_cast<int>(state.range(0));
  if (const auto written = write_winners(directory.path(), problems); !written)
    return state.SkipWithError(written.error().message.c_str());
  const bool tuned = state.range(1) != 0;
  const Shape shape{.batch = 40, .longest_context = tuned ? kWinners / problems / 40 * 128 : 1 << 20};
  for (auto _ : state) {
    state.PauseTiming();
    auto engine = EngineCore::open({.device = 0, .cache_dir = directory.path(), .disk_cache = true});
    if (!engine) return state.SkipWithError(engine.error().message.c_str());
    state.ResumeTiming();
    const auto choice = (*engine)->lookup({}, shape);
    state.PauseTiming();
    const auto expected = tuned ? Provenance::exact : Provenance::nearest;
    if (!choice || choice->provenance != expected) return state.SkipWithError("another winner than the one expected");
    engine = nullptr;
    state.ResumeTiming();
  }
}
BENCHMARK(first_lookup_among_twenty_thousand_winners)
    ->Unit(benchmark::kMillisecond)
    ->ArgNames({"problems", "tuned"})
    ->ArgsProduct({{1, 40}, {1, 0}});

/// A plan of a real kernel on the fake device, and a launch's arguments.
struct Step {
  std::unique_ptr<EngineCore> engine;
  const PlanCore* plan = nullptr;
  std::unique_ptr<void, decltype(&std::free)> workspace{nullptr, &std::free};
  leanattn_decode_args args;
};

Step* step(benchmark::State& state) {
  static Step made;
  if (made.plan != nullptr) return &made;
  pretend_an_h200();
  auto engine = EngineCore::open({.device = 0, .cache_dir = {}, .disk_cache = false});
  if (!engine) return state.SkipWithError(engine.error().message.c_str()), nullptr;
  made.engine = *std::move(engine);
  const auto plan = made.engine->plan({}, {.batch = 16, .longest_context = 8192}, nullptr);
  if (!plan) return state.SkipWithError(plan.error().message.c_str()), nullptr;
  made.plan = *plan;
  made.workspace.reset(std::aligned_alloc(256, 1 << 24));
  leanattn_decode_args_init(&made.args);
  made.args.q = made.args.k = made.args.v = reinterpret_cast<void*>(0x1000);
  made.args.o = reinterpret_cast<void*>(0x1000);
  made.args.context_lengths = reinterpret_cast<std::int32_t*>(0x1000);
  made.args.batch = 16;
  made.args.context_capacity = 8192;
  cuCtxSetCurrent(nullptr);
  return &made;
}

void launch_through_the_c_abi(benchmark::State& state) {
  Step* const now = step(state);
  if (now == nullptr) return;
  if (state.range(0) != 0) {  // as in a program whose framework has made the context current
    CUcontext context = nullptr;
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
  }
  for (auto _ : state) {
    if (leanattn_plan_launch(now->plan, &now->args, now->workspace.get(), nullptr) != LEANATTN_OK)
      return state.SkipWithError(leanattn_last_error_message());
  }
  cuCtxSetCurrent(nullptr);
}
BENCHMARK(launch_through_the_c_abi)->ArgName("context_current")->Arg(1)->Arg(0);

void launch_bare(benchmark::State& state) {
  if (step(state) == nullptr) return;
  const auto api = driver();
  unsigned char block[sizeof(LeanDecodeArgs)] = {};
  void* params[] = {block};
  for (auto _ : state) {
    CUlaunchConfig config{};
    config.gridDimX = 264, config.gridDimY = 1, config.gridDimZ = 1;
    config.blockDimX = 128, config.blockDimY = 1, config.blockDimZ = 1;
    benchmark::DoNotOptimize((*api)->cuLaunchKernelEx(&config, nullptr, params, nullptr));
  }
}
BENCHMARK(launch_bare);

}  // namespace
}  // namespace leanattn

BENCHMARK_MAIN();
