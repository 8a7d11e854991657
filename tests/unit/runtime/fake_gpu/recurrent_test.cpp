// recurrent_test.cpp -- layers with a recurrent state through the public C++ interface, on a fictional GPU: what
// arrives at the kernel, what is refused by name, and which winners are taken.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "cache/tuning/tuning_db.hpp"
#include "fake_gpu_fixture.hpp"
#include "generator/recurrent/recurrent_json.hpp"
#include "leanattn/recurrent.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"

namespace leanattn {
namespace {

class FakeGpuRecurrent : public FakeGpuEngine {
 protected:
  void SetUp() override {
    FakeGpuEngine::SetUp();
    fake_gpu().run = [this](const std::string& kernel, void** params) {
      if (kernel.starts_with("recurrent_")) launched = *static_cast<const LeanRecurrentArgs*>(params[0]);
    };
  }

  template <class T = void>
  static T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
  }
  /// A step of the gated delta rule.
  static RecurrentArgs step() {
    RecurrentArgs args = recurrent_args();
    args.q = at(0x1000), args.k = at(0x2000), args.v = at(0x3000), args.a = at(0x4000), args.b = at(0x5000);
    args.a_log = at<float>(0x6000), args.dt_bias = at<float>(0x7000);
    args.state = at(0x8000), args.o = at(0x9000), args.slots = at<std::int32_t>(0xa000);
    args.batch = 3, args.slot_count = 10;
    return args;
  }

  RecurrentLayer layer;
  std::optional<LeanRecurrentArgs> launched;
};

TEST_F(FakeGpuRecurrent, AStepArrivesWithDenseStridesAndUsualNumbers) {
  Engine engine = open();
  const auto plan = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  EXPECT_TRUE(std::string(plan->kernel_name()).starts_with("recurrent_sm90a_gated_delta_softplus_bf16_fp32_norm_"));
  ASSERT_TRUE(plan->launch(step(), nullptr));
  ASSERT_TRUE(launched);
  EXPECT_EQ(launched->q, at(0x1000));
  EXPECT_EQ(launched->slots, at<int>(0xa000));
  EXPECT_EQ(launched->q_stride, 16 * 128);
  EXPECT_EQ(launched->o_stride, 32 * 128);
  EXPECT_EQ(launched->a_stride, 32);
  EXPECT_EQ(launched->state_stride, 32 * 128 * 128);
  EXPECT_EQ(launched->slots_stride, 1);
  EXPECT_EQ(launched->slot_count, 10);
  EXPECT_FLOAT_EQ(launched->scale, 0.08838835F);
  EXPECT_FLOAT_EQ(launched->norm_eps, 1e-6F);
  EXPECT_FLOAT_EQ(launched->lower_bound, -5);

  RecurrentArgs packed = step();
  packed.q_stride = packed.k_stride = packed.v_stride = 8192;
  packed.scale = 1, packed.first_slot = 1;
  ASSERT_TRUE(plan->launch(packed, nullptr));
  EXPECT_EQ(launched->v_stride, 8192);
  EXPECT_EQ(launched->scale, 1);
  EXPECT_EQ(launched->first_slot, 1);
}

TEST_F(FakeGpuRecurrent, KindsHaveScalesAndGatesOfTheirOwn) {
  Engine engine = open();
  layer.recurrence = Recurrence::mamba2, layer.normalise = false;
  RecurrentArgs args = step();
  args.b = nullptr, args.skip = at<float>(0xb000);
  ASSERT_TRUE(RecurrentPlan::make(engine, layer, 3, nullptr)->launch(args, nullptr));
  EXPECT_EQ(launched->scale, 1);
  layer.recurrence = Recurrence::kda, layer.tokens = 4, layer.snapshots = true, layer.keys_first = true;
  const auto kda = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(kda) << kda.error().message;
  EXPECT_NE(std::string(kda->kernel_name()).find("_v128_kv_t4_"), std::string::npos) << kda->kernel_name();
  ASSERT_TRUE(kda->launch(step(), nullptr));
  EXPECT_EQ(launched->a_stride, 32 * 128);
  EXPECT_EQ(launched->slots_stride, 4);
}

TEST_F(FakeGpuRecurrent, ErasuresOfTheirOwnArriveAndAreNeeded) {
  Engine engine = open();
  layer.recurrence = Recurrence::gdn2;
  const auto plan = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  RecurrentArgs args = step();
  args.b = nullptr;
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "erase is null");
  args.erase = at(0xc000), args.write = at(0xd002), args.erase_stride = 8192;
  ASSERT_TRUE(plan->launch(args, nullptr));
  EXPECT_EQ(launched->erase, at(0xc000));
  EXPECT_EQ(launched->erase_stride, 8192);
  EXPECT_EQ(launched->write_stride, 32 * 128);
  layer.recurrence = Recurrence::rwkv7, layer.normalise = false, layer.value_dim = 64;
  args.b = nullptr;
  const auto rwkv7 = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(rwkv7) << rwkv7.error().message << rwkv7.error().log;
  expect_refused(rwkv7->launch(args, nullptr), ErrorCode::invalid_argument, "write is 0xd002");
  args.write = at(0xd000);
  ASSERT_TRUE(rwkv7->launch(args, nullptr));
  EXPECT_EQ(launched->write_stride, 32 * 128) << "a vector of K";
  EXPECT_EQ(launched->scale, 1);
  layer = {};
  args = step(), args.erase = at(0xc000);
  expect_refused(RecurrentPlan::make(engine, layer, 3, nullptr)->launch(args, nullptr), ErrorCode::invalid_argument,
                 "erase is given");
}

