// groups_over_nccl.hpp -- GroupsOverNccl: groups over NCCL on fictional GPUs and a libnccl of the tests, which moves
// real bytes. What the kernels do is done here on the host, so that whole steps of all ranks can be compared with
// attention over the whole contexts. Test code.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fake_gpu_fixture.hpp"
#include "runtime/engine/group.hpp"
#include "shared_contexts.hpp"
#include "tests/unit/runtime/fake_nccl.hpp"

namespace leanattn {

/// Sets an environment variable for its lifetime.
struct EnvironmentOf {
  EnvironmentOf(const char* variable, const char* value) : name(variable) { setenv(name, value, 1); }
  ~EnvironmentOf() { unsetenv(name); }
  EnvironmentOf(const EnvironmentOf&) = delete;
  EnvironmentOf& operator=(const EnvironmentOf&) = delete;
  const char* name;
};

class GroupsOverNccl : public FakeGpuEngine {
 protected:
  void SetUp() override {
    FakeGpuEngine::SetUp();
    if (IsSkipped()) return;
    reset_fake_nccl();
    fake_gpu().devices = 4;
    fake_gpu().run = [this](const std::string& kernel, void** params) { run(kernel, params); };
  }
  void TearDown() override {
    groups_.clear();
    engines_.clear();
    if (!directory_.empty()) {
      EXPECT_EQ(fake_nccl().live_comms, borrowed_) << "a communicator was not given back";
    }
    FakeGpuEngine::TearDown();
  }

  Problem problem_of(const Contexts& c) const {
    Problem problem;
    problem.q_heads = c.q_heads, problem.kv_heads = c.kv_heads, problem.head_dim = c.dim;
    problem.q_len = c.q_len, problem.ragged_q = c.ragged, problem.sink_logits = c.sinks, problem.lse = true;
    problem.context_parallel = c.ranks, problem.context_interleave = c.unit;
    problem.window = c.window, problem.sink_tokens = c.sink_tokens;
    return problem;
  }
  void open_engines(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) engines_.push_back(open(rank));
  }
  std::vector<const Engine*> pointers() const {
    std::vector<const Engine*> all;
    for (const Engine& engine : engines_) all.push_back(&engine);
    return all;
  }
  /// Ranks on GPUs of their own, all over NCCL.
  void make(int ranks, const Problem& problem, int max_batch = 8) {
    open_engines(ranks);
    auto made = Group::of_engines(pointers(), Group::bytes(problem, max_batch).value(), GroupTransport::nccl);
    ASSERT_TRUE(made) << made.error().message;
    groups_ = std::move(*made);
  }
  /// Hosts of `peers` ranks each: peers within a host, NCCL between ranks of the same place.
  void make_two_levels(int ranks, int peers, const Problem& problem) {
    open_engines(ranks);
    peers_ = peers;
    std::vector<Group::Blob> blobs;
    for (int rank = 0; rank < ranks; ++rank) {
      const Engine& engine = engines_[static_cast<std::size_t>(rank)];
      groups_.push_back(Group::create(engine, rank, ranks, Group::bytes(problem, 8).value(), peers).value());
      blobs.push_back(groups_.back().export_blob().value());
    }
    std::vector<Group::NcclId> ids;
    for (int peer = 0; peer < peers; ++peer) ids.push_back(Group::nccl_id().value());
    for (int rank = 0; rank < ranks; ++rank) {
      Group& group = groups_[static_cast<std::size_t>(rank)];
      const auto first = blobs.begin() + rank / peers * peers;
      ASSERT_TRUE(group.connect({first, first + peers}));
      ASSERT_TRUE(group.connect_nccl(ids[static_cast<std::size_t>(rank % peers)]));
    }
  }
  /// The arguments of the last decode kernel on a GPU.
  static LeanDecodeArgs last_decode_of(int device) {
    const auto& launches = fake_gpu().launches;
    const auto launch = std::find_if(launches.rbegin(), launches.rend(), [&](const FakeLaunch& l) {
      return l.device == device && l.kernel.starts_with("lean_sm");
    });
    LeanDecodeArgs args{};
    if (launch != launches.rend()) std::memcpy(&args, launch->arguments.data(), sizeof args);
    return args;
  }
  Result<Plan> plan(int rank, const Problem& problem, leanattn_stream stream = nullptr) {
    const auto r = static_cast<std::size_t>(rank);
    return engines_[r].plan(problem, shape_, groups_[r], stream);
  }

