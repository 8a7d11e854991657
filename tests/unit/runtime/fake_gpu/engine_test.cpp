// engine_test.cpp -- real engines on a fictional GPU, through the public C++ interface: plans, launches, stream
// captures and checks, with the real NVRTC and cubin.db.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <thread>

#include "fake_gpu_fixture.hpp"
#include "runtime/engine/call_capture_file.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"

namespace {
std::atomic<long> allocations{0};
}
// Counts allocations, which the hot paths must not make. Not inlined, because the compiler warns where it sees that
// free() follows new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
// std::stable_sort asks for memory without exceptions, and gives it back as all other.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace leanattn {
namespace {

TEST_F(FakeGpuEngine, LaunchesMayOverlapOnlyWhereTheProblemSaysSo) {
  Engine engine = open();
  Problem dependent = problem_;
  dependent.pdl = true;
  for (const bool pdl : {false, true}) {
    const auto plan = engine.plan(pdl ? dependent : problem_, shape_);
    ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
    EXPECT_EQ(plan->info().pdl, pdl);
    Workspace workspace(plan->workspace_bytes());
    ASSERT_TRUE(plan->init_workspace(workspace.data, workspace.bytes, nullptr));
    const auto launched = plan->launch(args(), workspace.data, nullptr);
    ASSERT_TRUE(launched) << launched.error().message;
    EXPECT_EQ(fake_gpu().launches.back().programmatic, pdl);
  }
  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 8;
  Engine ampere = open();
  const auto plan = ampere.plan(dependent, shape_);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  EXPECT_EQ(plan->info().pdl, 0);
  Workspace workspace(plan->workspace_bytes());
  ASSERT_TRUE(plan->init_workspace(workspace.data, workspace.bytes, nullptr));
  ASSERT_TRUE(plan->launch(args(), workspace.data, nullptr));
  EXPECT_FALSE(fake_gpu().launches.back().programmatic);
}

TEST_F(FakeGpuEngine, LaunchesThePlannedGridWithTheCallersArguments) {
  use_fresh_directory();
  Engine engine = open();
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  const auto info = plan->info();
  EXPECT_EQ(info.provenance, LEANATTN_FALLBACK);
  EXPECT_GT(info.registers, 0);
  EXPECT_GT(info.compile_ms, 0);
  EXPECT_EQ(info.ctas_per_sm, 2);
  EXPECT_EQ(info.max_batch, 8);

  Workspace workspace(plan->workspace_bytes());
  ASSERT_TRUE(plan->init_workspace(workspace.data, workspace.bytes, nullptr));
  for (std::int64_t i = 0; i < workspace.bytes; ++i) ASSERT_EQ(static_cast<char*>(workspace.data)[i], 0) << i;
  const auto launched = plan->launch(args(), workspace.data, nullptr);
  ASSERT_TRUE(launched) << launched.error().message;
  ASSERT_EQ(fake_gpu().launches.size(), 1u);
  EXPECT_EQ(fake_gpu().launches.back().grid, static_cast<unsigned>(info.grid));
  EXPECT_EQ(fake_gpu().launches.back().threads, static_cast<unsigned>(info.threads));
  EXPECT_EQ(fake_gpu().launches.back().shared_bytes, static_cast<unsigned>(info.shared_bytes));
  EXPECT_EQ(last_launch_args().k_stride_head, 1024 * 128);
  EXPECT_EQ(last_launch_args().tickets, workspace.data);
}

TEST_F(FakeGpuEngine, AnEmptyBatchEnqueuesNothing) {
  Engine engine = open();
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  Workspace workspace(plan->workspace_bytes());
  DecodeArgs none = args();
  none.batch = 0;
  none.q = none.k = none.v = none.o = nullptr;
  none.context_lengths = nullptr;
  ASSERT_TRUE(plan->launch(none, workspace.data, nullptr));
  leanattn_merge_args merge;
  leanattn_merge_args_init(&merge);
  merge.parts = 2, merge.dim = 128;
  ASSERT_TRUE(engine.merge_partials(merge, nullptr));
  EXPECT_TRUE(fake_gpu().launches.empty());
  none.context_capacity = -1;
  EXPECT_EQ(plan->launch(none, workspace.data, nullptr).error().code, ErrorCode::invalid_argument);
}

TEST_F(FakeGpuEngine, LeavesTheCallersContextCurrent) {
  Engine engine = open();
  CUcontext current = reinterpret_cast<CUcontext>(0x1);
  cuCtxGetCurrent(&current);
  EXPECT_EQ(current, nullptr);
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan);
  Workspace workspace(plan->workspace_bytes());
  ASSERT_TRUE(plan->launch(args(), workspace.data, nullptr)) << "from a thread without a context";
  cuCtxGetCurrent(&current);
  EXPECT_EQ(current, nullptr);
}

