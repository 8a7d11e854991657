// emulator_test.cpp -- the emulator executes kernels rightly, and notices what is wrong with kernels in which a test
// has planted a fault. CONTRIBUTING.md, "Kernels on the CPU", says how to run all of `verify` on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/temporary_directory.hpp"
#include "tests/thoroughness.hpp"
#include "tuner/evaluate/bench.hpp"
#include "tuner/evaluate/recurrent_bench.hpp"
#include "tuner/oracle/recurrent_case.hpp"
#include "tuner/search/recurrent_tune.hpp"
#include "tuner/verify/compile_queue.hpp"
#include "tuner/verify/planned_run.hpp"
#include "tuner/verify/run_plan.hpp"
#include "tuner/verify/runner.hpp"

namespace leanattn {
namespace {

/// Before the library looks for NVRTC.
[[gnu::constructor]] void find_nvrtc() {
  setenv("LEANATTN_NVRTC_DIR", EMULATED_NVRTC_DIR, 1);
  unsetenv("LEANATTN_NVRTC_LIB");
}

class EmulatorTest : public testing::Test {
 protected:
  void SetUp() override {
    device = device_facts(0).value();
    context.emplace(Context::retain(0).value());
  }

  /// What the emulator says while `run` runs.
  static std::string report_of(const std::function<void()>& run) {
    testing::internal::CaptureStderr();
    run();
    return testing::internal::GetCapturedStderr();
  }

  DeviceFacts device;
  std::optional<Context> context;
};

/// Small kernels in CUDA.
class EmulatedSource : public EmulatorTest {
 protected:
  /// Launches kernel `run(unsigned* out)` of the source with one CTA, and returns the first `count` words of what it
  /// wrote.
  std::vector<unsigned> run(const std::string& source, unsigned threads, std::size_t count) {
    const auto compiled = compile_source(source, device.arch, nullptr);
    EXPECT_TRUE(compiled) << compiled.error().message << compiled.error().log;
    const auto loaded = LoadedSource::load(*compiled);
    EXPECT_TRUE(loaded);
    const Stream stream = Stream::create().value();
    const auto bytes = static_cast<std::int64_t>(count * sizeof(unsigned));
    const DeviceBuffer out = DeviceBuffer::allocate(bytes).value();
    std::vector<unsigned> words(count);
    ended = launch_with(loaded->function("run").value(), {.grid_x = 1, .threads = threads}, stream.get(), out.data());
    if (ended) ended = copy_to_host(words.data(), out.data(), bytes, stream);
    return words;
  }
  Result<void> ended;
};

TEST_F(EmulatedSource, LanesThatPartMeetAgain) {
  const auto words = run(R"(
extern "C" __global__ void run(unsigned* out) {
  const unsigned lane = threadIdx.x;
  unsigned steps = 0;
  for (unsigned i = 0; i < lane; i++) steps += i % 3 == 0 ? 2 : 1;
  if (lane % 2 == 0) steps += __shfl_xor_sync(0x55555555u, steps, 2);
  __syncwarp();
  out[lane] = steps + 1000 * __popc(__ballot_sync(0xffffffffu, steps > 20));
})",
                         32, 32);
  ASSERT_TRUE(ended) << ended.error().message;
  std::vector<unsigned> expected(32);
  const auto steps_of = [](unsigned lane) { return lane + (lane + 2) / 3; };
  for (unsigned lane = 0; lane < 32; ++lane) expected[lane] = steps_of(lane) + (lane % 2 == 0 ? steps_of(lane ^ 2) : 0);
  const auto above = std::count_if(expected.begin(), expected.end(), [](unsigned steps) { return steps > 20; });
  for (unsigned& steps : expected) steps += 1000 * static_cast<unsigned>(above);
  EXPECT_EQ(words, expected);
}

TEST_F(EmulatedSource, WarpsMeetAtBarriersAndAddAtomically) {
  const auto words = run(R"(
extern "C" __global__ void run(unsigned* out) {
  __shared__ unsigned sum, order[256];
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  order[atomicAdd(&sum, 1)] = threadIdx.x;
  __syncthreads();
  out[order[threadIdx.x]] = sum + threadIdx.x * 0;
})",
                         256, 256);
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(words, std::vector<unsigned>(256, 256));
}

