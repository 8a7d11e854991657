// bench_lookup.cpp -- what a decode step costs before its kernel runs: the look-up of a known shape, which needs no
// GPU, and, on a GPU, a launch beside a bare cuLaunchKernelEx of the same kernel.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "leanattn/leanattn.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/tensor_map.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/usual_kernels.hpp"
#include "runtime/lookup/winner_table.hpp"

namespace leanattn {
namespace {

constexpr int kSms = 132;

/// An engine whose kernels are never compiled, since a look-up does not need them.
EngineParts parts_without_gpu() {
  EngineParts parts;
  parts.device = facts_for_arch({9, 0, true}, kSms).value();
  parts.open_winners = [] { return WinnersByProblem{}; };
  parts.prepare = [](const KernelSpec& spec) -> Result<PreparedKernel> {
    PreparedKernel kernel;
    kernel.resident_ctas = std::int64_t{kSms} * spec.ctas_per_sm;
    return kernel;
  };
  parts.is_capturing = [](CUstream_st*) -> Result<bool> { return false; };
  return parts;
}

EngineCore& engine_without_gpu() {
  static EngineCore engine(parts_without_gpu());
  return engine;
}

void look_up_one_shape(benchmark::State& state) {
  EngineCore& engine = engine_without_gpu();
  const DecodeProblem problem;
  const Shape shape{.batch = 16, .longest_context = 8192};
  for (auto _ : state) benchmark::DoNotOptimize(engine.plan(problem, shape, nullptr));
}
BENCHMARK(look_up_one_shape)->Threads(1)->Threads(2);

/// The same with LEANATTN_CAPTURE set.
void look_up_one_shape_captured(benchmark::State& state) {
  static EngineCore engine = [] {
    EngineParts parts = parts_without_gpu();
    parts.call_capture = std::make_unique<CallCapture>(CallCapture::Options{.file = "/dev/null", .device = {}});
    return EngineCore(std::move(parts));
  }();
  const DecodeProblem problem;
  const Shape shape{.batch = 16, .longest_context = 8192};
  for (auto _ : state) benchmark::DoNotOptimize(engine.plan(problem, shape, nullptr));
}
BENCHMARK(look_up_one_shape_captured)->Threads(1)->Threads(2);

void look_up_many_shapes(benchmark::State& state) {
  EngineCore& engine = engine_without_gpu();
  const DecodeProblem problem;
  std::mt19937 random(1);
  std::uniform_int_distribution<int> batch(1, 64), context(1, 1 << 17);
  std::vector<Shape> shapes;
  for (int i = 0; i < state.range(0); ++i)
    shapes.push_back({.batch = batch(random), .longest_context = context(random)});
  std::size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(engine.plan(problem, shapes[next], nullptr));
    next = next + 1 == shapes.size() ? 0 : next + 1;
  }
}
BENCHMARK(look_up_many_shapes)->Arg(16)->Arg(256);

/// Shapes that nobody tuned, each asked for the first time, with so many winners of the problem, and with dependent
/// launches or without.
void choose_for_untuned_shapes(benchmark::State& state) {
  const DeviceFacts device = facts_for_arch({9, 0, true}, kSms).value();
  const DecodeProblem problem;
  const std::vector<KernelSpec> kernels = usual_kernels(device, problem);
  DecodeProblem asked = problem;
  asked.pdl = state.range(1) != 0;
  LayeredWinners winners;
  for (int i = 0; i < state.range(0); ++i) {
    Winner row;
    row.problem = to_json(problem), row.shape = to_json(Shape{.batch = 1 + i % 8, .longest_context = 512 << i / 8});
    row.config = to_json(Config{.spec = kernels[static_cast<std::size_t>(i) % kernels.size()], .grid = 64});
    row.policy = "cold", row.median_us = 10;
    winners.entries.push_back({row, "user"});
  }
  const WinnerTable table = WinnerTable::build(device, winners);
  std::mt19937 random(1);
  std::uniform_int_distribution<int> batch(9, 4096), context(16, 1 << 17);
  for (auto _ : state)
    benchmark::DoNotOptimize(table.find(asked, {.batch = batch(random), .longest_context = context(random)}));
}
BENCHMARK(choose_for_untuned_shapes)->ArgNames({"winners", "pdl"})->ArgsProduct({{0, 1, 64}, {0, 1}});

void look_up_through_the_c_abi(benchmark::State& state) {
  leanattn_engine* const engine = &engine_without_gpu();
  leanattn_problem problem;
  leanattn_problem_init(&problem);
  problem.q_heads = 32, problem.kv_heads = 8, problem.head_dim = 128;
  leanattn_shape shape;
  leanattn_shape_init(&shape);
  shape.batch = 16, shape.longest_context = 8192;
  const leanattn_plan* plan = nullptr;
  for (auto _ : state) benchmark::DoNotOptimize(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan));
}
BENCHMARK(look_up_through_the_c_abi);

