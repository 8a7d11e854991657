// group_session_test.cpp -- tuning of groups on simulated GPUs: what is raced in the group, where its winners are kept,
// and which look-ups they answer.
#include "tuner/search/group_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "cache/layers.hpp"
#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"

namespace leanattn {
namespace {

constexpr std::uint64_t kGroupSeed = 20261124;

class GroupSession : public ::testing::Test {
 protected:
  GroupSession() {
    RecordProperty("seed", std::to_string(kGroupSeed));
    std::string warning;
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, &warning));
    request.problem.features.context_parallel = 2;
    request.rank_devices = {0, 1};
    request.shapes = {{.batch = 4, .longest_context = 16384}};
    request.compile_threads = 2;
    environment.library_revision = "r1";
    effort = brief_effort();
  }

  Result<TuneSummary> run(const TuneRequest& asked, SimulatedGpu& gpu) {
    return run_session(asked, device, environment, gpu, *db, effort, {}, nullptr);
  }
  /// The part on one simulated GPU, then the group on another, on which other kernels are fast.
  TuneSummary tune(GroupLink link = GroupLink::nvlink) {
    const TuneRequest part = part_request(request);
    SimulatedGpu alone(part.problem, kGroupSeed);
    const auto tuned = run(part, alone);
    EXPECT_TRUE(tuned) << tuned.error().message;
    samples_of_part = alone.samples.size();
    TuneRequest group = request;
    group.problem.group_link = link;
    SimulatedGpu together(group.problem, kGroupSeed);
    together.personality = 0.2;
    const auto summary = run(group, together);
    EXPECT_TRUE(summary) << summary.error().message;
    tried = together.samples;
    untested = together.timed_without_check.size();
    return summary ? *summary : TuneSummary{};
  }
  WinnerTable table() {
    LayeredWinners layered;
    auto winners = db->winners(device_model(device)).value();
    for (Winner& winner : winners) layered.entries.push_back({std::move(winner), "user"});
    return WinnerTable::build(device, std::move(layered));
  }
  Choice look_up(GroupLink link, int ranks = 2) {
    DecodeProblem problem = request.problem;
    problem.group_link = link;
    problem.features.context_parallel = ranks;
    return table().find(problem, request.shapes.front());
  }
  std::vector<Config> candidates() const {
    std::vector<Config> configs;
    for (const auto& [text, count] : tried) configs.push_back(config_from_json(text).value());
    return configs;
  }

  DeviceFacts device = simulated_device();
  TuneRequest request;
  Environment environment;
  SearchEffort effort;
  std::unique_ptr<TuningDb> db;
  std::map<std::string, int> tried;  ///< what was timed in the group, by configuration
  std::size_t samples_of_part = 0, untested = 0;
};

TEST_F(GroupSession, RacesWhatIsBestForThePartAndKeepsWhatIsBestInTheGroup) {
  const TuneSummary summary = tune();
  ASSERT_EQ(summary.shapes.size(), 1u);
  const TunedShape& tuned = summary.shapes.front();
  EXPECT_TRUE(tuned.finished);
  EXPECT_GT(tuned.raced, 1);
  EXPECT_EQ(untested, 0u) << "every candidate is checked before it is timed";
  EXPECT_TRUE(in_group(tuned.winner.spec.features));
  SimulatedGpu together(request.problem, kGroupSeed);
  together.personality = 0.2;
  together.set_shape(request.shapes.front());
  double best = 1e9;
  std::set<std::string> kernels;
  for (const Config& config : candidates()) {
    best = std::min(best, together.true_us(config));
    kernels.insert(kernel_name(config.spec));
  }
  EXPECT_LE(together.true_us(tuned.winner), best * 1.02);
  EXPECT_GE(kernels.size(), 6u);
  EXPECT_LE(tried.size(), 200u) << "a screen of the best, and no search of everything";
}

TEST_F(GroupSession, OnlyKernelsWithTheGroupsOrderOfColumnsAndResidentGridsAreTried) {
  request.rank_devices = {0, 0};
  tune(GroupLink::same_gpu);
  ASSERT_FALSE(tried.empty());
  const auto order = order_of_group(device, request.problem);
  for (const Config& config : candidates()) {
    EXPECT_EQ(family_of(config.spec).exchange_order, order) << kernel_name(config.spec);
    const std::int64_t resident = std::int64_t{guess_resident(device, config.spec)} * device.sm_count;
    EXPECT_LE(config.grid, resident / 2) << "two ranks share the GPU";
  }
}