TEST_F(FakeGpuEngine, ASecondEngineTakesTheKernelFromCubinDb) {
  use_fresh_directory();
  {
    Engine first = open();
    EXPECT_GT(first.plan(problem_, shape_)->info().compile_ms, 0);
  }
  Engine second = open();
  EXPECT_EQ(second.plan(problem_, shape_)->info().compile_ms, 0);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "cubin.db"));
}

TEST_F(FakeGpuEngine, TakesTheKernelFromASitesDirectory) {
  use_fresh_directory();
  { EXPECT_GT(open().plan(problem_, shape_)->info().compile_ms, 0); }
  const std::unique_ptr<TemporaryDirectory> site = std::move(own_directory_);
  use_fresh_directory();
  ::setenv("LEANATTN_SITE_DB", site->path().c_str(), 1);
  Engine engine = open();
  ::unsetenv("LEANATTN_SITE_DB");
  EXPECT_EQ(engine.plan(problem_, shape_)->info().compile_ms, 0);
  EXPECT_EQ(engine.warnings(), "");
}

TEST_F(FakeGpuEngine, APathWithAZeroByteIsRefused) {
  EngineOptions options;
  options.cache_dir = directory_.string() + '\0' + "else";
  EXPECT_EQ(Engine::create(options).error().code, ErrorCode::invalid_argument);
  TuningOptions tuning;
  tuning.program = std::string("/bin/true\0", 10);
  Engine engine = open();
  EXPECT_EQ(engine.tune(problem_, {shape_}, tuning).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(engine.autotune(AutotuneMode::wait, tuning).error().code, ErrorCode::invalid_argument);
}

TEST_F(FakeGpuEngine, WithoutADiskCacheNothingIsWritten) {
  use_fresh_directory();
  EngineOptions options;
  options.cache_dir = directory_.string();
  options.disk_cache = false;
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine) << engine.error().message;
  ASSERT_TRUE(engine->plan(problem_, shape_));
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(FakeGpuEngine, AHostileCacheDirectoryIsAWarningNotAnError) {
  use_fresh_directory();
  std::filesystem::permissions(directory_, std::filesystem::perms::all);
  Engine engine = open();
  EXPECT_NE(engine.warnings().find("no cache on disk"), std::string::npos) << engine.warnings();
  EXPECT_TRUE(engine.plan(problem_, shape_));
}

TEST_F(FakeGpuEngine, AStreamCaptureTakesLaunchesButNoCompile) {
  use_fresh_directory();
  Engine engine = open();
  std::optional<Context> context(std::move(*Context::retain(0)));
  {
    auto stream = Stream::create();
    ASSERT_TRUE(stream);
    const auto unprepared = Graph::capture(*stream, [&](CUstream_st* capturing) -> Result<void> {
      const auto plan = engine.plan(problem_, shape_, capturing);
      return plan ? Result<void>{} : tl::unexpected(plan.error());
    });
    ASSERT_FALSE(unprepared);
    EXPECT_EQ(unprepared.error().code, ErrorCode::not_prepared);

    const auto plan = engine.plan(problem_, shape_, stream->get());
    ASSERT_TRUE(plan) << plan.error().message;
    Workspace workspace(plan->workspace_bytes());
    const auto graph = Graph::capture(*stream, [&](CUstream_st* capturing) -> Result<void> {
      const auto again = engine.plan(problem_, shape_, capturing);
      if (!again) return tl::unexpected(again.error());
      return again->launch(args(), workspace.data, capturing);
    });
    ASSERT_TRUE(graph) << graph.error().message;
    EXPECT_TRUE(fake_gpu().launches.empty());
    ASSERT_TRUE(graph->launch(stream->get()));
    EXPECT_EQ(fake_gpu().launches.size(), 1u);
  }
  context.reset();
}

TEST_F(FakeGpuEngine, LookUpAndLaunchDoNotAllocate) {
  Engine engine = open();
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan);
  Workspace workspace(plan->workspace_bytes());
  long before = allocations;
  for (int i = 0; i < 1000; ++i) {
    if (!engine.plan(problem_, shape_)) FAIL();
  }
  EXPECT_EQ(allocations, before) << "look-up";
  const auto c_args = detail::to_c(args());
  fake_gpu().quiet = true;  // because the fake driver allocates for what it records
  before = allocations;
  for (int i = 0; i < 1000; ++i) {
    if (leanattn_plan_launch(plan->get(), &c_args, workspace.data, nullptr) != LEANATTN_OK) FAIL();
  }
  EXPECT_EQ(allocations, before) << "launch";
}