  // What the kernels do.
  void run(const std::string& kernel, void** params) {
    if (kernel == "begin_exchange") {
      if (refuses_next_) fake_gpu().fail_once["cuLaunchKernelEx"] = CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
      return begin(*static_cast<const LeanBeginArgs*>(params[0]));
    }
    if (kernel == "merge_partials_bf16") return merge(*static_cast<const LeanMergeArgs*>(params[0]));
    if (kernel.starts_with("lean_sm") && contexts_ != nullptr) decode(*static_cast<const LeanDecodeArgs*>(params[0]));
  }
  static void begin(const LeanBeginArgs& args) {
    __atomic_store_n(&args.progress->begun, ++*args.launch, __ATOMIC_RELEASE);
  }
  void decode(const LeanDecodeArgs& args) const {
    const Contexts& c = *contexts_;
    std::size_t rank = 0;
    while (c.parts[rank].k.data() != args.k) ++rank;
    const auto peers = static_cast<std::size_t>(peers_), first_peer = rank - rank % peers;
    const int heads = replicated_ ? c.q_heads : c.q_heads / peers_;
    const int first_head = replicated_ ? 0 : static_cast<int>(rank - first_peer) * heads;
    EXPECT_EQ(args.group != nullptr, peers_ > 1);
    EXPECT_EQ(args.sink_logits, nullptr) << "they would count in each part";
    EXPECT_EQ(args.context_rank, static_cast<int>(rank));
    if (c.depends_on_positions()) {
      EXPECT_EQ(args.full_lengths, c.lengths.data());
      EXPECT_EQ(args.context_starts, c.unit > 0 ? nullptr : c.parts[rank].starts.data());
    }
    for (int r = 0; r < c.batch; ++r) {
      for (int t = 0; t < c.count(r); ++t) {
        // The tokens that this kernel, or its peers' together, see.
        std::vector<int> seen;
        const auto request = static_cast<std::size_t>(r);
        for (std::size_t peer = first_peer; peer < first_peer + peers; ++peer) {
          const auto& held = c.parts[peer].held[request];
          for (const int token : held) {
            if (c.sees(r, t, token)) seen.push_back(token);
          }
        }
        for (int head = first_head; head < first_head + heads; ++head) {
          const RowResult row = c.attend(r, t, head, seen, false);
          auto* const o =
              static_cast<std::uint16_t*>(args.o) + head * args.o_stride_head +
              (c.ragged ? (c.first(r) + t) * args.o_stride_token : r * args.o_stride_batch + t * args.o_stride_token);
          for (int d = 0; d < c.dim; ++d) o[d] = to_bf16(row.o[static_cast<std::size_t>(d)]);
          args.lse[(c.first(r) + t) * c.q_heads + head] = static_cast<float>(row.lse);
        }
      }
    }
  }
  void merge(const LeanMergeArgs& args) {
    progress_ = args.progress;
    if (args.progress != nullptr) __atomic_store_n(&args.progress->ended, *args.launch, __ATOMIC_RELEASE);
    for (int token = 0; token < args.tokens; ++token) {
      if (args.token_count != nullptr && token >= *args.token_count) continue;
      for (int head = 0; head < args.heads; ++head) {
        const float sink = args.sink_logits != nullptr ? args.sink_logits[head] : static_cast<float>(kNothing);
        float most = sink, sum = 0, weight[LEAN_MERGE_PARTS] = {};
        const auto lse = [&](int part) { return args.lse[part][token * args.lse_stride_token + head]; };
        for (int part = 0; part < args.parts; ++part) most = std::max(most, lse(part));
        for (int part = 0; part < args.parts; ++part) {
          weight[part] = std::isinf(lse(part)) ? 0.0f : std::exp(lse(part) - most);
          sum += weight[part];
        }
        if (!std::isinf(sink)) sum += std::exp(sink - most);
        const long long from = token * args.o_stride_token + head * args.o_stride_head;
        const long long to = token / args.request_tokens * args.out_stride_batch +
                             token % args.request_tokens * args.out_stride_token + head * args.out_stride_head;
        for (int d = 0; d < args.dim; ++d) {
          float o = 0;
          for (int part = 0; part < args.parts; ++part) {
            if (weight[part] == 0) continue;
            o +=
                weight[part] * static_cast<float>(from_bf16(static_cast<const std::uint16_t*>(args.o[part])[from + d]));
          }
          static_cast<std::uint16_t*>(args.out_o)[to + d] = to_bf16(sum == 0 ? 0 : o / sum);
        }
        if (args.out_lse != nullptr)
          args.out_lse[token * args.out_lse_stride_token + head] =
              sum == 0 ? static_cast<float>(kNothing) : most + std::log(sum);
      }
    }
  }