TEST_F(EmulatedSource, SaysWhereAReadLeavesItsBuffer) {
  const std::string report = report_of([&] {
    run("extern \"C\" __global__ void run(unsigned* out) { out[threadIdx.x] = out[threadIdx.x + 1]; }", 32, 32);
  });
  EXPECT_FALSE(ended);
  EXPECT_NE(report.find("run, CTA 0, warp 0, lanes 0xffffffff"), std::string::npos) << report;
  EXPECT_NE(report.find("cannot read at"), std::string::npos) << report;
}

TEST_F(EmulatedSource, SaysWhoWaitsAtABarrierThatNeverCompletes) {
  const std::string report = report_of([&] {
    run(R"(extern "C" __global__ void run(unsigned* out) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");
  out[threadIdx.x] = 1;
})",
        64, 64);
  });
  EXPECT_FALSE(ended);
  EXPECT_NE(report.find("deadlock"), std::string::npos) << report;
  EXPECT_NE(report.find("bar.sync"), std::string::npos) << report;
}

/// Kernels of the generator, in whose sources faults are planted.
class PlantedFaults : public EmulatorTest {
 protected:
  void SetUp() override {
    EmulatorTest::SetUp();
    // The kernels of checks, which take long to compile, are the same for all tests.
    static const TemporaryDirectory directory;
    static const std::unique_ptr<CubinCache> cubins = open_cubin_db(directory.path(), nullptr);
    runner.emplace(VerifyRunner::create({}, device, cubins.get(), {}, nullptr).value());
  }
  void TearDown() override {
    runner.reset();
    EmulatorTest::TearDown();
  }

  KernelSpec spec_of(LoadPath load) const {
    KernelSpec spec = base_spec(device.arch, DecodeProblem{.q_heads = 4, .kv_heads = 1, .head_dim = 128});
    spec.load = load;
    spec.warps = 4, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 64, spec.ctas_per_sm = 1;
    return spec;
  }

  /// What to replace in a source, and by what.
  using Edits = std::vector<std::pair<std::string, std::string>>;

  /// What the check of a kernel says, with the emulator's report in front. "" where the results are right.
  std::string check(LoadPath load, const Edits& edits) {
    return check(spec_of(load), {.kv_heads = 2, .context_lengths = {1500, 3, 0}, .padded = true}, edits);
  }
  std::string check(const KernelSpec& spec, const CaseShape& shape, const Edits& edits) {
    auto emitted = emit(spec);
    if (!emitted) return ADD_FAILURE() << emitted.error().message, "";
    for (const auto& [from, to] : edits) {
      const auto at = emitted->source.find(from);
      if (at == std::string::npos) return ADD_FAILURE() << "no longer in the source: " << from, "";
      emitted->source.replace(at, from.size(), to);
    }
    const auto kernel = LoadedKernel::prepare(*emitted, nullptr);
    if (!kernel) return ADD_FAILURE() << kernel.error().message << kernel.error().log, "";
    auto decode_case = runner->make_case(kernel->spec(), shape);
    if (!decode_case) return ADD_FAILURE() << decode_case.error().message, "";
    std::string outcome;
    const std::string report = report_of([&] {
      const auto compared = decode_case->check(*kernel, {5, 1}, runner->stream());
      if (!compared) {
        outcome = compared.error().message;
      } else if (!compared->passed()) {
        outcome = compared->first_failure;
      }
    });
    return report + outcome;
  }

  std::optional<VerifyRunner> runner;
};

TEST_F(PlantedFaults, WithoutOneResultsAreRight) {
  for (const LoadPath load : {LoadPath::tensor, LoadPath::cp_async}) EXPECT_EQ(check(load, {}), "");
}

TEST_F(PlantedFaults, AStageThatIsReadBeforeItsCopiesHaveLanded) {
  EXPECT_NE(check(LoadPath::tensor, {{"wait_ring(args, full_barriers(ring, order.at), order.at.parity);", ""}}), "");
  EXPECT_NE(
      check(LoadPath::cp_async, {{"\"cp.async.wait_group %0;\" ::\"n\"(kStages - 1)", "\"\" ::\"n\"(kStages - 1)"}}),
      "");
}