TEST_F(FakeGpuEngine, ARefusedArgumentEnqueuesNothing) {
  Engine engine = open();
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan);
  Workspace workspace(plan->workspace_bytes());
  DecodeArgs bad = args();
  bad.batch = 9;
  const auto refused = plan->launch(bad, workspace.data, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_TRUE(fake_gpu().launches.empty());
}

TEST_F(FakeGpuEngine, ALostContextIsReportedByTheLaunch) {
  Engine engine = open();
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan);
  Workspace workspace(plan->workspace_bytes());
  fake_gpu().fail_once["cuLaunchKernelEx"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  const auto lost = plan->launch(args(), workspace.data, nullptr);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::context_lost);
}

TEST_F(FakeGpuEngine, DebugModeRefusesPointersThatCudaDoesNotKnow) {
  Engine engine = open_debugging();
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan);
  Workspace workspace(plan->workspace_bytes());
  const auto refused = plan->launch(args(), workspace.data, nullptr);  // the fake GPU does not know any pointer
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("q is 0x1000"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(fake_gpu().launches.empty());
}

TEST_F(FakeGpuEngine, DebugModeNamesTheFeaturesPointerThatCudaDoesNotKnow) {
  Engine engine = open_debugging();
  Problem problem;
  problem.sink_logits = true;
  const auto plan = engine.plan(problem, shape_);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  Workspace workspace(plan->workspace_bytes());
  DecodeArgs some = args();
  some.sink_logits = reinterpret_cast<float*>(0x6004);
  fake_gpu().knows_pointers = true;
  fake_gpu().unknown_pointer = 0x6004;
  const auto refused = plan->launch(some, workspace.data, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("sink_logits is 0x6004"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(fake_gpu().launches.empty());
}

TEST_F(FakeGpuEngine, DebugModeChecksArraysBeforeALaunchButNotUnderStreamCapture) {
  Engine engine = open_debugging();
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  Workspace workspace(plan->workspace_bytes());
  fake_gpu().knows_pointers = true;
  ASSERT_TRUE(plan->launch(args(), workspace.data, nullptr));
  ASSERT_EQ(fake_gpu().launches.size(), 3u);
  EXPECT_EQ(fake_gpu().launches[0].kernel, "lean_check_arrays");
  EXPECT_EQ(fake_gpu().launches[0].grid, 2u) << "one CTA for each request";
  EXPECT_EQ(fake_gpu().launches[1].kernel, "lean_check_workspace");
  EXPECT_EQ(fake_gpu().launches[2].kernel.find("lean_check"), std::string::npos);

  std::optional<Context> context(std::move(*Context::retain(0)));
  {
    auto stream = Stream::create();
    ASSERT_TRUE(stream);
    const auto graph = Graph::capture(
        *stream, [&](CUstream_st* capturing) { return plan->launch(args(), workspace.data, capturing); });
    ASSERT_TRUE(graph) << graph.error().message;
    ASSERT_TRUE(graph->launch(stream->get()));
    EXPECT_EQ(fake_gpu().launches.size(), 4u);
  }
  context.reset();
}

TEST_F(FakeGpuEngine, DebugModeTellsApartThePerThreadStreamsOfTwoThreads) {
  Engine engine = open_debugging();
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  Workspace workspace(plan->workspace_bytes());
  fake_gpu().knows_pointers = true;
  for (int i = 0; i < 2; ++i) {
    fake_gpu().fail_once["cuEventQuery"] = CUDA_ERROR_NOT_READY;
    ASSERT_TRUE(plan->launch(args(), workspace.data, CU_STREAM_PER_THREAD)) << "one stream, whose launches follow";
  }
  std::thread([&] {
    expect_refused(plan->launch(args(), workspace.data, CU_STREAM_PER_THREAD), ErrorCode::invalid_argument,
                   "is still in use by a launch on another stream");
    EXPECT_TRUE(plan->launch(args(), workspace.data, CU_STREAM_PER_THREAD)) << "it has ended";
  }).join();
}

/// Stores a winner with this grid for problem_ at shape_ on the fake GPU, as if it had been measured in `environment`.
void store_winner(const std::filesystem::path& directory, std::int64_t grid, const Environment& environment,
                  const std::string& kernel = "") {
  const DeviceFacts facts = device_facts(0).value();
  const DecodeProblem problem;
  const Shape shape{.batch = 2, .max_batch = 0, .longest_context = 1024, .total_context = 0};
  Config config = default_config({facts, problem, shape});
  config.grid = grid;
  const auto db = TuningDb::open(directory, OpenMode::read_write, nullptr).value();
  const auto session = db->begin_session(device_model(facts), environment, "test").value();
  Trial trial;
  trial.problem = to_json(problem), trial.shape = to_json(shape), trial.policy = "cold", trial.config = to_json(config);
  trial.median_us = 10;
  trial.kernel_revision = kernel;
  ASSERT_TRUE(db->add_trial(session, trial));
  ASSERT_TRUE(db->rebuild_winners());
}

TEST_F(FakeGpuEngine, TakesItsOwnGpuModelsWinnerFromAFileOfSeveral) {
  use_fresh_directory();
  const Environment now = current_environment(device_facts(0).value());
  struct Gpu {
    const char* name;
    int sm_count;
    std::int64_t grid;
  };
  constexpr Gpu kGpus[] = {{"NVIDIA Fictional 1", 132, 64},
                           {"NVIDIA Fictional 2", 132, 48},
                           {"NVIDIA Fictional 1", 66, 32},
                           {"NVIDIA Fictional 1 MIG 1g.18gb", 16, 16}};
  const auto become = [](const Gpu& gpu) { fake_gpu().name = gpu.name, fake_gpu().sm_count = gpu.sm_count; };
  for (const Gpu& gpu : kGpus) {
    become(gpu);
    store_winner(directory_, gpu.grid, now);
  }
  for (const Gpu& gpu : kGpus) {
    become(gpu);
    const Engine engine = open();
    const auto choice = engine.lookup(problem_, shape_);
    ASSERT_TRUE(choice) << choice.error().message;
    EXPECT_EQ(choice->provenance, LEANATTN_EXACT) << gpu.name << ", " << gpu.sm_count;
    EXPECT_EQ(choice->grid, gpu.grid) << gpu.name << ", " << gpu.sm_count;
    EXPECT_FALSE(choice->stale);
  }
  become({"NVIDIA Fictional 1", 100, 0});
  EXPECT_EQ(open().lookup(problem_, shape_)->provenance, LEANATTN_FALLBACK) << "no winner is for 100 SMs";
}

TEST_F(FakeGpuEngine, UsesAWinnerOfAnotherDriverAndSaysThatItIsStale) {
  use_fresh_directory();
  const Environment now = current_environment(device_facts(0).value());
  for (const auto change : {+[](Environment&) {}, +[](Environment& e) { e.driver_version = 12080; },
                            +[](Environment& e) { e.nvrtc_version = "12.8"; },
                            +[](Environment& e) { e.library_revision = "an older one"; }}) {
    std::filesystem::remove(directory_ / "tuning.db");
    Environment then = now;
    change(then);
    store_winner(directory_, 64, then);
    Engine engine = open();
    const auto choice = engine.lookup(problem_, shape_);
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->provenance, LEANATTN_EXACT);
    EXPECT_EQ(choice->grid, 64);
    EXPECT_EQ(choice->stale != 0, !(then == now));
    const auto plan = engine.plan(problem_, shape_);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->info().stale, choice->stale);
    EXPECT_EQ(plan->info().grid, 64);
  }
}