TEST_F(FakeGpuRecurrent, AGatedOutputNeedsItsGateAndItsWeight) {
  Engine engine = open();
  layer.output = HeadOutput::silu;
  const auto plan = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  RecurrentArgs args = step();
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "z is null");
  args.z = at(0xc000);
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "norm_weight is null");
  args.norm_weight = at<float>(0xd000), args.z_stride = 8192;
  ASSERT_TRUE(plan->launch(args, nullptr));
  EXPECT_EQ(launched->z, at(0xc000));
  EXPECT_EQ(launched->z_stride, 8192);
  EXPECT_FLOAT_EQ(launched->output_eps, 1e-6F);
}

TEST_F(FakeGpuRecurrent, HeadsThatAreNormalisedTogetherAskForTheirCluster) {
  Engine engine = open();
  layer.recurrence = Recurrence::mamba2, layer.normalise = false, layer.value_dim = 64, layer.v_heads = 64;
  layer.output = HeadOutput::silu_first, layer.norm_heads = 8;
  RecurrentArgs args = step();
  args.b = nullptr, args.skip = at<float>(0xb000), args.z = at(0xc000), args.norm_weight = at<float>(0xd000);
  const auto eight = RecurrentPlan::make(engine, layer, 64, nullptr);
  ASSERT_TRUE(eight) << eight.error().message << eight.error().log;
  EXPECT_NE(std::string(eight->kernel_name()).find("_silu_first8_"), std::string::npos) << eight->kernel_name();
  ASSERT_TRUE(eight->launch(args, nullptr));
  layer.norm_heads = 16;
  const auto sixteen = RecurrentPlan::make(engine, layer, 64, nullptr);
  ASSERT_TRUE(sixteen) << sixteen.error().message << sixteen.error().log;
  EXPECT_EQ(fake_gpu().function_attributes[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED], 1);
  layer.norm_heads = 32;
  expect_refused(RecurrentPlan::make(engine, layer, 64, nullptr), ErrorCode::unsupported, "normalised by");
}