TEST_F(PlantedFaults, AStageThatIsFreedBeforeItIsRead) {
  const std::string wait = "wait_ring(args, full_barriers(ring, order.at), order.at.parity);",
                    free = "if (threadIdx.x % 32 == 0) arrive(empty_barriers(ring, order.at));";
  EXPECT_NE(check(LoadPath::tensor, {{free, ""}, {wait, wait + free}}), "");
}

TEST_F(PlantedFaults, ARingOfAllWarpsWithoutItsBarrierOrItsWait) {
  KernelSpec spec = base_spec(
      device.arch,
      {.q_heads = 4, .kv_heads = 1, .head_dim = 64, .features = {.page_size = 16, .q_len = 40, .ragged_q = true}});
  spec.load = LoadPath::cp_async, spec.warps = 4, spec.warp_tokens = 32, spec.stages = 2, spec.tile = 64;
  ASSERT_EQ(&family_of(spec), &kMmaPrefill);
  const auto check_with = [&](const Edits& edits) {
    return check(spec, {.context_lengths = {300, 90, 3}, .padded = true, .query_tokens = {40, 35, 1}}, edits);
  };
  EXPECT_EQ(check_with({}), "");
  const std::string wait = "\"cp.async.wait_group %0;\"",
                    request = "request(args, s, read + (kStages - 1) * kStepTokens";
  EXPECT_NE(check_with({{wait, "\"// %0\""}}), "") << "rows are read before they come";
  EXPECT_NE(check_with({{"__syncthreads();\n    " + request, request}}), "") << "those of other warps, too";
  EXPECT_NE(check_with({{"end, stage_before(stage))", "end, stage)"}}), "") << "a stage is filled while it is read";
}

/// New tokens on both sides of a step's end, of which query tokens behind them see only some.
TEST_F(PlantedFaults, ATreeWhoseFirstTokensCountAsSeenByLaterRows) {
  KernelSpec spec = base_spec(
      device.arch, {.q_heads = 8, .kv_heads = 1, .head_dim = 64, .features = {.q_len = 16, .mask = QueryMask::tree}});
  spec.load = LoadPath::tensor, spec.warps = 8, spec.warp_tokens = 32, spec.stages = 2, spec.tile = 128;
  ASSERT_EQ(&family_of(spec), &kWgmmaPrefill);
  const CaseShape shape{.context_lengths = {138, 393, 40}, .padded = true};
  EXPECT_EQ(check(spec, shape, {}), "");
  EXPECT_NE(check(spec, shape, {{"kQueryMask == kTree ? 0 : row / kGroup", "row / kGroup"}}), "");
}

TEST_F(PlantedFaults, AnAccumulatorThatIsReadBeforeItIsThere) {
  const std::string report = check(LoadPath::tensor, {{"\"wgmma.wait_group.sync.aligned %0;\"", "\"// %0\""}});
  // The first instruction that meets it may read it, write it, or both.
  EXPECT_NE(report.find(" an accumulator of a wgmma that has not been waited for"), std::string::npos) << report;
}

TEST_F(PlantedFaults, ABarrierWhoseCallersDisagree) {
  const std::string threads = "\"n\"(kThreads + 32) : \"memory\");  // the ring is initialised";
  const std::string report = check(LoadPath::tensor, {{threads, "\"n\"(kThreads + 64) : \"memory\");"}});
  EXPECT_NE(report.find("a barrier of"), std::string::npos) << report;
}

TEST_F(PlantedFaults, AReadBehindAnArray) {
  const std::string report =
      check(LoadPath::cp_async, {{"args.context_lengths[s.request + 1]", "args.context_lengths[s.request + 4000]"}});
  EXPECT_NE(report.find("cannot read at"), std::string::npos) << report;
}

TEST_F(EmulatedSource, OneLaneOfAWarpIsElected) {
  const auto words = run(R"(
extern "C" __global__ void run(unsigned* out) {
  unsigned lane, elected;
  asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffff; selp.u32 %1, 1, 0, p; }" : "=r"(lane), "=r"(elected));
  out[threadIdx.x] = elected == (lane == threadIdx.x);
  if (elected) out[32] = lane;
})",
                         32, 33);
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(std::vector<unsigned>(words.begin(), words.begin() + 32), std::vector<unsigned>(32, 1));
  EXPECT_LT(words[32], 32u);
}

class EmulatedCaches : public PlantedFaults {};

