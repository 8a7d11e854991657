// The oracle of operation `recurrent` gives what the formulas give by hand.
#include "tuner/oracle/recurrent_oracle.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

/// A head of one row and two columns, and one token.
struct OneRow {
  RecurrentProblem problem;
  RecurrentHead<double> head;
  RecurrentToken<double> token{.q = {1, 2}, .k = {3, 4}, .v = {5}, .gates = {0}};
  std::vector<double> state{2, -1};

  double take() {
    std::vector<double> o(1);
    take_token<double>(problem, head, token, state, o);
    return o[0];
  }
};

RecurrentProblem problem_of(RecurrentKind kind, Gates gates) {
  RecurrentProblem problem = usual_problem(kind);
  problem.gates = gates, problem.normalises = false;
  return problem;
}

TEST(RecurrentOracle, GatedDeltaReplacesWhatTheDecayedStateHasAtTheKey) {
  OneRow row{.problem = problem_of(RecurrentKind::gated_delta, Gates::given)};
  row.token.gates = {std::log(0.5)};
  row.token.weight = 0.25;
  row.head.scale = 0.1;
  // S = 0.5 (2, -1); S k = 3 - 2 = 1; u = 0.25 (5 - 1) = 1; S = (1 + 3, -0.5 + 4); o = 0.1 (4 + 7)
  EXPECT_NEAR(row.take(), 1.1, 1e-12);
  EXPECT_NEAR(row.state[0], 4, 1e-12);
  EXPECT_NEAR(row.state[1], 3.5, 1e-12);
}

TEST(RecurrentOracle, AReplayDoesWhatTheTokenDid) {
  for (const RecurrentKind kind : kRecurrentKinds) {
    if (update_of(kind).erasure == Erasure::vectors) continue;
    OneRow row{.problem = problem_of(kind, update_of(kind).gates.front())};
    row.problem.normalises = true;
    if (update_of(kind).decay == Decay::channel) row.token.gates = {0.5, -0.25};
    if (update_of(kind).erasure == Erasure::channels) row.token.erase = {0.5, 1}, row.token.write = {2};
    std::vector<double> o(1), replayed = row.state;
    const auto entry = take_token<double>(row.problem, row.head, row.token, row.state, o);
    EXPECT_EQ(entry.k, row.token.k) << "as it was given";
    replay<double>(entry, replayed);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(replayed[i], row.state[i], 1e-12) << to_string(kind);
  }
}

TEST(RecurrentOracle, WithBetaOneAndANormalisedKeyTheStateHoldsVAtTheKey) {
  OneRow row{.problem = problem_of(RecurrentKind::gated_delta, Gates::given)};
  row.problem.normalises = true;
  row.token.q = row.token.k;
  EXPECT_NEAR(row.take(), 5, 1e-12);
}

TEST(RecurrentOracle, TheNormsEpsilonIsFelt) {
  OneRow row{.problem = problem_of(RecurrentKind::gated_delta, Gates::given)};
  row.problem.normalises = true;
  row.head.norm_eps = 75;  // |k|^2 = 25 becomes 100, so k = (0.3, 0.4) and S k = 0.2
  row.token.q = {0, 0};
  EXPECT_EQ(row.take(), 0);
  EXPECT_NEAR(row.state[0], 2 + 4.8 * 0.3, 1e-12);
}

TEST(RecurrentOracle, SoftplusGatesAreThoseOfTheModels) {
  OneRow row{.problem = problem_of(RecurrentKind::gated_delta, Gates::softplus)};
  row.head.a_log = std::log(2.0);
  row.token.gates = {std::log(std::exp(1.0) - 1)};  // softplus is 1, and the factor e^-2
  row.token.weight = -std::log(3.0);                // sigmoid is 1/4
  row.token.v = {2 * std::exp(-2)};                 // which is S k already: nothing is to be replaced
  row.take();
  EXPECT_NEAR(row.state[0], 2 * std::exp(-2), 1e-12);
  EXPECT_NEAR(row.state[1], -std::exp(-2), 1e-12);
}

TEST(RecurrentOracle, KdaDecaysEachChannelAndItsOtherGatesAreBounded) {
  OneRow row{.problem = problem_of(RecurrentKind::kda, Gates::bounded)};
  row.head.lower_bound = -5;
  row.token.gates = {-1000, 1000};  // factors 1 and e^-5
  row.token.weight = -1000;         // beta 0
  EXPECT_NEAR(row.take(), 2 - 2 * std::exp(-5), 1e-12);
  EXPECT_NEAR(row.state[0], 2, 1e-12);
  EXPECT_NEAR(row.state[1], -std::exp(-5), 1e-12);
}

TEST(RecurrentOracle, Mamba2StepsByDtAndSkips) {
  OneRow row{.problem = problem_of(RecurrentKind::mamba2, Gates::softplus)};
  row.head.skip = 10;
  row.token.gates = {std::log(std::exp(0.5) - 1)};  // dt = 0.5; A = -1
  const double decay = std::exp(-0.5);
  // S = decay (2, -1) + 0.5 5 (3, 4); o = S C + 10 5
  EXPECT_NEAR(row.take(), decay * 0 + 2.5 * 11 + 50, 1e-12);
  EXPECT_NEAR(row.state[0], 2 * decay + 7.5, 1e-12);
}