void bind_arguments_of_a_launch(benchmark::State& state) {
  const PlanCore* const plan = engine_without_gpu().plan({}, {.batch = 16, .longest_context = 8192}, nullptr).value();
  leanattn_decode_args args;
  leanattn_decode_args_init(&args);
  args.q = args.k = args.v = reinterpret_cast<void*>(0x1000);
  args.o = reinterpret_cast<void*>(0x1000);
  args.context_lengths = reinterpret_cast<std::int32_t*>(0x1000);
  args.batch = 16;
  args.context_capacity = 8192;
  for (auto _ : state) benchmark::DoNotOptimize(bind_arguments(plan->limits(), args, reinterpret_cast<void*>(0x1000)));
}
BENCHMARK(bind_arguments_of_a_launch);

// ---- On a GPU ----

/// A decode step of one short request, which can be launched repeatedly.
struct Step {
  Context context;
  Stream stream;
  std::unique_ptr<EngineCore> engine;
  const PlanCore* plan = nullptr;
  DeviceBuffer memory, workspace;
  leanattn_decode_args args;
};

Result<std::unique_ptr<Step>> make_step() {
  constexpr int kContext = 64;
  auto context = Context::retain(0);
  if (!context) return tl::unexpected(context.error());
  auto stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  auto engine = EngineCore::open({.device = 0, .cache_dir = {}, .disk_cache = false});
  if (!engine) return tl::unexpected(engine.error());
  const auto plan =
      (*engine)->plan({.q_heads = 8, .kv_heads = 1, .head_dim = 64}, {.longest_context = kContext}, nullptr);
  if (!plan) return tl::unexpected(plan.error());
  auto memory = DeviceBuffer::allocate(1 << 20);
  auto workspace = DeviceBuffer::allocate((*plan)->limits().workspace.total_bytes);
  if (!memory || !workspace) return fail(ErrorCode::out_of_memory, "no device memory for the benchmark");
  auto step = std::unique_ptr<Step>(new Step{*std::move(context),
                                             *std::move(stream),
                                             *std::move(engine),
                                             *plan,
                                             *std::move(memory),
                                             *std::move(workspace),
                                             {}});
  leanattn_decode_args_init(&step->args);
  step->args.q = step->args.k = step->args.v = step->memory.data();
  step->args.o = step->memory.at(1 << 18);
  step->args.context_lengths = static_cast<std::int32_t*>(step->memory.at(1 << 19));
  step->args.batch = 1;
  step->args.context_capacity = kContext;
  if (auto ok = fill_bytes_async(step->memory.data(), 0, step->memory.bytes(), step->stream.get()); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = step->plan->init_workspace(step->workspace.data(), step->workspace.bytes(), step->stream.get()); !ok)
    return tl::unexpected(ok.error());
  return step;
}

/// Runs `enqueue` in batches. It synchronises between them, untimed, so that the launch queue never fills.
template <class Enqueue>
void time_launches(benchmark::State& state, Enqueue enqueue) {
  static const auto made = make_step();
  if (!made) return state.SkipWithError(made.error().message.c_str());
  Step& step = **made;
  constexpr int kBatch = 256;
  int queued = 0;
  for (auto _ : state) {
    if (!enqueue(step)) return state.SkipWithError("a launch failed");
    if (++queued < kBatch) continue;
    queued = 0;
    state.PauseTiming();
    if (!step.stream.synchronize()) return state.SkipWithError("the stream failed");
    state.ResumeTiming();
  }
  if (!step.stream.synchronize()) state.SkipWithError("the stream failed");
}

void launch_bare(benchmark::State& state) {
  time_launches(state, [](Step& step) {
    static const auto bound = bind_arguments(step.plan->limits(), step.args, step.workspace.data());
    return bound && step.plan->kernel().loaded->launch(*bound, step.plan->choice().config.grid, step.stream.get(),
                                                       step.plan->choice().config.l2_promotion);
  });
}
BENCHMARK(launch_bare);

void launch_through_the_c_abi(benchmark::State& state) {
  time_launches(state, [](Step& step) {
    return leanattn_plan_launch(step.plan, &step.args, step.workspace.data(), step.stream.get()) == LEANATTN_OK;
  });
}
BENCHMARK(launch_through_the_c_abi);

/// What a launch with load path tensor costs besides where its two tensor maps are not cached.
void encode_two_tensor_maps(benchmark::State& state) {
  if (const auto api = driver(); !api) return state.SkipWithError(api.error().message.c_str());
  KernelSpec spec = base_spec({9, 0, true}, {});
  spec.load = LoadPath::tensor;
  LeanDecodeArgs args{};
  args.k = args.v = reinterpret_cast<void*>(0x10000);
  args.batch = 16, args.kv_heads = 8, args.context_capacity = 8192;
  args.k_stride_token = args.v_stride_token = 128;
  args.k_stride_head = args.v_stride_head = 128 * 8192;
  args.k_stride_batch = args.v_stride_batch = 8 * 128 * 8192;
  for (auto _ : state) {
    auto maps = encode_tensor_maps(spec, args, 128);
    if (!maps) return state.SkipWithError(maps.error().message.c_str());
    benchmark::DoNotOptimize(*maps);
  }
}
BENCHMARK(encode_two_tensor_maps);

}  // namespace
}  // namespace leanattn

BENCHMARK_MAIN();