TEST_F(EmulatedCaches, AScaleOfABlockThatIsNaNShowsInTheRowsThatSeeItAndNowhereElse) {
  for (const LoadPath load : {LoadPath::tensor, LoadPath::cp_async}) {
    KernelSpec spec = spec_of(load);
    spec.features = {.page_size = 16, .q_len = 2, .kv_format = KvFormat::nvfp4};
    const auto kernel = LoadedKernel::prepare(emit(spec).value(), nullptr);
    ASSERT_TRUE(kernel) << kernel.error().message;
    auto made = runner->make_case(spec, {.kv_heads = 2, .context_lengths = {60, 20}});
    ASSERT_TRUE(made) << made.error().message;
    const auto results = [&] {
      EXPECT_TRUE(made->check(*kernel, {5, 1}, runner->stream()));  // the oracle's results are those of the first time
      const auto* const bits = static_cast<const std::uint16_t*>(made->args().o);
      return std::vector<std::uint16_t>(bits, bits + 2 * made->args().o_stride_batch);
    };
    const std::vector<std::uint16_t> before = results();
    // Of the last token, which the first query token does not see.
    const LeanDecodeArgs& args = made->args();
    const auto scales_of = [&](const void* scales, int head) {
      return static_cast<unsigned char*>(const_cast<void*>(scales)) +
             args.page_table[59 / 16] * args.kv_scale_stride_batch + head * args.kv_scale_stride_head +
             59 % 16 * args.kv_scale_stride_token;
    };
    scales_of(args.v_block_scales, 1)[5] = 0x7f;
    scales_of(args.k_block_scales, 0)[2] = 0xff;
    const std::vector<std::uint16_t> after = results();
    for (long long at = 0; at < static_cast<long long>(after.size()); ++at) {
      const long long dim = at % 128, head = at / args.o_stride_head % 8;
      const bool sees = at / args.o_stride_batch == 0 && at / args.o_stride_token % 2 == 1,
                 is_nan = sees && (head < 4 || dim / 16 == 5);
      const auto index = static_cast<std::size_t>(at);
      EXPECT_EQ((after[index] & 0x7fff) > 0x7f80, is_nan) << to_string(load) << " at " << at;
      if (!is_nan) EXPECT_EQ(after[index], before[index]) << to_string(load) << " at " << at;
    }
  }
}

/// Steps of prefill that are smaller than those of `verify`, whose oracle takes minutes on a CPU: chunks of less than a
/// row block, of one and of several, beside decode and requests without query tokens or context.
std::vector<PlannedCase> small_steps(const KernelSpec& spec) {
  std::vector<PlannedCase> steps(2);
  steps[0].shape = {
      .kv_heads = 2, .context_lengths = {300, 90, 40, 200, 0, 0, 150}, .query_tokens = {1, 70, 0, 33, 1, 5, 17}};
  steps[0].grids = {7, 60};
  steps[1].shape = {
      .context_lengths = {600, 700, 65}, .padded = true, .data = DataKind::peaked, .query_tokens = {130, 1, 2}};
  if (spec.features.page_size > 0) steps[1].shape.hole_every = 5;
  steps[1].grids = {5};
  return steps;
}

TEST(EmulatedKernels, AFewOfVerifysAreRight) {
  const DeviceFacts device = device_facts(0).value();
  const Context context = Context::retain(0).value();
  const TemporaryDirectory directory;
  const std::unique_ptr<CubinCache> cubins = open_cubin_db(directory.path(), nullptr);
  VerifyRunner runner = VerifyRunner::create({}, device, cubins.get(), {}, nullptr).value();
  // EMULATOR_FILTER: as that of `verify`, of whose kernels it then tries all that match.
  const char* filter = std::getenv("EMULATOR_FILTER");
  const RunPlan plan = plan_run(device.arch, {.quick = filter == nullptr, .filter = filter != nullptr ? filter : ""});
  ASSERT_FALSE(plan.kernels.empty()) << "no kernel has \"" << filter << "\" in its name";
  for (const RunPart& part : plan.parts) {
    if (part.rank_lengths) continue;  // ranks of a group are checked in another way
    const auto kernels = part.of(plan.kernels);
    PlannedRun run = part.run;
    run.every_group_runs = false;
    run.cross_check_every = kernels.size() + 1;
    if (run.name == "prefill") run.cases = small_steps;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      if (!in_turn(i, kernels.size())) continue;
      SCOPED_TRACE(kernel_name(kernels[i].specs.front()));
      const std::vector<VerifyKernel> chosen{kernels[i]};
      CompileQueue queue(chosen, cubins.get());
      const auto ok = verify_planned(runner, chosen, queue, run);
      ASSERT_TRUE(ok) << ok.error().message;
      for (const VerifyGroup& group : runner.take_groups()) {
        EXPECT_GT(group.cases + group.refused, 0);
        for (const std::string& failure : group.failures) ADD_FAILURE() << failure;
      }
    }
  }
}