TEST_F(FakeGpuEngine, CallsAWinnerOfAnotherLibraryStaleOnlyIfItsKernelHasChanged) {
  use_fresh_directory();
  Environment then = current_environment(device_facts(0).value());
  then.library_revision = "an older one";
  const DeviceFacts facts = device_facts(0).value();
  const Config config = default_config({facts, {}, {.batch = 2, .longest_context = 1024}});
  for (const bool changed : {false, true}) {
    std::filesystem::remove(directory_ / "tuning.db");
    store_winner(directory_, 64, then, changed ? "another" : kernel_revision(config.spec));
    const auto choice = open().lookup(problem_, shape_);
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->grid, 64);
    EXPECT_EQ(choice->stale != 0, changed);
  }
}

TEST_F(FakeGpuEngine, CountsItsCallsInAFileWhereTheEnvironmentNamesOne) {
  use_fresh_directory();
  const std::string file = (directory_ / "capture.jsonl").string();
  setenv("LEANATTN_CAPTURE", file.c_str(), 1);
  {
    Engine engine = open();
    unsetenv("LEANATTN_CAPTURE");
    EXPECT_EQ(engine.warnings(), "");
    const auto plan = engine.plan(problem_, shape_);
    ASSERT_TRUE(plan) << plan.error().message;
    const long before = allocations;
    for (int i = 0; i < 100; ++i) {
      if (!engine.plan(problem_, shape_)) FAIL();
    }
    EXPECT_EQ(allocations, before) << "counting a known shape allocates nothing";
  }
  const auto capture = read_call_capture(file);
  ASSERT_TRUE(capture) << capture.error().message;
  ASSERT_EQ(capture->shapes.size(), 1u);
  EXPECT_EQ(capture->shapes[0].calls, 101);
  EXPECT_EQ(capture->shapes[0].shape.longest_context, 1024);
  EXPECT_EQ(capture->answers, (std::map<std::string, std::int64_t>{{"fallback", 101}}));
  EXPECT_EQ(capture->devices, (std::map<std::string, std::int64_t>{{"NVIDIA Fictional 1", 101}}));

  setenv("LEANATTN_CAPTURE", (directory_ / "not" / "there").c_str(), 1);
  Engine engine = open();
  unsetenv("LEANATTN_CAPTURE");
  EXPECT_NE(engine.warnings().find("LEANATTN_CAPTURE: cannot write"), std::string::npos) << engine.warnings();
  EXPECT_TRUE(engine.plan(problem_, shape_)) << "a plan does not fail when its call cannot be counted";
}

TEST_F(FakeGpuEngine, DevicesThatAreNotThereAndGpusTooOldAreRefused) {
  EngineOptions options;
  options.device = 3;
  const auto absent = Engine::create(options);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::no_device);
  EXPECT_NE(absent.error().message.find('3'), std::string::npos);

  fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 7;
  const auto old = Engine::create();
  ASSERT_FALSE(old);
  EXPECT_EQ(old.error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace leanattn
