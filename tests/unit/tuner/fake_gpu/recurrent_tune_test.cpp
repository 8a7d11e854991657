// recurrent_tune_test.cpp -- a tuning of operation `recurrent` on a fictional GPU, whose kernels the host executes and
// whose launches take as long as the test says.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "templates/recurrent/arguments.cuh"
#include "tests/unit/tuner/fake_gpu/tuned_gpu.hpp"
#include "tuner/oracle/random_data.hpp"
#include "tuner/oracle/recurrent_oracle.hpp"
#include "tuner/search/decision.hpp"
#include "tuner/search/recurrent_tune.hpp"

namespace leanattn {
namespace {

/// A step of the gated delta rule with one head, one token a request and an fp32 state.
void step_on_host(const RecurrentProblem& problem, const LeanRecurrentArgs& args, int requests) {
  const auto keys = static_cast<std::size_t>(problem.key_dim), values = static_cast<std::size_t>(problem.value_dim);
  const auto at = [&](const void* data, long long stride, int request, std::size_t i) {
    const auto* row = static_cast<const std::uint16_t*>(data) + request * stride;
    return static_cast<float>(value_of(problem.dtype, row[i]));
  };
  for (int request = 0; request < requests; ++request) {
    auto* const o = static_cast<std::uint16_t*>(args.o) + request * args.o_stride;
    std::fill_n(o, values, std::uint16_t{0});
    const int slot = args.slots[request * args.slots_stride];
    if (slot < args.first_slot || slot >= args.slot_count) continue;
    RecurrentToken<float> token{.q = std::vector<float>(keys),
                                .k = std::vector<float>(keys),
                                .v = std::vector<float>(values),
                                .gates = {at(args.a, args.a_stride, request, 0) + args.dt_bias[0]},
                                .weight = at(args.b, args.b_stride, request, 0)};
    for (std::size_t i = 0; i < keys; ++i) token.q[i] = at(args.q, args.q_stride, request, i);
    for (std::size_t i = 0; i < keys; ++i) token.k[i] = at(args.k, args.k_stride, request, i);
    for (std::size_t i = 0; i < values; ++i) token.v[i] = at(args.v, args.v_stride, request, i);
    auto* const state = reinterpret_cast<float*>(args.state) + slot * args.state_stride;
    std::vector<float> out(values);
    take_token<float>(problem, {.a_log = args.a_log[0], .scale = args.scale, .norm_eps = args.norm_eps}, token,
                      std::span(state, keys * values), out);
    for (std::size_t i = 0; i < values; ++i) o[i] = bits_of(problem.dtype, out[i]);
  }
}

class RecurrentTune : public testing::Test {
 protected:
  static constexpr int kCheckedRequests = 2;
  static void SetUpTestSuite() { cubins = open_cubin_db(std::nullopt, nullptr); }
  static void TearDownTestSuite() { cubins.reset(); }

  void SetUp() override {
    if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
    request.problem.qk_heads = request.problem.v_heads = 1;
    request.problem.key_dim = request.problem.value_dim = 32;
    request.batches = {2};
    request.policy = L2Policy::warm;
    fake_gpu() = tuned_gpu();
    fake_gpu().run = [this](const std::string& kernel, void** params) {
      if (!kernel.starts_with("recurrent_")) return;
      auto args = *static_cast<const LeanRecurrentArgs*>(params[0]);
      if (!wrong.empty() && kernel.find(wrong) != std::string::npos) args.scale *= 2;
      step_on_host(request.problem, args, kCheckedRequests);
    };
    fake_gpu().launch_us = [this](const std::string& kernel) {
      const auto given = std::find_if(times.begin(), times.end(),
                                      [&](const auto& of) { return kernel.find(of.first) != std::string::npos; });
      return given != times.end() ? given->second : kernel.starts_with("recurrent_") ? 3.0 : 1.5;
    };
    db = TuningDb::open(std::nullopt, OpenMode::read_write, nullptr).value();
  }
  void TearDown() override { fake_gpu() = FakeGpu{}; }

  RecurrentTuneSummary tune(const RecurrentProgressSink& progress = {}) {
    auto summary = tune_recurrent(request, *db, cubins.get(), progress, &stop);
    if (!summary) ADD_FAILURE() << summary.error().message << summary.error().log;
    return summary.value_or(RecurrentTuneSummary{});
  }
  std::vector<Trial> trials() { return db->trials(model(), "", "", "").value(); }
  static DeviceFacts device() { return device_facts(0).value(); }
  static DeviceModel model() { return device_model(device()); }
  static int count(const std::vector<Trial>& trials, TrialStatus status) {
    return static_cast<int>(
        std::count_if(trials.begin(), trials.end(), [&](const Trial& trial) { return trial.status == status; }));
  }