/// Kernels of operation `recurrent`, in whose sources faults are planted.
class PlantedRecurrentFaults : public EmulatorTest {
 protected:
  RecurrentSpec spec_of(RecurrentKind kind, int tokens) const {
    RecurrentProblem problem = usual_problem(kind);
    problem.qk_heads = 1, problem.v_heads = 2, problem.key_dim = problem.value_dim = 64;
    problem.tokens = tokens, problem.snapshots = tokens > 1;
    return {.arch = device.arch, .problem = problem, .tunables = {.warps = 2, .warp_rows = 8, .row_lanes = 8}};
  }

  /// What the check of a kernel says, with the emulator's report in front, after `from` has become `to` in its source.
  /// "" where the results are right.
  std::string check(const RecurrentSpec& spec, const std::string& from = "", const std::string& to = "") {
    auto emitted = emit(spec);
    if (!emitted) return ADD_FAILURE() << emitted.error().message, "";
    const auto at = emitted->source.find(from);
    if (at == std::string::npos) return ADD_FAILURE() << "no longer in the source: " << from, "";
    emitted->source.replace(at, from.size(), to);
    context.reset();  // an access outside of buffers has broken it
    context.emplace(Context::retain(0).value());
    const auto kernel = RecurrentKernel::prepare(*emitted, nullptr);
    if (!kernel) return ADD_FAILURE() << kernel.error().message << kernel.error().log, "";
    const Stream stream = Stream::create().value();
    std::string outcome;
    const std::string report = report_of([&] {
      for (const bool moved : {false, true}) {
        const auto made = RecurrentCase::create(spec.problem,
                                                {.batch = 4,
                                                 .padded = true,
                                                 .null_slots = true,
                                                 .zero_is_null = moved,
                                                 .moved = moved,
                                                 .launches = spec.problem.ring > 0 ? 6 : 1},
                                                stream);
        const auto checked = made ? made->check(*kernel, stream) : tl::unexpected(made.error());
        outcome += checked ? checked->first_failure : checked.error().message;
      }
    });
    return report + outcome;
  }
};

TEST_F(PlantedRecurrentFaults, WithoutOneResultsAreRight) {
  for (const RecurrentKind kind : kRecurrentKinds) EXPECT_EQ(check(spec_of(kind, 1)), "") << to_string(kind);
  EXPECT_EQ(check(spec_of(RecurrentKind::kda, 3)), "");
}

TEST_F(PlantedRecurrentFaults, AnErasureThatIsWrong) {
  const RecurrentSpec channels = spec_of(RecurrentKind::gdn2, 3);
  EXPECT_EQ(check(channels), "");
  EXPECT_NE(check(channels, "read_row(s, update.erase)", "read_row(s, k)"), "");
  EXPECT_NE(check(channels, "update.write[row] * v[row]", "v[row]"), "");
  EXPECT_NE(check(channels, ": sigmoid(write)", ": write"), "");
  const RecurrentSpec vectors = spec_of(RecurrentKind::rwkv7, 1);
  EXPECT_EQ(check(vectors), "");
  EXPECT_NE(check(vectors, "erased, update.write_q", "0.0f, update.write_q"), "") << "not in the output";
  EXPECT_NE(check(vectors, "erased, update.write[i]", "0.0f, update.write[i]"), "") << "not in the state";
}

TEST_F(PlantedRecurrentFaults, AStateThatLiesTheOtherWay) {
  RecurrentSpec spec = spec_of(RecurrentKind::kda, 3);
  spec.problem.keys_first = true, spec.problem.value_dim = 32;
  spec.tunables = {.warps = 1, .warp_rows = 16, .row_lanes = 8};
  EXPECT_EQ(check(spec), "");
  EXPECT_NE(check(spec, "kKeysFirst = true", "kKeysFirst = false"), "");
  EXPECT_NE(check(spec, "column * kValueDim + row", "column * kKeyDim + row"), "");
}

