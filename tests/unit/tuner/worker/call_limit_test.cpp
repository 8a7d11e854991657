// call_limit_test.cpp -- the time limits of workers' calls.
#include "tuner/worker/call_limit.hpp"

#include <gtest/gtest.h>
#include <optional>

#include "runtime/lookup/default_config.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"
#include "tuner/worker/options.hpp"

namespace leanattn {
namespace {

using std::chrono::milliseconds;
using Kind = WorkerCall::Kind;

class CallLimits : public ::testing::Test {
 protected:
  WorkerCall call(Kind kind, const Shape& of, std::size_t candidates) {
    step.emplace(device, problem, of);
    return {.kind = kind, .step = &*step, .configs = std::vector<Config>(candidates, default_config(*step))};
  }

  DeviceFacts device = simulated_device();
  DecodeProblem problem;
  std::optional<DecodeStep> step;
};

TEST_F(CallLimits, AreFarAboveThePredictionAndNeverBelowHalfAMinute) {
  for (const Shape& of : {Shape{.batch = 1, .longest_context = 1}, Shape{.batch = 1, .longest_context = 8192},
                          Shape{.batch = 64, .longest_context = 131072}}) {
    for (const Kind kind : {Kind::check, Kind::time}) {
      const WorkerCall asked = call(kind, of, 24);
      const double predicted_us = 24 * predict_us(default_parameters(device), *step, asked.configs[0], 1);
      EXPECT_GE(default_call_limit(asked), milliseconds(30'000));
      EXPECT_GE(static_cast<double>(default_call_limit(asked).count()) * 1e3, 100 * predicted_us);
    }
    EXPECT_GE(default_call_limit(call(Kind::prepare, of, 0)), milliseconds(60'000));
  }
  EXPECT_GE(default_call_limit({.kind = Kind::start}), milliseconds(60'000));
  EXPECT_GE(default_call_limit({.kind = Kind::compile}), milliseconds(60'000));
}

TEST_F(CallLimits, GrowWithTheWork) {
  const Shape small{.batch = 1, .longest_context = 1024}, large{.batch = 64, .longest_context = 1 << 20};
  for (const Kind kind : {Kind::prepare, Kind::check, Kind::time})
    EXPECT_LT(default_call_limit(call(kind, small, 1)), default_call_limit(call(kind, large, 1)));
  EXPECT_LT(default_call_limit(call(Kind::time, large, 1)), default_call_limit(call(Kind::time, large, 24)));
}

TEST_F(CallLimits, StayWithinADayForAbsurdShapes) {
  const Shape absurd{.batch = 1 << 20, .longest_context = std::int64_t{1} << 40};
  for (const Kind kind : {Kind::prepare, Kind::check, Kind::time}) {
    EXPECT_GE(default_call_limit(call(kind, absurd, 1)), milliseconds(30'000));
    EXPECT_LE(default_call_limit(call(kind, absurd, 1)), std::chrono::hours(24));
  }
}

TEST_F(CallLimits, OfCandidatesCanBeSetAndTheOthersStayAsTheyAre) {
  const Shape of{.batch = 1, .longest_context = 8192};
  const WorkerOptions options{.candidate_limit = milliseconds(123)};
  EXPECT_EQ(limit_of(options, call(Kind::check, of, 1)), milliseconds(123));
  EXPECT_EQ(limit_of(options, call(Kind::time, of, 24)), milliseconds(123));
  for (const Kind kind : {Kind::start, Kind::compile, Kind::prepare})
    EXPECT_EQ(limit_of(options, call(kind, of, 0)), default_call_limit(call(kind, of, 0)));
}

}  // namespace
}  // namespace leanattn
