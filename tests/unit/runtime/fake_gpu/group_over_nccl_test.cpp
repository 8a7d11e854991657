// group_over_nccl_test.cpp -- groups over NCCL on fictional GPUs and a libnccl of the tests, which moves real bytes.
// What the kernels do is done here on the host, so that whole steps of all ranks are compared with attention over the
// whole contexts.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "fake_gpu_fixture.hpp"
#include "runtime/engine/group.hpp"
#include "tests/thoroughness.hpp"
#include "tests/unit/runtime/fake_nccl.hpp"

namespace leanattn {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

std::uint16_t to_bf16(double value) {
  const auto narrow = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &narrow, 4);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
double from_bf16(std::uint16_t value) {
  const std::uint32_t bits = std::uint32_t{value} << 16;
  float wide = 0;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

/// Sets an environment variable for its lifetime.
struct EnvironmentOf {
  EnvironmentOf(const char* variable, const char* value) : name(variable) { setenv(name, value, 1); }
  ~EnvironmentOf() { unsetenv(name); }
  EnvironmentOf(const EnvironmentOf&) = delete;
  EnvironmentOf& operator=(const EnvironmentOf&) = delete;
  const char* name;
};

/// What an attention over some tokens gives for one row.
struct RowResult {
  std::vector<double> o;
  double lse = kNothing;
};

/// Whole contexts, the parts of the ranks, and what each rank's launch gets.
struct Contexts {
  int ranks = 2, batch = 3, q_len = 1, q_heads = 8, kv_heads = 4, dim = 16, unit = 0;
  bool ragged = false, sinks = false;
  std::vector<int> lengths = {}, counts = {}, offsets = {};  ///< of whole contexts; query tokens of each request
  std::vector<std::uint16_t> q = {};                         ///< [tokens, q_heads, dim]
  std::vector<std::vector<std::uint16_t>> k = {}, v = {};    ///< by request: [length, kv_heads, dim]
  std::vector<float> sink_logits = {};
  struct Part {
    std::vector<std::vector<int>> held;  ///< by request: the tokens of the context that the rank holds
    std::vector<int> lengths, starts;
    std::vector<std::uint16_t> k, v, o;  ///< [batch, kv_heads, capacity, dim]; o [batch, q_len, q_heads, dim]
    std::vector<float> lse;
    int capacity = 1;
  };
  std::vector<Part> parts = {};

  int tokens() const { return batch * q_len; }
  int first(int request) const { return ragged ? offsets[static_cast<std::size_t>(request)] : request * q_len; }
  int count(int request) const { return ragged ? counts[static_cast<std::size_t>(request)] : q_len; }

  void make(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::vector<std::uint16_t>& to, std::size_t size) {
      to.resize(size);
      for (auto& x : to) x = to_bf16(normal(random));
    };
    lengths.clear(), counts.clear(), offsets = {0}, parts.assign(static_cast<std::size_t>(ranks), {});
    for (int r = 0; r < batch; ++r) {
      counts.push_back(ragged ? static_cast<int>(random() % static_cast<unsigned>(q_len + 1)) : q_len);
      offsets.push_back(offsets.back() + counts.back());
      // The last request is so short that some rank holds nothing of it.
      lengths.push_back(r + 1 == batch ? counts.back() : counts.back() + static_cast<int>(random() % 70));
    }
    const auto columns = static_cast<std::size_t>(kv_heads * dim);
    fill(q, static_cast<std::size_t>(tokens() * q_heads * dim));
    k.assign(static_cast<std::size_t>(batch), {}), v = k;
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      fill(k[r], static_cast<std::size_t>(lengths[r]) * columns);
      fill(v[r], static_cast<std::size_t>(lengths[r]) * columns);
    }
    sink_logits.resize(static_cast<std::size_t>(q_heads));
    for (auto& x : sink_logits) x = static_cast<float>(normal(random));
    deal(random);
  }
  void deal(std::mt19937& random) {
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      std::vector<int> cuts{0};
      for (int rank = 1; rank < ranks; ++rank)
        cuts.push_back(static_cast<int>(random() % static_cast<unsigned>(lengths[r] + 1)));
      std::sort(cuts.begin(), cuts.end());
      cuts.push_back(lengths[r]);
      for (int rank = 0; rank < ranks; ++rank) {
        Part& part = parts[static_cast<std::size_t>(rank)];
        const auto at = static_cast<std::size_t>(rank);
        part.held.emplace_back();
        for (int token = 0; token < lengths[r]; ++token) {
          const bool mine = unit > 0 ? token / unit % ranks == rank : token >= cuts[at] && token < cuts[at + 1];
          if (mine) part.held.back().push_back(token);
        }
        part.lengths.push_back(static_cast<int>(part.held.back().size()));
        part.starts.push_back(cuts[at]);
        part.capacity = std::max(part.capacity, part.lengths.back());
      }
    }
    for (Part& part : parts) {
      const auto elements = static_cast<std::size_t>(batch * kv_heads * part.capacity * dim);
      part.k.assign(elements, 0x7fc0), part.v = part.k;  // NaN where nobody may read
      for (int r = 0; r < batch; ++r)
        for (int head = 0; head < kv_heads; ++head)
          for (std::size_t i = 0; i < part.held[static_cast<std::size_t>(r)].size(); ++i)
            for (int d = 0; d < dim; ++d) {
              const auto to =
                  (static_cast<std::size_t>(r * kv_heads + head) * static_cast<std::size_t>(part.capacity) + i) *
                      static_cast<std::size_t>(dim) +
                  static_cast<std::size_t>(d);
              part.k[to] = key(k, r, head, part.held[static_cast<std::size_t>(r)][i], d);
              part.v[to] = key(v, r, head, part.held[static_cast<std::size_t>(r)][i], d);
            }
      part.o.assign(static_cast<std::size_t>(tokens() * q_heads * dim), 0x7fc0);
      part.lse.assign(static_cast<std::size_t>(tokens() * q_heads), NAN);
    }
  }
  std::uint16_t key(const std::vector<std::vector<std::uint16_t>>& cache, int request, int head, int token,
                    int d) const {
    return cache[static_cast<std::size_t>(request)][static_cast<std::size_t>((token * kv_heads + head) * dim + d)];
  }
  /// Attention of a query token and head over those of `seen` tokens of the whole context.
  RowResult attend(int request, int t, int head, const std::vector<int>& seen, bool with_sink) const {
    RowResult row;
    row.o.assign(static_cast<std::size_t>(dim), 0);
    const int kv_head = head / (q_heads / kv_heads);
    const double sink = with_sink ? sink_logits[static_cast<std::size_t>(head)] : kNothing;
    std::vector<double> scores;
    double most = sink;
    for (const int token : seen) {
      double dot = 0;
      for (int d = 0; d < dim; ++d)
        dot += from_bf16(q[static_cast<std::size_t>(((first(request) + t) * q_heads + head) * dim + d)]) *
               from_bf16(key(k, request, kv_head, token, d));
      scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
      most = std::max(most, scores.back());
    }
    if (most == kNothing) return row;
    double sum = with_sink ? std::exp(sink - most) : 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const double weight = std::exp(scores[i] - most);
      sum += weight;
      for (int d = 0; d < dim; ++d)
        row.o[static_cast<std::size_t>(d)] += weight * from_bf16(key(v, request, kv_head, seen[i], d));
    }
    for (double& x : row.o) x /= sum;
    row.lse = most + std::log(sum);
    return row;
  }
  /// What a query token sees of the whole context.
  std::vector<int> seen_by(int request, int t) const {
    std::vector<int> seen;
    const int length = lengths[static_cast<std::size_t>(request)];
    for (int token = 0; token <= length - count(request) + t; ++token) seen.push_back(token);
    return seen;
  }
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
    if (args.tree_mask == nullptr) return;
    for (int r = 0; r < args.batch; ++r) {
      const int first = args.q_offsets != nullptr ? args.q_offsets[r] : r * args.query_tokens;
      const int count = args.q_offsets != nullptr ? args.q_offsets[r + 1] - first : args.query_tokens;
      const int start = args.context_starts != nullptr ? args.context_starts[r] : 0;
      for (int t = 0; t < count; ++t)
        args.tree_mask[first + t] =
            lean_mask_of_part(args, args.context_lengths[r], args.full_lengths[r], start, count, t);
    }
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
    for (int r = 0; r < c.batch; ++r) {
      for (int t = 0; t < c.count(r); ++t) {
        // The tokens that this kernel, or its peers' together, see.
        std::vector<int> seen;
        const auto request = static_cast<std::size_t>(r);
        for (std::size_t peer = first_peer; peer < first_peer + peers; ++peer) {
          const auto& held = c.parts[peer].held[request];
          const int length = static_cast<int>(held.size()), behind = length - c.count(r);
          for (int i = 0; i < length; ++i) {
            bool visible = true;
            if (peers_ > 1) {
              visible = held[static_cast<std::size_t>(i)] <= c.lengths[request] - c.count(r) + t;
            } else if (c.q_len > 1 && i >= behind) {
              visible = (args.tree_mask[c.first(r) + t] >> (i - behind) & 1) != 0;
            }
            if (visible) seen.push_back(held[static_cast<std::size_t>(i)]);
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
    if (c.q_len > 1 && c.unit == 0) args.context_starts = part.starts.data();
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
    EXPECT_NE(kernel.kernel.find("_cp" + std::to_string(one.peers)), std::string::npos) << kernel.kernel;
  }
}

TEST_F(GroupsOverNccl, OfTwoLevelsAFaultNamesTheRankAndBothLevelsAreMended) {
  Contexts contexts{.ranks = 4};
  const Problem problem = problem_of(contexts);
  make_two_levels(4, 2, problem);
  contexts.make(7);
  step(contexts, problem);
  // The kernel of rank 2 has waited for its peer 1, which is rank 3.
  const LeanDecodeArgs args = last_decode_of(2);
  args.status->workspace = reinterpret_cast<std::uintptr_t>(args.group);
  args.status->fault = kLeanRankMissing | 1u << kLeanRankShift;
  expect_refused(engines_[2].check(), ErrorCode::group_broken, "rank 3 of a group did not send its results");
  const std::vector<Group::NcclId> ids{Group::nccl_id().value(), Group::nccl_id().value()};
  for (std::size_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(groups_[rank].connect_nccl(ids[rank % 2]));
  expect_refused(engines_[2].check(), ErrorCode::group_broken, "rank 3");
  for (Group& group : groups_) ASSERT_TRUE(group.reset(nullptr));
  EXPECT_TRUE(engines_[2].check());
  contexts.make(8);
  step(contexts, problem);
  expect_right(contexts, problem, "mended");
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

TEST_F(GroupsOverNccl, ARankThatNeverJoinsIsAnErrorWithinTheBound) {
  const EnvironmentOf bound("LEANATTN_JOIN_BOUND_MS", "40");
  const Problem problem = problem_of({});
  open_engines(1);
  groups_.push_back(Group::create(engines_[0], 0, 2, Group::bytes(problem, 8).value(), 1).value());
  expect_refused(plan(0, problem), ErrorCode::invalid_argument, "not connected over NCCL");
  ASSERT_TRUE(groups_[0].connect_nccl(Group::nccl_id().value())) << "it does not wait";
  expect_refused(plan(0, problem), ErrorCode::group_broken, "not all ranks of a group over NCCL have joined it within");
  expect_refused(engines_[0].check(), ErrorCode::group_broken, "40 ms");
  EXPECT_TRUE(eventually([] { return fake_nccl().aborted == 1; })) << "its communicator is aborted";
  groups_.clear();
  EXPECT_TRUE(engines_[0].check()) << "the fault ends with its group";
}

TEST_F(GroupsOverNccl, ARankThatDoesNotSendEndsTheLaunchesAndTheGroupIsConnectedAgain) {
  const EnvironmentOf bound("LEANATTN_WAIT_BOUND_MS", "60");
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  ASSERT_TRUE(engines_[0].check()) << "nothing waits between launches";

  // Rank 1 stays away. The launch of rank 0 waits in the exchange, as its stream would.
  std::vector<Plan> plans{plan(0, problem).value(), plan(1, problem).value()};
  Workspace workspace(std::max(plans[0].workspace_bytes(), plans[1].workspace_bytes()));
  (void)plans[0].launch(arguments(contexts, problem, 0), workspace.data, nullptr);  // ends because of the abort
  EXPECT_EQ(fake_nccl().aborted, 1);
  expect_refused(engines_[0].check(), ErrorCode::group_broken, "did not send its results within 60 ms");
  expect_refused(plans[0].launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::group_broken,
                 "did not send");
  expect_refused(groups_[0].reset(nullptr), ErrorCode::group_broken, "no communicator of NCCL that works");
  EXPECT_TRUE(engines_[1].check()) << "it has waited for nobody, so that its communicator still works";

  // Both connect again.
  const Group::NcclId id = Group::nccl_id().value();
  ASSERT_TRUE(groups_[0].connect_nccl(id));
  expect_refused(plans[0].launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::not_prepared,
                 "still connecting");
  ASSERT_TRUE(groups_[1].connect_nccl(id));
  EXPECT_EQ(fake_nccl().aborted, 2) << "a communicator is given up for a new one";
  EXPECT_TRUE(engines_[0].check() && engines_[1].check()) << "the fault is forgotten";
  contexts.make(2);
  step(contexts, problem);
  expect_right(contexts, problem, "connected again");
}

TEST_F(GroupsOverNccl, ALaunchThatTheDriverRefusesIsNotWaitedFor) {
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  const Plan made = plan(0, problem).value();
  Workspace workspace(made.workspace_bytes());
  refuses_next_ = true;
  expect_refused(made.launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::launch_failed,
                 "does not fit the SMs of this stream");
  refuses_next_ = false;
  EXPECT_EQ(fake_gpu().launches.back().kernel, "merge_partials_bf16");
  EXPECT_EQ(progress_->begun, progress_->ended) << "or the group would break once the bound is over";
  contexts.make(2);
  step(contexts, problem);
  expect_right(contexts, problem, "after a refused launch");
}

TEST_F(GroupsOverNccl, AFaultOfEachGroupStaysUntilThatGroupIsMendedOrEnds) {
  const Problem problem = problem_of({});
  open_engines(1);
  const auto break_two_groups = [&] {
    const EnvironmentOf bound("LEANATTN_JOIN_BOUND_MS", "40");
    for (int group = 0; group < 2; ++group) {
      groups_.push_back(Group::create(engines_[0], 0, 2, Group::bytes(problem, 8).value(), 1).value());
      ASSERT_TRUE(groups_.back().connect_nccl(Group::nccl_id().value()));
      expect_refused(engines_[0].plan(problem, shape_, groups_.back()), ErrorCode::group_broken,
                     "have joined it within");
    }
  };
  break_two_groups();
  groups_.erase(groups_.begin());
  expect_refused(engines_[0].check(), ErrorCode::group_broken, "have joined it within");
  ASSERT_TRUE(groups_[0].connect_nccl(Group::nccl_id().value()));
  EXPECT_TRUE(engines_[0].check()) << "it connects again";
  groups_.clear();
  break_two_groups();
  for (int group = 0; group < 2; ++group) {
    expect_refused(engines_[0].check(), ErrorCode::group_broken, "have joined it within");
    ASSERT_TRUE(engines_[0].acknowledge());
  }
  EXPECT_TRUE(engines_[0].check());
}

TEST_F(GroupsOverNccl, AnAbortThatTakesLongOutlivesTheEngine) {
  const Problem problem = problem_of({});
  open_engines(1);
  groups_.push_back(Group::create(engines_[0], 0, 2, Group::bytes(problem, 8).value(), 1).value());
  ASSERT_TRUE(groups_[0].connect_nccl(Group::nccl_id().value()));
  ASSERT_TRUE(eventually([] { return fake_nccl().live_comms == 1; }));
  fake_nccl().holds_aborts = true;
  groups_.clear();  // which waits for a second
  engines_.clear();
  EXPECT_EQ(fake_nccl().aborted, 0);
  fake_nccl().holds_aborts = false;
  fake_nccl().holds_aborts.notify_all();
  EXPECT_TRUE(eventually([] { return live_objects_now() == 0; })) << "all is given back with a context current";
}

TEST_F(GroupsOverNccl, WithDebugTheNextLaunchNamesTheRankThatLaunchedSomethingElse) {
  const EnvironmentOf debug("LEANATTN_DEBUG", "1");
  fake_gpu().knows_pointers = true;
  Contexts contexts{.ranks = 4};
  const Problem problem = problem_of(contexts);
  make(4, problem);
  contexts.make(1);
  step(contexts, problem);
  step(contexts, problem);
  // Rank 2 is told of another context.
  std::vector<int> other = contexts.lengths;
  ++other[0];
  other_lengths_ = {2, other.data()};
  step(contexts, problem);
  other_lengths_ = {};
  for (std::size_t rank = 0; rank < 4; ++rank) {
    expect_refused(
        checked_launch(rank, contexts, problem), ErrorCode::group_broken,
        "rank " + std::to_string(rank == 2 ? 0 : 2) + " of a group was given other full_context_lengths than this one");
  }
  contexts.make(2);
  step(contexts, problem);
  expect_right(contexts, problem, "after a disagreement");
  // Scales differ.
  other_scale_ = {1, 0.5f};
  step(contexts, problem);
  other_scale_ = {};
  expect_refused(checked_launch(3, contexts, problem), ErrorCode::group_broken,
                 "rank 1 of a group launched with scale 0.5, and this one with 0.25");
}

TEST_F(GroupsOverNccl, WithDebugRanksOfTwoLevelsNameEachOtherAndProblemsMustBeEqual) {
  const EnvironmentOf debug("LEANATTN_DEBUG", "1");
  fake_gpu().knows_pointers = true;
  Contexts contexts{.ranks = 4};
  const Problem problem = problem_of(contexts);
  make_two_levels(4, 2, problem);
  contexts.make(1);
  Problem capped = problem;
  capped.soft_cap = 30;
  other_problem_ = {2, capped};
  step(contexts, problem);
  other_problem_ = {};
  expect_refused(checked_launch(0, contexts, problem), ErrorCode::group_broken,
                 "rank 2 of a group launched another problem than this one");
  expect_refused(checked_launch(2, contexts, problem), ErrorCode::group_broken,
                 "rank 0 of a group launched another problem than this one");
}

TEST_F(GroupsOverNccl, WithDebugALaunchThatIsCapturedTellsNothing) {
  const EnvironmentOf debug("LEANATTN_DEBUG", "1");
  fake_gpu().knows_pointers = true;
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  const auto context = Context::retain(0);
  {
    const auto stream = Stream::create();
    const auto made = plan(0, problem);
    Workspace workspace(made->workspace_bytes());
    const int sends = fake_nccl().calls["ncclSend"];
    const auto graph = Graph::capture(*stream, [&](CUstream_st* captured) {
      return made->launch(arguments(contexts, problem, 0), workspace.data, captured);
    });
    ASSERT_TRUE(graph) << graph.error().message;
    EXPECT_EQ(fake_nccl().calls["ncclSend"], sends + 2) << "O and LSE";
  }
  cuCtxSetCurrent(nullptr);
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

TEST_F(GroupsOverNccl, WithDebugABrokenLaunchAccusesNobodyOnceTheGroupIsConnectedAgain) {
  const EnvironmentOf bound("LEANATTN_WAIT_BOUND_MS", "60"), debug("LEANATTN_DEBUG", "1");
  fake_gpu().knows_pointers = true;
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  contexts.make(2);
  (void)checked_launch(0, contexts, problem);  // rank 1 tells nothing of these lengths
  expect_refused(engines_[0].check(), ErrorCode::group_broken, "did not send its results within 60 ms");
  const Group::NcclId id = Group::nccl_id().value();
  for (Group& group : groups_) ASSERT_TRUE(group.connect_nccl(id));
  contexts.make(3);
  step(contexts, problem);
  expect_right(contexts, problem, "connected again");
}

TEST_F(GroupsOverNccl, WhatNcclFindsIsToldByTheNextCall) {
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  const Plan made = plan(0, problem).value();
  Workspace workspace(made.workspace_bytes());
  fake_nccl().async_error = 6;
  const auto launched = made.launch(arguments(contexts, problem, 0), workspace.data, nullptr);
  expect_refused(launched, ErrorCode::group_broken, "remote process exited");
  EXPECT_NE(launched.error().hint.find("NCCL does not say which rank"), std::string::npos) << launched.error().hint;
  EXPECT_TRUE(eventually([] { return fake_nccl().aborted == 1; }));
  fake_nccl().async_error = 0;
  expect_refused(made.launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::group_broken,
                 "remote process exited");
}

TEST_F(GroupsOverNccl, ACallThatNcclRefusesBreaksTheGroup) {
  for (const char* call : {"ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd", "ncclCommGetAsyncError"}) {
    groups_.clear(), engines_.clear();
    Contexts contexts;
    const Problem problem = problem_of(contexts);
    make_and_step(contexts, problem);
    const Plan made = plan(0, problem).value();
    Workspace workspace(made.workspace_bytes());
    fake_nccl().fail_once[call] = 3;
    expect_refused(made.launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::group_broken,
                   std::string(call) + ": told to fail (3)");
    expect_refused(engines_[0].check(), ErrorCode::group_broken, call);
  }
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

  // With peers, kernels do not know where units in turn lie in the whole context.
  Contexts in_turn{.ranks = 4, .q_len = 2, .unit = 16};
  const Problem of_four = problem_of(in_turn);
  Group pairs = Group::create(engines_[0], 0, 4, Group::bytes(of_four, 8).value(), 2).value();
  const Group other = Group::create(engines_[0], 1, 4, Group::bytes(of_four, 8).value(), 2).value();
  ASSERT_TRUE(pairs.connect({pairs.export_blob().value(), other.export_blob().value()}));
  expect_refused(engines_[0].plan(of_four, shape_, pairs), ErrorCode::unsupported, "context_interleave 16");
}

TEST_F(GroupsOverNccl, RanksThatFailToJoinSayWhy) {
  const Problem problem = problem_of({});
  open_engines(1);
  groups_.push_back(Group::create(engines_[0], 0, 2, Group::bytes(problem, 8).value(), 1).value());
  fake_nccl().fail_once["ncclCommInitRankConfig"] = 2;
  ASSERT_TRUE(groups_[0].connect_nccl(Group::nccl_id().value()));
  expect_refused(plan(0, problem), ErrorCode::group_broken, "ncclCommInitRankConfig: told to fail (2)");
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

/// An experiment that docs/groups.md quotes: what it costs that the O of each part is rounded to 16 bits before the
/// merge and the result once more. The merge is the arithmetic of merge_partials.cuh, in FP64.
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