TEST_F(PlantedRecurrentFaults, ANormWithoutTheOtherCtasOfTheHead) {
  RecurrentSpec spec = spec_of(RecurrentKind::gated_delta, 3);
  spec.problem.output_gate = OutputGate::silu;
  EXPECT_EQ(check(spec), "");
  EXPECT_NE(check(spec, "if (lane < kNormCtas) store", "if (lane == blockIdx.x) store"), "");
  EXPECT_NE(check(spec, "squares[t % 2][warp]), lane", "squares[0][warp]), lane"), "")
      << "a token that was not waited for";
  EXPECT_NE(check(spec, "sync_cluster();", ""), "");
}

TEST_F(PlantedRecurrentFaults, ANormWithoutTheOtherHeads) {
  RecurrentSpec spec = spec_of(RecurrentKind::mamba2, 3);
  spec.problem.output_gate = OutputGate::silu_first, spec.problem.norm_heads = 2;
  EXPECT_EQ(check(spec), "");
  EXPECT_NE(check(spec, "blockIdx.y % kNormHeads * kHeadCtas + blockIdx.x", "blockIdx.x"), "");
  EXPECT_NE(check(spec, "1.0f / (kNormHeads * kValueDim)", "1.0f / kValueDim"), "");
  EXPECT_NE(check(spec, "place.head * kValueDim : 0", "0 : 0"), "") << "weights of the first head";
  // More warps than a warp has lanes.
  spec.problem.v_heads = 16, spec.problem.norm_heads = 16, spec.problem.value_dim = 32, spec.problem.tokens = 1;
  spec.problem.snapshots = false;
  spec.tunables = {.warps = 4, .warp_rows = 8, .row_lanes = 8};
  EXPECT_EQ(check(spec), "");
  EXPECT_NE(check(spec, "i < kNormWarps; i += 32", "i < 32; i += 32"), "");
}

TEST_F(PlantedRecurrentFaults, ANullSlotThatIsTakenForReal) {
  const RecurrentSpec spec = spec_of(RecurrentKind::gated_delta, 1);
  EXPECT_NE(check(spec, "slot < args.first_slot ||", ""), "");
  EXPECT_NE(check(spec, "|| slot >= args.slot_count", ""), "");
  EXPECT_NE(check(spec, "if (!is_null(args, to)) store", "store"), "") << "where a state goes";
}

TEST_F(PlantedRecurrentFaults, AStateThatIsWrong) {
  const RecurrentSpec spec = spec_of(RecurrentKind::gated_delta, 1);
  EXPECT_NE(check(spec, "s[i] *= update.decay", "s[i] *= 1.00001f * update.decay"), "");
  EXPECT_NE(check(spec, "lanes = kRowLanes / 2;", "lanes = kRowLanes / 4;"), "") << "a lane's columns are left out";
  EXPECT_NE(check(spec, "u * update.kq", "0.0f"), "") << "the output is read before the update";
  EXPECT_NE(check(spec, "+ head.bias[i]", ""), "");
  const RecurrentSpec drafts = spec_of(RecurrentKind::kda, 3);
  EXPECT_NE(check(drafts, "out_slot, kSnapshots ? t : 0", "out_slot, 0"), "") << "all tokens' states go to one slot";
  EXPECT_NE(check(drafts, "1), kTokens) - 1;", "1), kTokens) * 0;"), "") << "the step begins at the first entry";
  EXPECT_NE(check(drafts, "const Token taken = token;", "const Token taken = load_token(args, place, first_token);"),
            "");
}