  RecurrentTuneRequest request;
  std::string wrong;                                  ///< kernels with this in their names give wrong results
  std::vector<std::pair<std::string, double>> times;  ///< by a part of the kernel's name
  static inline std::unique_ptr<CubinCache> cubins;   ///< of all tests, so that each kernel is compiled once
  std::unique_ptr<TuningDb> db;
  std::atomic<bool> stop = false;
};

constexpr const char* kFast = "_w2x8_l8_";
constexpr RecurrentTunables kFastTunables{.warps = 2, .warp_rows = 8, .row_lanes = 8};

TEST_F(RecurrentTune, TheFastestKernelWinsAndEveryTrialIsKept) {
  request.batches = {2, 5};
  times = {{kFast, 2.0}};
  ASSERT_NE(default_spec(device(), request.problem, 2).tunables, kFastTunables) << "nothing would be found";
  const RecurrentTuneSummary summary = tune();
  EXPECT_GT(summary.candidates, 8);
  EXPECT_EQ(summary.rejected, 0);
  EXPECT_EQ(summary.incorrect, 0) << summary.failure;
  ASSERT_EQ(summary.steps.size(), 2u);
  for (const TunedRecurrentStep& step : summary.steps) {
    ASSERT_TRUE(step.winner);
    EXPECT_EQ(step.winner->tunables, kFastTunables);
    EXPECT_EQ(step.winner->problem, request.problem);
    EXPECT_NEAR(step.median_us, 2.0, 1e-3);
    EXPECT_NEAR(step.copy_us, 1.5, 1e-3);
    EXPECT_NEAR(step.by_rule_us, 3.0, 1e-3) << "it is confirmed beside the winner";
    EXPECT_EQ(step.timed, summary.candidates);
    EXPECT_TRUE(step.finished);
  }
  const auto kept = trials();
  ASSERT_EQ(kept.size(), 2u * (static_cast<unsigned>(summary.candidates) + 1)) << "one each, and the copy";
  EXPECT_EQ(count(kept, TrialStatus::ok), 2);
  for (const Trial& trial : kept) {
    EXPECT_GE(trial.samples, kFewestRounds);
    EXPECT_EQ(trial.policy, "warm");
    EXPECT_TRUE(batch_from_json(trial.shape));
    EXPECT_EQ(recurrent_problem_from_json(trial.problem).value(), request.problem);
    if (is_copy_config(trial.config)) continue;
    const auto spec = recurrent_spec_from_json(trial.config);
    ASSERT_TRUE(spec) << trial.config;
    EXPECT_EQ(trial.kernel_revision, kernel_revision(*spec));
  }
  const auto winners = db->winners(model(), std::nullopt, current_software(device())).value();
  ASSERT_EQ(winners.size(), 2u);
  EXPECT_FALSE(winners[0].stale);
  EXPECT_GE(db->sessions().value().at(0).trials, std::ssize(kept));
  EXPECT_FALSE(db->sessions().value().at(0).finished.empty());
}

TEST_F(RecurrentTune, KernelsWithWrongResultsNeverWin) {
  times = {{kFast, 2.0}};
  wrong = kFast;
  const RecurrentTuneSummary summary = tune();
  EXPECT_EQ(summary.incorrect, 1);
  EXPECT_NE(summary.failure, "");
  ASSERT_TRUE(summary.steps.at(0).winner);
  EXPECT_NE(summary.steps[0].winner->tunables, kFastTunables);
  const auto kept = trials();
  EXPECT_EQ(count(kept, TrialStatus::incorrect), 1);
  EXPECT_EQ(std::ssize(kept), summary.candidates + 1);
}

TEST_F(RecurrentTune, WhatCannotBeLaunchedIsKeptWithItsReason) {
  request.batches = {1, 4};
  fake_gpu().fail_once["cuLaunchKernelEx"] = CUDA_ERROR_INVALID_VALUE;
  const RecurrentTuneSummary summary = tune();
  EXPECT_EQ(summary.rejected, 1);
  EXPECT_EQ(count(trials(), TrialStatus::launch_fail), 2) << "of each size";
  EXPECT_EQ(count(trials(), TrialStatus::ok), 2 * static_cast<int>(request.effort.finalists)) << "equally fast";
}

TEST_F(RecurrentTune, AnInterruptKeepsWhatIsDecided) {
  request.batches = {1, 4, 8};
  times = {{kFast, 2.0}};
  const RecurrentTuneSummary summary = tune([&](const RecurrentProgress& progress) {
    if (progress.batch == 4 && progress.phase == "confirm") stop = true;
  });
  EXPECT_TRUE(summary.interrupted);
  ASSERT_EQ(summary.steps.size(), 2u) << "the third was not begun";
  EXPECT_TRUE(summary.steps[0].finished);
  EXPECT_FALSE(summary.steps[1].finished);
  for (const TunedRecurrentStep& step : summary.steps) EXPECT_EQ(step.winner.value().tunables, kFastTunables);
  const auto kept = trials();
  EXPECT_EQ(count(kept, TrialStatus::ok), 2);
  EXPECT_EQ(std::ssize(kept), 2 * (summary.candidates + 1));
  EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [](const Trial& trial) { return trial.reason == kCutShort; }));
}