  /// One step of every rank, each on a thread of its own, as streams run beside each other.
  void step(Contexts& c, const Problem& problem) {
    contexts_ = &c;
    replicated_ = problem.replicate_output;
    std::vector<Plan> plans;
    for (int rank = 0; rank < c.ranks; ++rank) {
      const bool other = static_cast<std::size_t>(rank) == other_problem_.rank;
      const auto made = plan(rank, other ? other_problem_.value : problem);
      ASSERT_TRUE(made) << made.error().message << made.error().log;
      plans.push_back(*made);
    }
    std::vector<std::thread> threads;
    std::vector<Result<void>> launched(static_cast<std::size_t>(c.ranks));
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      threads.emplace_back([&, rank] {
        Workspace workspace(plans[rank].workspace_bytes());
        std::memset(workspace.data, 0, static_cast<std::size_t>(workspace.bytes));
        DecodeArgs args = arguments(c, problem, rank);
        if (rank == other_lengths_.rank) args.full_context_lengths = other_lengths_.value;
        if (rank == other_scale_.rank) args.scale = other_scale_.value;
        launched[rank] = plans[rank].launch(args, workspace.data, nullptr);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& ok : launched) EXPECT_TRUE(ok) << ok.error().message;
    contexts_ = nullptr;
  }
  /// A launch of one rank, on a workspace of its own that LEANATTN_DEBUG finds in order.
  Result<void> checked_launch(std::size_t rank, Contexts& c, const Problem& problem) {
    const auto made = plan(static_cast<int>(rank), problem);
    if (!made) return tl::unexpected<Error>(made.error());
    Workspace workspace(made->workspace_bytes());
    std::memset(workspace.data, 0, static_cast<std::size_t>(workspace.bytes));
    return made->launch(arguments(c, problem, rank), workspace.data, nullptr);
  }
  /// Two ranks that have done a step.
  void make_and_step(Contexts& c, const Problem& problem) {
    make(2, problem);
    c.make(1);
    step(c, problem);
  }
  static DecodeArgs arguments(Contexts& c, const Problem& problem, std::size_t rank) {
    Contexts::Part& part = c.parts[rank];
    DecodeArgs args;
    args.q = c.q.data(), args.k = part.k.data(), args.v = part.v.data(), args.o = part.o.data();
    if (problem.lse) args.lse = part.lse.data();
    args.context_lengths = part.lengths.data();
    args.batch = c.batch, args.context_capacity = part.capacity;
    if (c.sinks) args.sink_logits = c.sink_logits.data();
    if (c.ragged) args.q_offsets = c.offsets.data();
    args.full_context_lengths = c.lengths.data();
    if (c.depends_on_positions() && c.unit == 0) args.context_starts = part.starts.data();
    return args;
  }
  /// Whether every rank has written the right values of its heads, and nothing else.
  void expect_right(const Contexts& c, const Problem& problem, const std::string& what) {
    for (int rank = 0; rank < c.ranks; ++rank) {
      const Contexts::Part& part = c.parts[static_cast<std::size_t>(rank)];
      const int hosts = c.ranks / peers_, share = c.q_heads / c.ranks;
      const int begin = problem.replicate_output ? 0 : (rank % peers_ * hosts + rank / peers_) * share;
      const int end = problem.replicate_output ? c.q_heads : begin + share;
      std::vector<bool> written(static_cast<std::size_t>(c.tokens()), false);
      for (int r = 0; r < c.batch; ++r) {
        for (int t = 0; t < c.count(r); ++t) {
          const int token = c.first(r) + t;
          written[static_cast<std::size_t>(token)] = true;
          for (int head = 0; head < c.q_heads; ++head) {
            const auto at = static_cast<std::size_t>(token * c.q_heads + head);
            const std::uint16_t* const o = &part.o[at * static_cast<std::size_t>(c.dim)];
            if (head < begin || head >= end) {
              ASSERT_EQ(o[0], 0x7fc0) << what << ": rank " << rank << " wrote head " << head;
              continue;
            }
            const RowResult expected = c.attend(r, t, head, c.seen_by(r, t), c.sinks);
            for (int d = 0; d < c.dim; ++d)
              ASSERT_NEAR(from_bf16(o[d]), expected.o[static_cast<std::size_t>(d)], 0.02)
                  << what << ": rank " << rank << ", request " << r << ", token " << t << ", head " << head;
            if (!problem.lse) continue;
            if (std::isinf(expected.lse)) {
              ASSERT_EQ(part.lse[at], expected.lse) << what;
            } else {
              ASSERT_NEAR(part.lse[at], expected.lse, 1e-4) << what << ": rank " << rank << ", request " << r;
            }
          }
        }
      }
      for (std::size_t token = 0; token < written.size(); ++token) {
        if (!written[token]) {
          ASSERT_EQ(part.o[token * static_cast<std::size_t>(c.q_heads * c.dim)], 0x7fc0) << what << ": no such token";
        }
      }
    }
  }
  /// Waits until something is so that another thread makes so.
  template <class Condition>
  static bool eventually(const Condition& condition) {
    for (int i = 0; i < 20000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  }

  /// Something that one rank alone is given.
  template <class T>
  struct OfOneRank {
    std::size_t rank = ~std::size_t{0};
    T value{};
  };
  OfOneRank<const int*> other_lengths_;
  OfOneRank<float> other_scale_;
  OfOneRank<Problem> other_problem_;
  std::vector<Engine> engines_;
  std::vector<Group> groups_;
  Contexts* contexts_ = nullptr;
  int peers_ = 1, borrowed_ = 0;
  bool replicated_ = false;
  bool refuses_next_ = false;                       ///< the launch behind a begin_exchange fails
  const LeanExchangeProgress* progress_ = nullptr;  ///< of the last merge
};

}  // namespace leanattn