TEST_F(PlantedRecurrentFaults, AConvolutionWhoseStateIsWrong) {
  RecurrentSpec spec = spec_of(RecurrentKind::gated_delta, 1);
  spec.problem.conv_width = 4;
  EXPECT_EQ(check(spec), "");
  EXPECT_NE(check(spec, "before == kReaders - 1", "true"), "") << "a CTA writes what others have yet to read";
  EXPECT_NE(check(spec, "before == kReaders - 1", "before == 0"), "") << "the first one writes";
  EXPECT_NE(check(spec, "before == kReaders - 1", "false"), "");
  EXPECT_NE(check(spec, "\"r\"(kReaders - 1)", "\"r\"(kReaders)"), "") << "counters are left behind";
  EXPECT_NE(check(spec, "seen[first + j]", "seen[j]"), "") << "the state stays";
  EXPECT_NE(check(spec, "channel.there && conv.bias != nullptr", "false"), "");
  EXPECT_NE(check(spec, "sum / (1.0f + expf(-sum))", "sum"), "");
  RecurrentSpec drafts = spec_of(RecurrentKind::kda, 3);
  drafts.problem.conv_width = 3, drafts.problem.ragged = true;
  EXPECT_EQ(check(drafts), "");
  EXPECT_NE(check(drafts, "slot, past + j)", "slot, j)"), "") << "tokens that were not accepted count";
  EXPECT_NE(check(drafts, "kSnapshots ? 1 : tokens", "tokens"), "");
}

TEST_F(PlantedRecurrentFaults, ARingThatIsReplayedWrong) {
  RecurrentSpec spec = spec_of(RecurrentKind::gated_delta, 1);
  spec.problem.ring = 4;
  EXPECT_EQ(check(spec), "");
  EXPECT_NE(check(spec, "replay(state, place, span);", ""), "");
  EXPECT_NE(check(spec, "store_state(state, state_at(args, place, slot));",
                  "{ State old; load_state(old, state_at(args, place, slot), true); "
                  "store_state(old, state_at(args, place, slot)); }"),
            "")
      << "what is stored was not replayed";
  EXPECT_NE(check(spec, "span.count + 2 * kTokens > kRing", "span.count + kTokens > kRing"), "") << "a step late";
  EXPECT_NE(check(spec, "span.count + 2 * kTokens > kRing", "true"), "") << "the state is stored always";
  EXPECT_NE(check(spec, "span.count + t)", "span.count + t - 1)"), "") << "an entry goes over the last one";
  EXPECT_NE(check(spec, "fmaf(u, k[i], decayed)", "fmaf(u, k[i], state.s[row][i]) * w[0]"), "")
      << "the decay comes after the update";
  EXPECT_NE(check(spec, "(span.first + i) % kRing", "span.first + i"), "") << "entries lie behind the ring";
  EXPECT_NE(check(spec, "\"cp.async.wait_all;\"", "\"\""), "");
  EXPECT_NE(check(spec, "place.head % kGroup == 0", "false"), "") << "nobody writes k";
  EXPECT_NE(check(spec, "place.lane < kLaneRows) to_u", "place.lane == 0) to_u"), "") << "rows are left out";
  RecurrentSpec drafts = spec_of(RecurrentKind::kda, 3);
  drafts.problem.snapshots = false, drafts.problem.ragged = true, drafts.problem.ring = 7;
  EXPECT_EQ(check(drafts), "");
  EXPECT_NE(check(drafts, "k, update.decay, added)", "q, update.decay, added)"), "");
  drafts.problem.ragged = false;
  EXPECT_EQ(check(drafts), "");
  EXPECT_NE(check(drafts, "(span.first + i) % kRing", "span.first + i"), "");
  EXPECT_NE(check(drafts, "span.count + t)", "span.count)"), "") << "all tokens go to one entry";
}

