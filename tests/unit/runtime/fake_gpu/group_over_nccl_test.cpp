// group_over_nccl_test.cpp -- groups over NCCL compute what attention over the whole contexts gives, in launches that
// can be captured, and refuse what cannot be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "groups_over_nccl.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

TEST_F(GroupsOverNccl, AgreeWithAttentionOverWholeContexts) {
  struct Case {
    const char* what;
    Contexts contexts;
    bool replicate, lse;
  };
  std::vector<Case> cases{{"scattered", {}, false, true}, {"replicated", {}, true, false}};
  cases.push_back({"four tokens of contiguous parts", {.q_len = 4}, false, true});
  cases.push_back({"four tokens of units in turn", {.ranks = 4, .q_len = 4, .unit = 2}, false, true});
  cases.push_back(
      {"ragged tokens with sink logits", {.q_len = 4, .unit = 1, .ragged = true, .sinks = true}, false, true});
  cases.push_back({"three ranks", {.ranks = 3, .sinks = true}, true, true});
  cases.push_back({"a window over contiguous parts", {.window = 9, .sink_tokens = 2}, false, true});
  cases.push_back({"a window over units in turn", {.ranks = 3, .q_len = 2, .unit = 4, .window = 20}, true, true});
  for (Case& one : cases) {
    groups_.clear(), engines_.clear();
    Problem problem = problem_of(one.contexts);
    problem.replicate_output = one.replicate, problem.lse = one.lse;
    make(one.contexts.ranks, problem);
    if (HasFatalFailure()) return;
    for (unsigned seed = 1; seed <= 3; ++seed) {
      one.contexts.make(seed);
      step(one.contexts, problem);
      expect_right(one.contexts, problem, one.what);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(fake_nccl().bytes_moved, 0);
}

TEST_F(GroupsOverNccl, TwoLevelsAgreeWithAttentionOverWholeContexts) {
  struct Case {
    const char* what;
    int peers;
    Contexts contexts;
    bool replicate;
  };
  std::vector<Case> cases;
  for (const bool replicate : {false, true}) {
    cases.push_back({"2 x 2", 2, {.ranks = 4, .sinks = true}, replicate});
    cases.push_back({"2 x 2, two tokens", 2, {.ranks = 4, .q_len = 2, .sinks = true}, replicate});
    cases.push_back({"3 hosts of 2", 2, {.ranks = 6, .q_len = 2, .q_heads = 12, .kv_heads = 6}, replicate});
    cases.push_back({"2 hosts of 3", 3, {.ranks = 6, .q_heads = 12, .kv_heads = 6, .sinks = true}, replicate});
    cases.push_back({"ragged tokens", 2, {.ranks = 4, .q_len = 3, .ragged = true}, replicate});
    cases.push_back({"units in turn", 2, {.ranks = 4, .unit = 2}, replicate});
    cases.push_back({"two tokens, units in turn", 2, {.ranks = 4, .q_len = 2, .unit = 2}, replicate});
    cases.push_back({"a window", 2, {.ranks = 4, .window = 12, .sink_tokens = 3}, replicate});
    cases.push_back({"a window, units in turn", 2, {.ranks = 4, .unit = 1, .window = 12}, replicate});
  }
  fake_gpu().devices = 6;
  for (Case& one : cases) {
    groups_.clear(), engines_.clear();
    Contexts& contexts = one.contexts;
    Problem problem = problem_of(contexts);
    problem.replicate_output = one.replicate;
    make_two_levels(contexts.ranks, one.peers, problem);
    if (HasFatalFailure()) return;
    contexts.make(7);
    step(contexts, problem);
    expect_right(contexts, problem, one.what);
    if (HasFatalFailure()) return;
    const LeanDecodeArgs args = last_decode_of(0);
    EXPECT_NE(args.group, nullptr);
    const FakeLaunch& kernel = *std::find_if(fake_gpu().launches.rbegin(), fake_gpu().launches.rend(),
                                             [](const FakeLaunch& l) { return l.kernel.starts_with("lean_sm"); });
    EXPECT_TRUE(kernel.cooperative) << "peers wait for each other inside the kernel";
    const bool dealt_to_all = contexts.unit > 0 && contexts.depends_on_positions();
    EXPECT_NE(kernel.kernel.find("_cp" + std::to_string(one.peers) +
                                 (one.replicate && !dealt_to_all ? "r_"
                                  : dealt_to_all                 ? "_of" + std::to_string(contexts.ranks) + "i"
                                                                 : "_")),
              std::string::npos)
        << kernel.kernel;
  }
}

TEST_F(GroupsOverNccl, AStepIsFourLaunchesInOneOrderAlsoUnderCapture) {
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  const auto made = plan(0, problem);
  ASSERT_TRUE(made) << made.error().message;
  Workspace workspace(made->workspace_bytes());
  const auto context = Context::retain(0);
  ASSERT_TRUE(context);
  {
    const auto stream = Stream::create();
    const int moved = static_cast<int>(fake_nccl().bytes_moved), waits = fake_gpu().calls["cuStreamSynchronize"];
    fake_gpu().launches.clear();
    const auto graph = Graph::capture(*stream, [&](CUstream_st* captured) {
      return made->launch(arguments(contexts, problem, 0), workspace.data, captured);
    });
    ASSERT_TRUE(graph) << graph.error().message;
    EXPECT_TRUE(fake_gpu().launches.empty()) << "nothing runs during a capture";
    EXPECT_EQ(fake_nccl().bytes_moved, moved);
    EXPECT_EQ(fake_gpu().calls["cuStreamSynchronize"], waits) << "a launch waits for nothing";
    ASSERT_TRUE(graph->launch(stream->get()));
    const auto& launches = fake_gpu().launches;
    ASSERT_EQ(launches.size(), 4u);
    EXPECT_EQ(launches[0].kernel, "begin_exchange");
    EXPECT_TRUE(launches[1].kernel.starts_with("lean_sm")) << launches[1].kernel;
    EXPECT_EQ(launches[1].kernel.find("_cp"), std::string::npos) << "the kernel of the part alone";
    EXPECT_FALSE(launches[1].programmatic);
    EXPECT_EQ(launches[2].kernel, "nccl");
    EXPECT_EQ(launches[3].kernel, "merge_partials_bf16");
  }
  cuCtxSetCurrent(nullptr);
}

TEST_F(GroupsOverNccl, PlansAreMadeBeforeACapture) {
  const Problem problem = problem_of({});
  make(2, problem);
  const auto context = Context::retain(0);
  ASSERT_TRUE(context);
  {
    const auto stream = Stream::create();
    ASSERT_EQ(cuStreamBeginCapture(stream->get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    expect_refused(plan(0, problem, stream->get()), ErrorCode::not_prepared, "is not loaded yet");
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(stream->get(), &graph), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    EXPECT_TRUE(plan(0, problem, stream->get()));
  }
  cuCtxSetCurrent(nullptr);
}

TEST_F(GroupsOverNccl, GpusThatDoNotReachEachOtherTakeItByThemselves) {
  fake_gpu().peers_reach = false;
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  open_engines(2);
  const std::int64_t bytes = Group::bytes(problem, 8).value();
  expect_refused(Group::of_engines(pointers(), bytes, GroupTransport::peers), ErrorCode::unsupported,
                 "cannot reach the memory");
  auto made = Group::of_engines(pointers(), bytes);
  ASSERT_TRUE(made) << made.error().message;
  groups_ = std::move(*made);
  contexts.make(3);
  step(contexts, problem);
  expect_right(contexts, problem, "automatic");
}

TEST_F(GroupsOverNccl, TheStreamOfAThreadIsRefused) {
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  const Plan made = plan(0, problem).value();
  Workspace workspace(made.workspace_bytes());
  const std::size_t launches = fake_gpu().launches.size();
  expect_refused(made.launch(arguments(contexts, problem, 0), workspace.data, CU_STREAM_PER_THREAD),
                 ErrorCode::invalid_argument, "stream is CU_STREAM_PER_THREAD");
  EXPECT_EQ(fake_gpu().launches.size(), launches);
}

TEST_F(GroupsOverNccl, LaunchesWaitForWorkThatNcclStillPrepares) {
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  fake_nccl().late_groups = 2;
  contexts.make(2);
  step(contexts, problem);
  EXPECT_EQ(fake_nccl().late_groups, 0);
  expect_right(contexts, problem, "late");
}

TEST_F(GroupsOverNccl, CommunicatorsOfTheCallerAreCheckedUsedAndLeftAlone) {
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  open_engines(2);
  const std::int64_t bytes = Group::bytes(problem, 8).value();
  for (int rank = 0; rank < 2; ++rank)
    groups_.push_back(Group::create(engines_[static_cast<std::size_t>(rank)], rank, 2, bytes, 1).value());
  const std::vector<ncclComm*> pair = make_fake_comms(2), three = make_fake_comms(3);
  borrowed_ = 5;
  expect_refused(groups_[0].connect_nccl(pair[1]), ErrorCode::invalid_argument,
                 "the communicator has rank 1 of 2, and the group needs rank 0 of 2");
  expect_refused(groups_[0].connect_nccl(three[0]), ErrorCode::invalid_argument, "rank 0 of 3");
  {
    const Engine elsewhere = open(3);
    Group of_another_gpu = Group::create(elsewhere, 0, 2, bytes, 1).value();
    expect_refused(of_another_gpu.connect_nccl(pair[0]), ErrorCode::invalid_argument,
                   "the communicator is of CUDA device 0, and the group of device 3");
  }
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] { EXPECT_TRUE(groups_[rank].connect_nccl(pair[rank])); });
  for (std::thread& thread : threads) thread.join();
  contexts.make(5);
  step(contexts, problem);
  expect_right(contexts, problem, "borrowed");

  // It is told, and the communicator is left to its owner.
  fake_nccl().async_error = 6;
  const Plan made = plan(0, problem).value();
  Workspace workspace(made.workspace_bytes());
  expect_refused(made.launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::group_broken,
                 "remote process exited");
  groups_.clear();
  EXPECT_EQ(fake_nccl().aborted, 0);
  EXPECT_EQ(fake_nccl().live_comms, 5);
  for (ncclComm* comm : pair) destroy_fake_comm(comm);
  for (ncclComm* comm : three) destroy_fake_comm(comm);
  borrowed_ = 0;
}

TEST_F(GroupsOverNccl, RefuseWhatCannotBe) {
  const Problem problem = problem_of({});
  const std::int64_t bytes = Group::bytes(problem, 8).value();
  open_engines(1);
  Group peers = Group::create(engines_[0], 0, 2, bytes).value(),
        alone = Group::create(engines_[0], 0, 2, bytes, 1).value();
  expect_refused(peers.connect_nccl(Group::NcclId{}), ErrorCode::invalid_argument,
                 "all 2 ranks of the group are peers");
  expect_refused(alone.export_blob(), ErrorCode::invalid_argument, "a rank without peers has nothing to export");
  for (const int wrong : {-1, 3, 4})
    expect_refused(Group::create(engines_[0], 0, 4, bytes, wrong == 4 ? 8 : wrong), ErrorCode::invalid_argument,
                   "peers is " + std::to_string(wrong == 4 ? 8 : wrong));
  leanattn_nccl_options options;
  leanattn_nccl_options_init(&options);
  EXPECT_EQ(leanattn_group_connect_nccl(alone.get(), &options), LEANATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(leanattn_last_error_message(), "neither unique_id nor comm is given");
  Group::NcclId id{};
  const std::vector<ncclComm*> comms = make_fake_comms(2);
  options.unique_id = id.data(), options.comm = comms[0];
  EXPECT_EQ(leanattn_group_connect_nccl(alone.get(), &options), LEANATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(leanattn_last_error_message(), "both unique_id and comm are given");
  for (ncclComm* comm : comms) destroy_fake_comm(comm);
  EXPECT_EQ(leanattn_group_connect_nccl(nullptr, &options), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_connect_nccl(alone.get(), nullptr), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_nccl_unique_id(nullptr), LEANATTN_INVALID_ARGUMENT);
  leanattn_group_options of_group;
  leanattn_group_options_init(&of_group);
  of_group.size = 2, of_group.memory_bytes = bytes, of_group.reserved = 1;
  leanattn_group* made = nullptr;
  EXPECT_EQ(leanattn_group_create(engines_[0].get(), &of_group, &made), LEANATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(leanattn_last_error_message(), "group_options.reserved is 1");
  {
    const EnvironmentOf bound("LEANATTN_JOIN_BOUND_MS", "soon");
    expect_refused(alone.connect_nccl(id), ErrorCode::invalid_argument, "LEANATTN_JOIN_BOUND_MS is \"soon\"");
  }
  fake_nccl().fail_once["ncclGetUniqueId"] = 2;
  expect_refused(Group::nccl_id(), ErrorCode::launch_failed, "ncclGetUniqueId: told to fail (2)");
}

TEST_F(GroupsOverNccl, KernelsOfPartsAskForPositionsWhereTheProblemDependsOnThem) {
  make(2, problem_of({.q_len = 4}));
  const struct {
    const char* name;
    void (*change)(Problem&);
  } features[] = {{"_win100", [](Problem& p) { p.window = 100; }},
                  {"_alibi", [](Problem& p) { p.alibi = true; }},
                  {"_x", [](Problem& p) { p.score = "score + kv_index"; }},
                  {"_app", [](Problem& p) { p.append = true; }},
                  {"_rh", [](Problem& p) { p.rope = RopePairing::half_split, p.rope_dim = 16; }},
                  {"_q4", [](Problem& p) { p.q_len = 4; }}};
  for (const int unit : {0, 16}) {
    for (const auto& feature : features) {
      Problem problem = problem_of({});
      problem.context_interleave = unit;
      feature.change(problem);
      const auto made = plan(0, problem);
      ASSERT_TRUE(made) << feature.name << ": " << made.error().message << made.error().log;
      const std::string kernel = made->info().kernel_name;
      EXPECT_NE(kernel.find(feature.name), std::string::npos) << kernel;
      EXPECT_NE(kernel.find(unit == 0 ? "_of2_" : "_of2i16_"), std::string::npos) << kernel;
      EXPECT_EQ(kernel.find("_cp2"), std::string::npos) << kernel;
    }
  }
  Problem plain = problem_of({});
  plain.context_interleave = 16;
  EXPECT_EQ(std::string(plan(0, plain)->info().kernel_name).find("_of"), std::string::npos)
      << "nothing depends on positions";
}

TEST(ExchangeLayout, AlwaysFitsWhatAGroupAsksFor) {
  int tried = 0;
  for (const int ranks : {2, 3, 4, 6, 8}) {
    for (int peers = 1; peers < ranks; ++peers) {
      if (ranks % peers != 0) continue;
      for (const auto& [q_heads, kv_heads, dim] :
           {std::tuple(8, 8, 16), {32, 8, 128}, {24, 1, 16}, {128, 2, 64}, {6, 6, 16}, {12, 3, 512}}) {
        for (const int q_len : {1, 4, 16}) {
          for (const bool replicate : {false, true}) {
            for (const std::int64_t batch : {1, 3, 64}) {
              DecodeProblem problem{.q_heads = q_heads, .kv_heads = kv_heads, .head_dim = dim};
              problem.features.context_parallel = ranks, problem.features.replicate_output = replicate;
              problem.features.q_len = q_len;
              if (!validate(problem)) continue;
              const GroupPlace place{.rank = ranks - 1, .size = ranks, .peers = peers};
              const std::int64_t bytes = group_bytes(ranks, group_columns(problem, batch));
              EXPECT_LE(exchange_layout(problem, place, batch).total, bytes)
                  << ranks << " ranks, " << peers << " peers, " << to_json(problem) << ", batch " << batch;
              ++tried;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(tried, 500);
}

TEST(MergedParts, AreAsExactAsTheRoundingOfTheirOutput) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  double worst_one = 0, worst_parts = 0, square_one = 0, square_parts = 0;
  const int rows = tries(2000, 20000);
  for (int row = 0; row < rows; ++row) {
    const int parts = 2 + row % 7, tokens = 64;
    double most = kNothing, whole = 0, sum = 0;
    std::vector<double> lse, o;
    for (int part = 0; part < parts; ++part) {
      double part_sum = 0, part_o = 0;
      for (int i = 0; i < tokens; ++i) {
        const double weight = std::exp(2 * normal(random)), value = normal(random);
        part_sum += weight, part_o += weight * value;
      }
      lse.push_back(std::log(part_sum)), o.push_back(part_o / part_sum);
      most = std::max(most, lse.back());
      sum += part_sum, whole += part_o;
    }
    whole /= sum;
    double merged = 0, weights = 0;
    for (std::size_t part = 0; part < o.size(); ++part) {
      const double weight = std::exp(lse[part] - most);
      merged += weight * from_bf16(to_bf16(o[part])), weights += weight;
    }
    const double one = std::abs(from_bf16(to_bf16(whole)) - whole),
                 of_parts = std::abs(from_bf16(to_bf16(merged / weights)) - whole);
    worst_one = std::max(worst_one, one), worst_parts = std::max(worst_parts, of_parts);
    square_one += one * one, square_parts += of_parts * of_parts;
  }
  const double ratio = std::sqrt(square_parts / square_one);
  RecordProperty("rms_ratio", std::to_string(ratio));
  RecordProperty("worst_of_one", std::to_string(worst_one));
  RecordProperty("worst_of_parts", std::to_string(worst_parts));
  EXPECT_LT(ratio, 1.6);
  EXPECT_LT(worst_parts, 2 * worst_one);
}

}  // namespace
}  // namespace leanattn