TEST_F(FakeGpuRecurrent, AConvolutionArrivesWithStridesOfItsOwn) {
  Engine engine = open();
  layer.conv_width = 4, layer.tokens = 2, layer.snapshots = true;
  const auto plan = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  RecurrentArgs args = step();
  args.q = at(0x1002);  // no vectors are read
  const auto refuses = [&](const std::string& what) {
    expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, what);
  };
  refuses("readers is null");
  args.readers = at<std::uint32_t>(0xd000);
  refuses("q_conv.weight is null");
  args.q_conv.weight = args.k_conv.weight = args.v_conv.weight = at(0xb000);
  args.q_conv.state = args.v_conv.state = at(0xc000);
  refuses("k_conv.state is null");
  args.k_conv.state = at(0xc001);
  refuses("k_conv.state is 0xc001");
  // As vLLM has it: all channels of a token beside each other.
  args.k_conv = {at(0xb000), at(0xb800), at(0xc000), 4 * 8192, 1, 8192};
  ASSERT_TRUE(plan->launch(args, nullptr));
  EXPECT_EQ(launched->conv[0].slot_stride, 16 * 128 * 4) << "width 4 with one draft";
  EXPECT_EQ(launched->conv[0].channel_stride, 4);
  EXPECT_EQ(launched->conv[1].token_stride, 8192);
  EXPECT_EQ(launched->conv[1].bias, at(0xb800));
  EXPECT_EQ(launched->conv[2].slot_stride, 32 * 128 * 4);
  EXPECT_EQ(launched->readers, at<unsigned>(0xd000));
  args.v_conv.token_stride = LEANATTN_STRIDE_EXPANDED;
  refuses("v_conv.token_stride is LEANATTN_STRIDE_EXPANDED");

  layer = {};
  args = step(), args.v_conv.bias = at(0xb000);
  expect_refused(RecurrentPlan::make(engine, layer, 3, nullptr)->launch(args, nullptr), ErrorCode::invalid_argument,
                 "v_conv.bias is given");
}

TEST_F(FakeGpuRecurrent, ARingArrivesWithItsSpansAndAllOfItIsNeeded) {
  Engine engine = open();
  layer.ring = 9;
  const auto plan = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  EXPECT_NE(std::string(plan->kernel_name()).find("_t1_r9_"), std::string::npos) << plan->kernel_name();
  RecurrentArgs args = step();
  const auto refuses = [&](const std::string& what) {
    expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, what);
  };
  refuses("ring_u is null");
  args.ring_u = at<float>(0xb000), args.ring_k = at<float>(0xc008), args.ring_w = at<float>(0xd004);
  refuses("ring_k is 0xc008, which is not a multiple of 16 bytes");
  args.ring_k = at<float>(0xc000);
  refuses("ring_spans is null");
  args.ring_spans = at<std::int32_t>(0xe000), args.ring_k_stride = 9 * 16 * 128 + 64;
  ASSERT_TRUE(plan->launch(args, nullptr));
  EXPECT_EQ(launched->ring_spans, at<int>(0xe000));
  EXPECT_EQ(launched->ring_u, at<float>(0xb000));
  EXPECT_EQ(launched->ring_w, at<float>(0xd004));
  EXPECT_EQ(launched->ring_u_stride, 9 * 32 * 128);
  EXPECT_EQ(launched->ring_k_stride, 9 * 16 * 128 + 64);
  EXPECT_EQ(launched->ring_w_stride, 9 * 32);
  args.ring_u_stride = 9 * 32 * 128 - 4;
  refuses("ring_u_stride is 36860 elements, less than");
  args.ring_u_stride = 0, args.out_slots = at<std::int32_t>(0xf000);
  refuses("out_slots is given");
  layer = {};
  args = step(), args.ring_spans = at<std::int32_t>(0xe000);
  expect_refused(RecurrentPlan::make(engine, layer, 3, nullptr)->launch(args, nullptr), ErrorCode::invalid_argument,
                 "ring_spans is given");
}