/// A step of prefill and decode, with one walk and with two. Its times are the emulator's and say nothing.
TEST(EmulatedBench, GivenConfigurationsAreCheckedAndTimed) {
  const DecodeProblem problem{.q_heads = 4,
                              .kv_heads = 1,
                              .head_dim = 64,
                              .layout = KvLayout::strided,
                              .features = {.page_size = 16, .q_len = 1024, .ragged_q = true}};
  BenchOptions options;
  options.policy = L2Policy::warm, options.rounds = 1, options.modes = {"read"};
  options.requests = {.context_lengths = {300, 77, 200}, .query_tokens = {200, 1, 1}};
  KernelSpec one_walk;  // of another problem: its tunables count
  one_walk.load = LoadPath::tensor, one_walk.warps = 8, one_walk.warp_tokens = 32, one_walk.tile = 128;
  one_walk.stages = 3, one_walk.ctas_per_sm = 1;
  KernelSpec two_walks = one_walk;
  two_walks.warps = 12, two_walks.warp_tokens = 16, two_walks.tile = 64;
  options.configs = {{.spec = one_walk, .grid = 5}, {.spec = two_walks, .grid = 3}};
  const Shape shape = shape_of(problem, {options.requests.context_lengths, options.requests.query_tokens});
  const auto report = bench(problem, shape, options, {}, nullptr, nullptr);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->lines.size(), 3u);
  EXPECT_EQ(report->lines[0].mode, "given");
  EXPECT_EQ(report->lines[0].config.grid, 5);
  EXPECT_EQ(report->lines[1].config.spec.warps, 12);
  EXPECT_EQ(report->lines[1].config.spec.head_dim, 64);
  EXPECT_GT(report->lines[1].median_us, 0);
  EXPECT_EQ(report->lines[2].mode, "read");

  options.configs[0].spec.fixup = FixUp::wait, options.configs[0].grid = 1000000;
  const auto waits = bench(problem, shape, options, {}, nullptr, nullptr);
  ASSERT_FALSE(waits);
  EXPECT_NE(waits.error().message.find("1000000 CTAs with fix-up wait"), std::string::npos) << waits.error().message;
  options.configs[0].spec.load = LoadPath::vector;  // which has no kernel for so many query tokens
  const auto refused = bench(problem, shape, options, {}, nullptr, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported) << refused.error().message;
}

TEST(EmulatedBench, RecurrentKernelsAreCheckedAndTimedBesideCopies) {
  RecurrentProblem problem;
  problem.qk_heads = problem.v_heads = 1, problem.key_dim = problem.value_dim = 32;
  problem.tokens = 2, problem.snapshots = true;
  const auto report = recurrent_bench(problem, 3, {.rounds = 2, .policy = L2Policy::warm}, nullptr, nullptr);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->traffic_bytes, 3 * 3 * 32 * 32 * 4);
  ASSERT_EQ(report->lines.size(), 3u);
  for (const auto& [line, mode] : {std::pair(0, "lean"), {1, "copy"}, {2, "traffic"}}) {
    EXPECT_EQ(report->lines[static_cast<std::size_t>(line)].mode, mode);
    EXPECT_GT(report->lines[static_cast<std::size_t>(line)].median_us, 0);
  }
}

TEST(EmulatedBench, AGraphOfStepsWithARingHasEachStepOfItsPeriod) {
  RecurrentProblem problem;
  problem.qk_heads = problem.v_heads = 1, problem.key_dim = problem.value_dim = 32, problem.ring = 5;
  const auto report = recurrent_bench(problem, 4, {.rounds = 2, .policy = L2Policy::warm}, nullptr, nullptr);
  ASSERT_TRUE(report) << report.error().message;
  // Four requests: each reads its state, one writes it, and 1 + 2 + 3 + 4 entries are read and four are written.
  EXPECT_EQ(report->traffic_bytes, 5 * 32 * 32 * 4 + 14 * (32 + 32 + 1) * 4);
  ASSERT_EQ(report->lines.size(), 2u);
  EXPECT_EQ(report->lines[0].mode, "lean");
  EXPECT_NE(report->lines[0].kernel.find("_r5_"), std::string::npos) << report->lines[0].kernel;
}

TEST(EmulatedTuning, AllKernelsOfARecurrentSearchAreRightAndOneWins) {
  const auto db = TuningDb::open(std::nullopt, OpenMode::read_write, nullptr);
  ASSERT_TRUE(db) << db.error().message;
  const auto cubins = open_cubin_db(std::nullopt, nullptr);
  RecurrentTuneRequest request{.problem = usual_problem(RecurrentKind::kda), .batches = {3}, .policy = L2Policy::warm};
  request.problem.qk_heads = request.problem.v_heads = 1, request.problem.key_dim = request.problem.value_dim = 32;
  const auto summary = tune_recurrent(request, **db, cubins.get(), {}, nullptr);
  ASSERT_TRUE(summary) << summary.error().message << summary.error().log;
  EXPECT_GT(summary->candidates, 4);
  EXPECT_EQ(summary->rejected + summary->incorrect, 0) << summary->failure;
  ASSERT_EQ(summary->steps.size(), 1u);
  EXPECT_TRUE(summary->steps[0].winner && summary->steps[0].finished);
  EXPECT_EQ((*db)->stats()->winners, 1);
}

}  // namespace
}  // namespace leanattn
