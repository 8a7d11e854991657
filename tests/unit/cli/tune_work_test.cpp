// tune_work_test.cpp -- the stale winners of a database are measured again, each shape once; shapes that have a winner
// are left out.
#include "cli/commands/tune_work.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/tuning/tuning_db.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/lookup/device_identity.hpp"

namespace leanattn {
namespace {

class StaleWork : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string warning;
    db = std::move(TuningDb::open(std::nullopt, OpenMode::read_write, &warning).value());
  }

  void won(const DeviceFacts& device, const std::string& revision, const Shape& shape, const char* policy = "cold") {
    Environment environment = current_environment(device);
    environment.library_revision = revision;
    const auto session = db->begin_session(device_model(device), environment, "").value();
    Trial trial;
    trial.problem = to_json(DecodeProblem{}), trial.shape = to_json(shape), trial.policy = policy;
    trial.config = "{}", trial.samples = 15, trial.median_us = trial.low_us = trial.high_us = 10;
    ASSERT_TRUE(db->add_trial(session, trial));
    ASSERT_TRUE(db->finish_session(session));
    ASSERT_TRUE(db->rebuild_winners());
  }

  std::unique_ptr<TuningDb> db;
  const DeviceFacts hopper = facts_for_arch({9, 0, true}, 132).value(), ada = facts_for_arch({8, 9, false}, 58).value();
  const Shape small{.batch = 1, .longest_context = 1024}, large{.batch = 8, .longest_context = 65536};
};

TEST_F(StaleWork, HasEveryStaleShapeOfAnyDeviceOnce) {
  won(hopper, "an older one", small);
  won(hopper, current_environment(hopper).library_revision, large);
  won(ada, "an older one", small);
  won(ada, "an older one", large);
  const DeviceFacts both[] = {hopper, ada};
  const auto works = stale_work(*db, both);
  ASSERT_TRUE(works);
  ASSERT_EQ(works->size(), 1u);
  EXPECT_EQ(works->front().workload.shapes, (std::vector<Shape>{small, large}));

  const auto of_one = stale_work(*db, std::span(both).first(1));
  ASSERT_TRUE(of_one);
  ASSERT_EQ(of_one->size(), 1u);
  EXPECT_EQ(of_one->front().workload.shapes, std::vector<Shape>{small});
}

TEST_F(StaleWork, KeepsPoliciesApart) {
  won(hopper, "an older one", small);
  won(hopper, "an older one", small, "warm");
  const auto works = stale_work(*db, std::span(&hopper, 1));
  ASSERT_TRUE(works);
  ASSERT_EQ(works->size(), 2u);
  EXPECT_NE(works->front().policy, works->back().policy);
}

TEST_F(StaleWork, IsEmptyWhenAllWinnersAreOfThisSoftware) {
  won(hopper, current_environment(hopper).library_revision, small);
  const auto works = stale_work(*db, std::span(&hopper, 1));
  ASSERT_TRUE(works);
  EXPECT_TRUE(works->empty());
}

class MissingWork : public StaleWork {
 protected:
  std::vector<TuneWork> works(const std::vector<Shape>& shapes, const std::vector<double>& weights = {}) const {
    return {{.workload = {.model = {}, .problem = {}, .shapes = shapes}, .weights = weights, .policy = L2Policy::cold}};
  }
  std::vector<TuneWork> missing(std::vector<TuneWork> of, std::span<const DeviceFacts> devices) {
    auto left = missing_work(std::move(of), *db, devices);
    EXPECT_TRUE(left);
    return left.value();
  }
  std::string revision() const { return current_environment(hopper).library_revision; }
};

TEST_F(MissingWork, LeavesOutShapesThatHaveAWinnerOfThisSoftwareAndKeepsTheOthersWeights) {
  won(hopper, revision(), small);
  const auto left = missing(works({large, small, {.batch = 2, .longest_context = 512}}, {3, 2, 1}), {&hopper, 1});
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left.front().workload.shapes, (std::vector<Shape>{large, {.batch = 2, .longest_context = 512}}));
  EXPECT_EQ(left.front().weights, (std::vector<double>{3, 1}));
  EXPECT_TRUE(missing(works({small}), {&hopper, 1}).empty()) << "a work without shapes is none";
}

TEST_F(MissingWork, TakesNoWinnerOfAnotherSoftwarePolicyOrProblemForOne) {
  won(hopper, "an older one", small);
  won(hopper, revision(), small, "warm");
  EXPECT_EQ(missing(works({small}), {&hopper, 1}).size(), 1u);
  won(hopper, revision(), small);
  auto paged = works({small});
  paged.front().workload.problem.features.page_size = 16;
  EXPECT_EQ(missing(paged, {&hopper, 1}).size(), 1u);
  EXPECT_TRUE(missing(works({small}), {&hopper, 1}).empty());
}

TEST_F(MissingWork, CountsShapesThatDifferInMaxBatchAloneAsOne) {
  Shape planned = small;
  planned.max_batch = 64;
  won(hopper, revision(), planned);
  EXPECT_TRUE(missing(works({small}), {&hopper, 1}).empty());
  won(hopper, revision(), large);
  Shape asked = large;
  asked.max_batch = 256;
  EXPECT_TRUE(missing(works({asked}), {&hopper, 1}).empty());
}

TEST_F(MissingWork, KeepsAShapeThatOneOfSeveralDevicesLacks) {
  won(hopper, revision(), small);
  const DeviceFacts both[] = {hopper, ada};
  EXPECT_EQ(missing(works({small}), both).size(), 1u);
  won(ada, revision(), small);
  EXPECT_TRUE(missing(works({small}), both).empty());
}

}  // namespace
}  // namespace leanattn