TEST_F(GroupSession, WhatLookUpsAnswerIsComparedAsItFitsBesideTheOtherRanks) {
  request.rank_devices = {0, 0};
  request.problem.group_link = GroupLink::same_gpu;
  Config stored = default_config({device, request.problem, request.shapes.front()});
  const std::int64_t resident = std::int64_t{guess_resident(device, stored.spec)} * device.sm_count;
  stored.grid = resident;
  Config fits = stored;
  fits.grid = resident / 2;
  request.open_winners = [&](const DeviceModel&, const Environment&) {
    LayeredWinners layers;
    layers.entries.push_back({Winner{.problem = to_json(request.problem),
                                     .shape = to_json(request.shapes.front()),
                                     .policy = "cold",
                                     .config = to_json(stored),
                                     .median_us = 1},
                              "site"});
    return by_problem(std::move(layers));
  };
  for (const bool best : {true, false}) {
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, nullptr));
    SimulatedGpu gpu(request.problem, kGroupSeed);
    gpu.factor = [&](const Config& config) { return config == fits ? (best ? 0.5 : 2) : 1; };
    const auto summary = run(request, gpu);
    ASSERT_TRUE(summary) << summary.error().message;
    const TunedShape& tuned = summary->shapes.front();
    EXPECT_EQ(tuned.winner == fits, best);
    EXPECT_GE(gpu.samples[to_json(fits)], effort.confirm_rounds_min) << "it is there to the end";
    EXPECT_FALSE(gpu.samples.contains(to_json(stored))) << "two ranks share the GPU";
    gpu.set_shape(request.shapes.front());
    EXPECT_NEAR(tuned.looked_up_us, gpu.true_us(fits), 0.05 * tuned.looked_up_us);
  }
}

TEST_F(GroupSession, TheDefaultAndEarlierWinnersAreCompiledBesideWhatLookUpsAnswer) {
  request.problem.group_link = GroupLink::nvlink;
  const Config usual = default_config({device, request.problem, request.shapes.front()});
  const Config answer = look_up(GroupLink::nvlink).config;
  ASSERT_FALSE(answer.spec == usual.spec);
  request.budget = std::chrono::seconds(10);
  SimulatedGpu gpu(request.problem, kGroupSeed);
  gpu.tick_s = 0.05;  // so that a search which waits in vain comes to its end
  std::latch other_began{1}, over{1};
  gpu.before_compile = [&](const KernelSpec& spec) {
    if (spec == usual.spec) other_began.count_down();
    if (spec == answer.spec) {
      while (!other_began.try_wait() && !over.try_wait()) std::this_thread::yield();
    }
  };
  CompilePool compiles([&](const KernelSpec& spec) { return gpu.compile(spec); }, 2);
  ShapeQueue shapes(1, 1);
  const auto summary = run_session(request, device, environment, gpu, *db, effort, {}, nullptr, {shapes, compiles});
  over.count_down();
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_GT(summary->shapes.front().median_us, 0) << summary->shapes.front().no_winner;
}

TEST_F(GroupSession, WinnersAnswerGroupsOfTheirSizeAndLinkOnly) {
  tune(GroupLink::nvlink);
  const Choice same = look_up(GroupLink::nvlink);
  EXPECT_EQ(same.provenance, Provenance::exact);
  EXPECT_TRUE(same.tuned_group);
  EXPECT_EQ(same.tuned_link, GroupLink::nvlink);
  const Choice any = look_up(GroupLink::unknown);
  EXPECT_EQ(any.provenance, Provenance::exact) << "who does not know the link takes what there is";
  EXPECT_EQ(any.tuned_link, GroupLink::nvlink);
  for (const Choice& other : {look_up(GroupLink::pcie), look_up(GroupLink::nvlink, 4)}) {
    EXPECT_EQ(other.provenance, Provenance::nearest) << "by the part alone";
    EXPECT_FALSE(other.tuned_group);
    EXPECT_GT(other.tuned_us, 0);
  }
}

TEST_F(GroupSession, AShapeInTheBucketOfAGroupsWinnerIsAnsweredByIt) {
  tune();
  DecodeProblem problem = request.problem;
  problem.group_link = GroupLink::nvlink;
  const Choice choice = table().find(problem, {.batch = 4, .longest_context = 12000});
  EXPECT_EQ(choice.provenance, Provenance::bucket);
  EXPECT_TRUE(choice.tuned_group);
  EXPECT_EQ(family_of(choice.config.spec).exchange_order, order_of_group(device, problem));
}

TEST_F(GroupSession, LookUpsWithoutAGroupAreNotTouchedByTheTimesOfGroups) {
  const TuneRequest part = part_request(request);
  SimulatedGpu alone(part.problem, kGroupSeed);
  ASSERT_TRUE(run(part, alone));
  const Choice before = table().find(part.problem, {.batch = 1, .longest_context = 700});
  TuneRequest group = request;
  group.problem.group_link = GroupLink::nvlink;
  SimulatedGpu together(group.problem, kGroupSeed);
  ASSERT_TRUE(run(group, together));
  const Choice after = table().find(part.problem, {.batch = 1, .longest_context = 700});
  EXPECT_EQ(before.config, after.config);
  EXPECT_EQ(before.tuned_us, after.tuned_us);
  EXPECT_FALSE(after.tuned_group);
}

