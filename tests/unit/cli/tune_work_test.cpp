// tune_work_test.cpp -- the stale winners of a database are measured again, each shape once.
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

}  // namespace
}  // namespace leanattn