TEST_F(FakeGpuRecurrent, DebuggingNamesASpanThatTheRingDoesNotHave) {
  Engine engine = open_debugging();
  layer.ring = 9, layer.tokens = 2;
  const auto plan = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
  alignas(8) std::int32_t slots[] = {4, -1, 2}, spans[] = {8, 7, 99, 99, 0, 0};
  RecurrentArgs args = step();
  args.slots = slots, args.ring_spans = spans;
  args.ring_u = at<float>(0xb000), args.ring_k = at<float>(0xc000), args.ring_w = at<float>(0xd000);
  ASSERT_TRUE(plan->launch(args, nullptr)) << "a null slot has no ring";
  spans[5] = 8;
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "ring_spans[2] is 0, 8");
  spans[5] = 0, spans[0] = 9;
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "ring_spans[0] is 9, 7");
  spans[0] = -1;
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "ring_spans[0] is -1, 7");
}

TEST_F(FakeGpuRecurrent, AnEmptyBatchEnqueuesNothing) {
  Engine engine = open();
  const auto plan = RecurrentPlan::make(engine, layer, 1, nullptr);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_TRUE(plan->launch(recurrent_args(), nullptr));
  EXPECT_FALSE(launched);
}

TEST_F(FakeGpuRecurrent, RefusesArgumentsByTheirNames) {
  Engine engine = open();
  const auto plan = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(plan) << plan.error().message;
  const auto refuses = [&](const std::string& what, const std::function<void(RecurrentArgs&)>& change) {
    RecurrentArgs args = step();
    change(args);
    expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, what);
  };
  refuses("q is null", [](auto& args) { args.q = nullptr; });
  refuses("k is 0x2008, which is not a multiple of 16 bytes", [](auto& args) { args.k = at(0x2008); });
  refuses("a_log is null", [](auto& args) { args.a_log = nullptr; });
  refuses("skip is given", [](auto& args) { args.skip = at<float>(0xb000); });
  refuses("accepted is given", [](auto& args) { args.accepted = at<std::int32_t>(0xb000); });
  refuses("token_offsets is given", [](auto& args) { args.token_offsets = at<std::int32_t>(0xb000); });
  refuses("v_stride is 100 elements, less than", [](auto& args) { args.v_stride = 100; });
  refuses("q_stride is 2052 elements, not a multiple of 8", [](auto& args) { args.q_stride = 2052; });
  refuses("state_stride is 524290 elements, not a multiple of 4", [](auto& args) { args.state_stride = 524290; });
  refuses("batch is -1", [](auto& args) { args.batch = -1; });
  refuses("batch is 65536", [](auto& args) { args.batch = 65536; });
  refuses("slot_count is 0", [](auto& args) { args.slot_count = 0; });
  EXPECT_FALSE(launched);
  expect_refused(RecurrentPlan::make(engine, layer, 0, nullptr), ErrorCode::invalid_argument, "batch is 0");
  layer.tokens = 17;
  expect_refused(RecurrentPlan::make(engine, layer, 1, nullptr), ErrorCode::unsupported, "17 tokens");
}

TEST_F(FakeGpuRecurrent, APlanIsMadeOnceAndNotWhileAStreamIsCaptured) {
  Engine engine = open();
  const Context context = Context::retain(0).value();
  const auto stream = Stream::create();
  ASSERT_TRUE(stream);
  layer.v_heads = 48;
  const auto plan_while_capturing = [&] {
    std::optional<Result<RecurrentPlan>> plan;
    static_cast<void>(Graph::capture(*stream, [&](CUstream_st* capturing) -> Result<void> {
      plan = RecurrentPlan::make(engine, layer, 1, capturing);
      if (*plan) return (*plan)->launch(step(), capturing);
      return {};
    }));
    return *plan;
  };
  expect_refused(plan_while_capturing(), ErrorCode::not_prepared, "is being captured");
  const auto plan = RecurrentPlan::make(engine, layer, 1, nullptr);
  ASSERT_TRUE(plan) << plan.error().message;
  const auto again = plan_while_capturing();
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(plan->kernel_name(), again->kernel_name());
}