TEST_F(GroupSession, ThePartIsNotMeasuredAgainWithTheSameSoftware) {
  environment.driver_release = "580.1";
  tune();
  EXPECT_GT(samples_of_part, 0u);
  tune();
  EXPECT_EQ(samples_of_part, 0u);
  EXPECT_FALSE(tried.empty()) << "the group is";
  request.shapes.push_back({.batch = 1, .longest_context = 999});
  request.weights = {1, 7};
  const auto left = part_request_of_untuned(request, device, environment, *db);
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_EQ(left->shapes, std::vector<Shape>{request.shapes.back()}) << "no session begins for the others";
  EXPECT_EQ(left->weights, std::vector<double>{7});
  environment.library_revision = "r2";
  EXPECT_EQ(part_request_of_untuned(request, device, environment, *db)->shapes.size(), left->shapes.size())
      << "the kernels are the same";
  environment.driver_release = "590.1";
  EXPECT_EQ(part_request_of_untuned(request, device, environment, *db)->shapes, request.shapes);
}

TEST_F(GroupSession, WithoutAMeasurementOfThePartTheModelNamesCandidates) {
  TuneRequest group = request;
  group.problem.group_link = GroupLink::pcie;
  SimulatedGpu together(group.problem, kGroupSeed);
  const auto summary = run(group, together);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_GT(summary->shapes.front().median_us, 0);
  EXPECT_EQ(look_up(GroupLink::pcie).provenance, Provenance::exact);
}

TEST_F(GroupSession, ACandidateThatIsWrongInTheGroupNeverWins) {
  const TuneRequest part = part_request(request);
  SimulatedGpu alone(part.problem, kGroupSeed);
  ASSERT_TRUE(run(part, alone));
  TuneRequest group = request;
  group.problem.group_link = GroupLink::nvlink;
  SimulatedGpu together(group.problem, kGroupSeed);
  together.wrong = [](const Config& config) { return config.spec.fixup == FixUp::wait; };
  const auto summary = run(group, together);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->shapes.front().winner.spec.fixup, FixUp::ticket);
  EXPECT_GT(summary->shapes.front().incorrect, 0);
}

TEST_F(GroupSession, WhereNothingRunsTheErrorNamesTheCause) {
  TuneRequest group = request;
  SimulatedGpu together(group.problem, kGroupSeed);
  together.fails_check = [](const Config&) { return true; };
  together.failure = "rank 1 did not send within 2000 ms";
  const auto summary = run(group, together);
  ASSERT_FALSE(summary);
  EXPECT_EQ(summary.error().code, ErrorCode::launch_failed);
  EXPECT_NE(summary.error().message.find("rank 1 did not send"), std::string::npos) << summary.error().message;
  EXPECT_NE(summary.error().hint.find("verify --only groups"), std::string::npos);
}

TEST_F(GroupSession, RequestsDivideTheBudgetAndNameTheLink) {
  request.budget = std::chrono::seconds(100);
  const TuneRequest part = part_request(request);
  EXPECT_FALSE(in_group(part.problem.features));
  EXPECT_TRUE(part.rank_devices.empty());
  EXPECT_TRUE(part.resume);
  EXPECT_EQ(part.budget->count(), 60000);
  DeviceFacts other = device;
  const auto group = group_request(request, std::vector<DeviceFacts>{device, other}, 30);
  ASSERT_TRUE(group) << group.error().message;
  EXPECT_EQ(group->budget->count(), 70000);
  EXPECT_EQ(group_request(request, std::vector<DeviceFacts>{device}, 99)->budget->count(), 40000)
      << "a share is kept for the group";
  EXPECT_EQ(group->problem.group_link, GroupLink::same_gpu) << "both have one UUID";
  other.name = "Another GPU";
  const auto different = group_request(request, std::vector<DeviceFacts>{device, other}, 30);
  ASSERT_FALSE(different);
  EXPECT_EQ(different.error().code, ErrorCode::unsupported);
  EXPECT_NE(different.error().message.find("Another GPU"), std::string::npos) << different.error().message;
}

TEST_F(GroupSession, AnotherNumberOfGpusThanRanksIsRefused) {
  for (const std::vector<int>& devices : {std::vector<int>{}, {0}, {0, 1, 2}}) {
    request.rank_devices = devices;
    const auto valid = validate(request);
    ASSERT_FALSE(valid);
    EXPECT_EQ(valid.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(valid.error().hint.find("--device 0,1"), std::string::npos) << valid.error().hint;
  }
}

}  // namespace
}  // namespace leanattn