TEST(RecurrentOracle, LightningDecaysByItsHeadsConstant) {
  OneRow row{.problem = problem_of(RecurrentKind::lightning, Gates::constant)};
  row.token.gates = {-std::log(2.0)};
  EXPECT_NEAR(row.take(), 0.5 * 0 + 5 * 11, 1e-12);
  EXPECT_NEAR(row.state[1], -0.5 + 20, 1e-12);
}

TEST(RecurrentOracle, GlaDecaysEachChannelByWhatIsGiven) {
  OneRow row{.problem = problem_of(RecurrentKind::gla, Gates::given)};
  row.token.gates = {0, -std::log(4.0)};
  row.token.v = {0};
  EXPECT_NEAR(row.take(), 2 - 0.5, 1e-12);
}

TEST(RecurrentOracle, Gdn2TakesOutAndLetsInByChannels) {
  OneRow row{.problem = problem_of(RecurrentKind::gdn2, Gates::given)};
  row.token.gates = {std::log(0.5), 0};
  row.token.erase = {0.25, 0.5}, row.token.write = {0.2};
  // S = (1, -1); S (erase k) = 0.75 - 2; u = 0.2 5 + 1.25; S = (1 + 2.25 3, -1 + 2.25 4); o = S q
  EXPECT_NEAR(row.take(), 7.75 + 2 * 8, 1e-12);
  EXPECT_NEAR(row.state[0], 7.75, 1e-12);
  // With gates that are worked out, these are sigmoids: 1/2 of 0.
  OneRow halves{.problem = problem_of(RecurrentKind::gdn2, Gates::softplus)};
  halves.token.gates = {-1000, -1000};
  halves.token.erase = {0, 0}, halves.token.write = {0};
  halves.take();  // u = (5 - (6 - 4)) / 2
  EXPECT_NEAR(halves.state[0], 2 + 1.5 * 3, 1e-12);
}

TEST(RecurrentOracle, Gdn2WithTheSameFactorEverywhereIsKda) {
  OneRow kda{.problem = problem_of(RecurrentKind::kda, Gates::given)}, gdn2 = kda;
  gdn2.problem.kind = RecurrentKind::gdn2;
  kda.token.gates = gdn2.token.gates = {-0.5, -2};
  kda.token.weight = 0.7, gdn2.token.erase = {0.7, 0.7}, gdn2.token.write = {0.7};
  EXPECT_NEAR(kda.take(), gdn2.take(), 1e-12);
  EXPECT_NEAR(kda.state[1], gdn2.state[1], 1e-12);
}

TEST(RecurrentOracle, Rwkv7AddsWhatTheStateHadBeforeItDecayed) {
  OneRow row{.problem = problem_of(RecurrentKind::rwkv7, Gates::given)};
  row.token.gates = {std::log(0.5), std::log(0.25)};
  row.token.erase = {1, 3}, row.token.write = {10, -20};
  // S erase = 2 - 3 = -1; S = (1, -0.25) - (10, -20) + 5 (3, 4); o = S q
  EXPECT_NEAR(row.take(), 6 + 2 * 39.75, 1e-12);
  EXPECT_NEAR(row.state[0], 6, 1e-12);
  EXPECT_NEAR(row.state[1], 39.75, 1e-12);
}

TEST(RecurrentOracle, AConvolutionSumsTheTokensOfAChannelAndSiluFollows) {
  const std::vector<double> weight{2, -1, 0.5}, inputs{3, 4, 2 * std::log(3.0) - 4};
  // 6 - 4 + ln 3 - 2 = ln 3, whose sigmoid is 3/4; with a bias of -ln 3 nothing is left
  EXPECT_NEAR(convolve<double>(weight, 0, inputs), 0.75 * std::log(3.0), 1e-12);
  EXPECT_NEAR(convolve<double>(weight, -std::log(3.0), inputs), 0, 1e-12);
}

TEST(RecurrentOracle, AGatedOutputIsNormalisedOverTheHeadFirst) {
  RecurrentProblem problem;
  problem.output_gate = OutputGate::silu;
  const std::vector<double> weight{2, 10}, z{0, std::log(3.0)};
  std::vector<double> o{1, 7};  // the mean of the squares is 25
  gate_output<double>(problem, 11, weight, z, o);
  EXPECT_EQ(o[0], 0);
  EXPECT_NEAR(o[1], 7.0 / 6 * 10 * 0.75 * std::log(3.0), 1e-12);
  problem.output_gate = OutputGate::sigmoid;
  o = {1, 7};
  gate_output<double>(problem, 11, weight, z, o);
  EXPECT_NEAR(o[0], 1.0 / 6 * 2 * 0.5, 1e-12);
}

TEST(RecurrentOracle, Mamba2GatesBeforeItNormalises) {
  RecurrentProblem problem;
  problem.output_gate = OutputGate::silu_first;
  const double half = 0.75 * std::log(3.0);  // silu(ln 3)
  const std::vector<double> weight{2, 10}, z{0, std::log(3.0)};
  std::vector<double> o{100, 8 / half};  // 0 and 8, whose mean square is 32
  gate_output<double>(problem, 4, weight, z, o);
  EXPECT_EQ(o[0], 0);
  EXPECT_NEAR(o[1], 80.0 / 6, 1e-12);
}

}  // namespace
}  // namespace leanattn