TEST_F(FakeGpuRecurrent, DebuggingNamesRequestsThatShareASlot) {
  Engine engine = open_debugging();
  const auto plan = RecurrentPlan::make(engine, layer, 3, nullptr);
  ASSERT_TRUE(plan) << plan.error().message;
  std::int32_t slots[] = {4, 7, 4}, out_slots[] = {1, 2, 3};
  RecurrentArgs args = step();
  args.slots = slots;
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "requests 0 and 2 both use slot 4");
  args.out_slots = out_slots;
  ASSERT_TRUE(plan->launch(args, nullptr)) << "which both only read";
  out_slots[1] = 4;
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "requests 0 and 1 both use slot 4");
  args.out_slots = nullptr;
  slots[0] = slots[2] = -1;
  ASSERT_TRUE(plan->launch(args, nullptr)) << "null slots are nobody's";

  layer.tokens = 2, layer.snapshots = layer.ragged = true;
  const auto drafts = RecurrentPlan::make(engine, layer, 2, nullptr);
  ASSERT_TRUE(drafts) << drafts.error().message;
  std::int32_t of_tokens[] = {0, 1, 2, 1}, accepted[] = {2, 1}, offsets[] = {0, 2, 3};
  args.slots = of_tokens, args.accepted = accepted, args.token_offsets = offsets, args.batch = 2;
  ASSERT_TRUE(drafts->launch(args, nullptr)) << "the second request has one token, which goes to slot 2";
  offsets[2] = 4;
  expect_refused(drafts->launch(args, nullptr), ErrorCode::invalid_argument, "requests 0 and 1 both use slot 1");
}

TEST_F(FakeGpuRecurrent, DebuggingLooksAtTheSlotsAndReadersOfAConvolution) {
  Engine engine = open_debugging();
  layer.conv_width = 4, layer.tokens = 2, layer.snapshots = true;
  const auto plan = RecurrentPlan::make(engine, layer, 2, nullptr);
  ASSERT_TRUE(plan) << plan.error().message;
  std::int32_t slots[] = {0, 1, 2, 3}, out_slots[] = {4, 5, 0, 7}, accepted[] = {2, 2};
  std::uint32_t readers[32] = {};
  RecurrentArgs args = step();
  args.slots = slots, args.accepted = accepted, args.batch = 2, args.readers = readers;
  for (leanattn_short_conv* part : {&args.q_conv, &args.k_conv, &args.v_conv})
    part->weight = at(0xb000), part->state = at(0xc000);
  ASSERT_TRUE(plan->launch(args, nullptr));
  args.out_slots = out_slots;
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "requests 0 and 1 both use slot 0");
  out_slots[2] = 6, readers[17] = 3;
  expect_refused(plan->launch(args, nullptr), ErrorCode::invalid_argument, "readers[17] is 3 before a launch");
}

/// Engines that find winners in a directory of their own.
class FakeGpuRecurrentWinners : public FakeGpuRecurrent {
 protected:
  static constexpr RecurrentTunables kTuned{.warps = 2, .warp_rows = 16, .row_lanes = 16},
      kSecond{.warps = 8, .warp_rows = 4, .row_lanes = 8};

  void SetUp() override {
    FakeGpuRecurrent::SetUp();
    if (!IsSkipped()) use_fresh_directory();
  }

  /// Stores what was measured for a batch. Kernels of another revision were others than those of today.
  static void store(const std::filesystem::path& directory, int batch, const RecurrentTunables& tunables, double us = 5,
                    const std::string& revision = "") {
    const DeviceFacts device = device_facts(0).value();
    const auto db = TuningDb::open(directory, OpenMode::read_write, nullptr).value();
    const RecurrentSpec spec{.arch = device.arch, .tunables = tunables};
    const std::string session = db->begin_session(device_model(device), current_environment(device), "test").value();
    const Trial trial{.problem = to_json(spec.problem),
                      .shape = batch_to_json(batch),
                      .policy = "cold",
                      .config = to_json(spec),
                      .samples = 12,
                      .median_us = us,
                      .low_us = us,
                      .high_us = us,
                      .kernel_revision = revision.empty() ? kernel_revision(spec) : revision};
    ASSERT_TRUE(db->add_trial(session, trial));
    ASSERT_TRUE(db->finish_session(session));
    ASSERT_TRUE(db->rebuild_winners());
  }
  std::string kernel(const Engine& engine, int batch, CUstream_st* stream = nullptr) const {
    const auto plan = RecurrentPlan::make(engine, layer, batch, stream);
    if (!plan) return plan.error().message;
    return std::string(plan->kernel_name());
  }
  static std::string name(const RecurrentTunables& tunables) {
    return kernel_name({.arch = {9, 0, true}, .tunables = tunables});
  }
  static std::string by_rule(int batch) { return kernel_name(default_spec(device_facts(0).value(), {}, batch)); }
};