TEST_F(RecurrentTune, ABatchThatDoesNotFitIsLeftOut) {
  request.batches = {2, 65535, 4};
  times = {{kFast, 2.0}};
  fake_gpu().memory_bytes = 128 << 20;
  const RecurrentTuneSummary summary = tune();
  ASSERT_EQ(summary.steps.size(), 3u);
  EXPECT_EQ(summary.steps[0].winner.value().tunables, kFastTunables);
  EXPECT_FALSE(summary.steps[1].winner);
  EXPECT_NE(summary.steps[1].no_memory, "");
  EXPECT_EQ(summary.steps[2].winner.value().tunables, kFastTunables);
  request.batches = {65535};
  const auto none = tune_recurrent(request, *db, cubins.get(), {}, &stop);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::out_of_memory);
}

TEST_F(RecurrentTune, AnInterruptDuringTheChecksTimesNothing) {
  const RecurrentTuneSummary summary = tune([&](const RecurrentProgress& progress) { stop = progress.done == 1; });
  EXPECT_TRUE(summary.interrupted);
  EXPECT_TRUE(summary.steps.empty());
  EXPECT_TRUE(trials().empty());
}

TEST_F(RecurrentTune, ABatchIsMissingUntilItHasAWinnerOfTodaysKernels) {
  request.batches = {2};
  tune();
  request.batches = {1, 2, 4};
  EXPECT_EQ(missing_batches(request, *db, device()).value(), (std::vector<int>{1, 4}));
  request.policy = L2Policy::cold;
  EXPECT_EQ(missing_batches(request, *db, device())->size(), 3u);
  request.policy = L2Policy::warm, request.problem.tokens = 2;
  EXPECT_EQ(missing_batches(request, *db, device())->size(), 3u);

  request.problem.tokens = 1;
  const RecurrentSpec spec = default_spec(device(), request.problem, 4);
  const std::string session = db->begin_session(model(), current_environment(device()), "of another library").value();
  const Trial trial{.problem = to_json(request.problem),
                    .shape = batch_to_json(4),
                    .policy = "warm",
                    .config = to_json(spec),
                    .samples = 12,
                    .median_us = 3,
                    .low_us = 3,
                    .high_us = 3,
                    .kernel_revision = "of another kernel"};
  ASSERT_TRUE(db->add_trial(session, trial));
  ASSERT_TRUE(db->rebuild_winners());
  EXPECT_EQ(missing_batches(request, *db, device()).value(), (std::vector<int>{1, 4})) << "it is stale";
}

TEST_F(RecurrentTune, AnEarlierWinnerIsConfirmedAndGivesWayToAFasterOne) {
  times = {{kFast, 2.0}};
  tune();
  times = {{kFast, 2.9}, {"_w1x8_l8_", 2.5}};
  const RecurrentTuneSummary again = tune();
  EXPECT_EQ(again.steps.at(0).winner.value().tunables, (RecurrentTunables{.warps = 1, .warp_rows = 8, .row_lanes = 8}));
  const auto kept = trials();
  const auto last = std::find_if(kept.rbegin(), kept.rend(), [](const Trial& trial) {
    return trial.config.find("\"row_lanes\":8,\"warp_rows\":8,\"warps\":2") != std::string::npos;
  });
  ASSERT_NE(last, kept.rend());
  EXPECT_EQ(last->status, TrialStatus::pruned);
  EXPECT_GE(last->samples, request.effort.confirm_rounds_min);
}

}  // namespace
}  // namespace leanattn