TEST_F(FakeGpuRecurrentWinners, AnEngineTakesTheWinnerOfTheBatchOrOfOneNear) {
  store(directory_, 64, kTuned);
  Engine engine = open();
  EXPECT_EQ(kernel(engine, 64), name(kTuned));
  EXPECT_EQ(kernel(engine, 100), name(kTuned));
  EXPECT_EQ(kernel(engine, 200), by_rule(200));
  EXPECT_EQ(engine.warnings(), "");
  layer.v_heads = 64;
  EXPECT_EQ(kernel(engine, 64).find(name(kTuned)), std::string::npos) << "another problem";
}

TEST_F(FakeGpuRecurrentWinners, AWinnerWhoseKernelHasChangedIsNotTaken) {
  store(directory_, 64, kTuned, 5, "of another version");
  Engine engine = open();
  EXPECT_EQ(kernel(engine, 64), by_rule(64));
  EXPECT_EQ(engine.warnings(), "");
}

TEST_F(FakeGpuRecurrentWinners, TheUsersWinnerGoesBeforeTheSitesUnlessItsKernelHasChanged) {
  const TemporaryDirectory site;
  store(site.path(), 64, kSecond);
  store(site.path(), 8, kSecond);
  store(directory_, 64, kTuned);
  store(directory_, 8, kTuned, 5, "of another version");
  ::setenv("LEANATTN_SITE_DB", site.path().c_str(), 1);
  Engine engine = open();
  EXPECT_EQ(kernel(engine, 64), name(kTuned));
  EXPECT_EQ(kernel(engine, 8), name(kSecond));
  ::unsetenv("LEANATTN_SITE_DB");
}

TEST_F(FakeGpuRecurrentWinners, AWinnerThatCannotBeLoadedGivesWayToTheNextBest) {
  store(directory_, 64, kSecond, 6);
  store(directory_, 64, kTuned, 5);
  {
    Engine engine = open();
    ASSERT_EQ(kernel(engine, 64), name(kTuned));
  }
  Engine engine = open();
  fake_gpu().refused_kernel = name(kTuned);
  EXPECT_EQ(kernel(engine, 64), name(kSecond));
  fake_gpu().refused_kernel.clear();
  EXPECT_EQ(kernel(engine, 64), name(kSecond)) << "it is not tried again";
  ASSERT_TRUE(engine.reload());
  EXPECT_EQ(kernel(engine, 64), name(kTuned)) << "before the winners are read anew";
}

TEST_F(FakeGpuRecurrentWinners, AReloadTakesUpNewWinnersButNotWhileAStreamIsCaptured) {
  Engine engine = open();
  ASSERT_EQ(kernel(engine, 64), by_rule(64));
  store(directory_, 64, kTuned);
  EXPECT_EQ(kernel(engine, 64), by_rule(64));
  ASSERT_TRUE(engine.reload());
  const Context context = Context::retain(0).value();
  const auto stream = Stream::create();
  ASSERT_TRUE(stream);
  static_cast<void>(Graph::capture(*stream, [&](CUstream_st* capturing) -> Result<void> {
    EXPECT_EQ(kernel(engine, 64, capturing), by_rule(64)) << "which is loaded";
    const auto plan = RecurrentPlan::make(engine, layer, 64, capturing);
    return plan ? plan->launch(step(), capturing) : Result<void>(tl::unexpected(plan.error()));
  }));
  EXPECT_EQ(kernel(engine, 64), name(kTuned));
}

}  // namespace
}  // namespace leanattn
