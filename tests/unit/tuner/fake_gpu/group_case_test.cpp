// group_case_test.cpp -- what the check of a group's kernel finds. Fictional GPUs run the kernels of the check on the
// host. A kernel of the group stands for the real one: it attends to what lies in the memory of all ranks, as the
// contract says where that is, and makes one mistake on request.
#include "tuner/oracle/group_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "generator/generator.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "tests/device/instructions.hpp"
#include "tests/unit/tuner/fake_gpu/tuned_gpu.hpp"
#include "tuner/oracle/oracle.hpp"

namespace leanattn::device {
namespace check_on_host {

#include "tests/device/begin.cuh"

#include "templates/check/features.cuh"

#include "templates/check/data.cuh"

#include "templates/check/layout.cuh"

#include "templates/check/kernels.cuh"
#undef CHECK_SCORE
#include "tests/device/end.cuh"

/// Argument `number` of a launch.
template <class T>
T argument(void** params, int number) {
  T value;
  std::memcpy(&value, params[number], sizeof(T));
  return value;
}

/// Runs a kernel that writes data, one thread after the other. False: it is another one.
inline bool run(const std::string& kernel, void** params) {
  std::function<void()> thread;
  if (kernel == "check_fill_rope") return true;
  if (kernel != "check_fill_q" && kernel != "check_fill_table" && kernel != "check_fill_kv" &&
      kernel != "check_new_rows")
    return false;
  const auto args = argument<LeanDecodeArgs>(params, 0);
  const auto check = argument<CheckFeatures>(params, 1);
  if (kernel == "check_fill_q") thread = [&] { check_fill_q(args, check); };
  if (kernel == "check_fill_kv") thread = [&] { check_fill_kv(args, check); };
  if (kernel == "check_fill_table") thread = [&] { check_fill_table(args, check, argument<const int*>(params, 2)); };
  if (kernel == "check_new_rows")
    thread = [&] { check_new_rows(args, check, argument<int>(params, 2), argument<unsigned long long*>(params, 3)); };
  gridDim = {1, 1};
  for (threadIdx.x = 0; threadIdx.x < kCheckThreads; ++threadIdx.x) thread();
  threadIdx.x = 0;
  return true;
}

}  // namespace check_on_host
}  // namespace leanattn::device

namespace leanattn {
namespace {

constexpr int kHeadDim = 64;

/// What the group's kernel does wrong.
enum class Mistake {
  none,
  parts_swapped,       ///< two ranks take their tokens for the other's
  part_left_out,       ///< the last rank's results are not merged
  foreign_head,        ///< a rank writes a head of another rank, too
  workspace_left,      ///< a rank leaves something in its workspace
  exchange_left,       ///< and in the exchange memory
  not_repeatable,      ///< one bit of a result changes from launch to launch
  row_not_appended,    ///< a new token is not written into the cache
  row_appended_twice,  ///< it is also written into another rank's cache, behind the context
};

float float_of(std::uint16_t bits) { return static_cast<float>(value_of(DType::bf16, bits)); }

class GroupChecks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
    fake_gpu() = tuned_gpu(2);
    fake_gpu().run = [this](const std::string& kernel, void** params) { run(kernel, params); };
    if (!cubins) cubins = open_cubin_db(std::nullopt, nullptr);
    context.emplace(std::move(*Context::retain(0)));
    stream.emplace(std::move(*Stream::create()));
  }
  void TearDown() override {
    if (IsSkipped()) return;
    kernel.reset();
    group.reset();
    stream.reset();
    context.reset();
    EXPECT_EQ(fake_gpu().live_objects(), 0) << "something was not given back to the driver";
  }

  static void TearDownTestSuite() { cubins.reset(); }

  void open(const Features& features, std::vector<int> devices = {0, 0}) {
    kernel.reset();
    group.reset();
    spec = {.arch = {9, 0, true}, .head_dim = kHeadDim, .group = 2, .lse = true, .features = features};
    spec.load = LoadPath::cp_async, spec.fixup = FixUp::ticket;
    const auto emitted = emit(spec);
    ASSERT_TRUE(emitted) << emitted.error().message;
    const auto compiled = compile(*emitted, cubins.get());
    ASSERT_TRUE(compiled) << compiled.error().message;
    auto loaded = LoadedKernel::load(*emitted, *compiled);
    ASSERT_TRUE(loaded) << loaded.error().message;
    kernel = std::make_unique<LoadedKernel>(std::move(*loaded));
    problem = {.q_heads = 8, .kv_heads = 4, .head_dim = kHeadDim, .lse = true, .features = features};
    problem = without_group(problem);
    problem.features.page_size = 0;
    auto oracle = OracleKernels::load({9, 0, true}, cubins.get());
    ASSERT_TRUE(oracle) << oracle.error().message;
    auto whole = DecodeCase::create(*oracle, problem, {90, 33, 0, 61, 2}, {.context_capacity = 128}, stream->get());
    ASSERT_TRUE(whole) << whole.error().message;
    auto made = GroupCase::create(std::move(*whole), features, 1000, stream->get(), {.devices = std::move(devices)});
    ASSERT_TRUE(made) << made.error().message;
    group = std::make_unique<GroupCase>(std::move(*made));
  }
  ComparisonReport check(Mistake of_kernel) {
    mistake = of_kernel, launches = 0;
    const auto report = group->check(*kernel, 8, 2);
    EXPECT_TRUE(report) << report.error().message;
    return report ? *report : ComparisonReport{};
  }
  void expect_right() {
    const ComparisonReport report = check(Mistake::none);
    EXPECT_TRUE(report.passed()) << report.first_failure;
    EXPECT_GT(report.elements, 0);
  }

  void run(const std::string& name, void** params) {
    if (device::check_on_host::run(name, params)) return;
    if (name == "check_oracle" || name == "check_plain") return reference(name == "check_oracle", params);
    if (!kernel || name != kernel_name(spec)) return;
    arrived.push_back(device::check_on_host::argument<LeanDecodeArgs>(params, 0));
    if (static_cast<int>(arrived.size()) < spec.features.context_parallel) return;
    std::sort(arrived.begin(), arrived.end(), [](const auto& a, const auto& b) { return a.group_rank < b.group_rank; });
    launch();
    arrived.clear();
  }

  /// The results of the whole contexts, by definition of the data.
  void reference(bool exact, void** params) {
    const auto args = device::check_on_host::argument<LeanDecodeArgs>(params, 0);
    const auto check = device::check_on_host::argument<CheckFeatures>(params, 1);
    EXPECT_EQ(check.ranks, 1);
    auto* const o = static_cast<double*>(*static_cast<void**>(params[5]));
    auto* const plain = static_cast<std::uint16_t*>(*static_cast<void**>(params[5]));
    const int queries = problem.features.q_len, group_heads = problem.q_heads / problem.kv_heads;
    for (int request = 0; request < args.batch; ++request) {
      for (int kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
        const OracleOutput right = oracle_of_data(problem, DataKind::uniform, check.seed, check.scale, request, kv_head,
                                                  args.context_lengths[request]);
        for (int row = 0; row < queries * group_heads; ++row) {
          const int to =
              (request * queries + row / group_heads) * problem.q_heads + kv_head * group_heads + row % group_heads;
          for (int column = 0; column < kHeadDim; ++column) {
            const double value = right.o[static_cast<std::size_t>(row * kHeadDim + column)];
            if (exact) {
              o[to * kHeadDim + column] = value;
            } else {
              plain[to * kHeadDim + column] = bits_of(DType::bf16, static_cast<float>(value));
            }
          }
          if (exact) (*static_cast<double**>(params[6]))[to] = right.lse[static_cast<std::size_t>(row)];
        }
      }
    }
  }

  /// Where a rank's token lies in its context, by definition.
  int index_of(const LeanDecodeArgs& rank, int request, int token) const {
    const int unit = spec.features.context_interleave, ranks = spec.features.context_parallel;
    int number = rank.group_rank, start = rank.context_starts[request];
    if (mistake == Mistake::parts_swapped && number < 2) {
      number = 1 - number;
      start = arrived[static_cast<std::size_t>(number)].context_starts[request];
    }
    return unit > 0 ? (token / unit * ranks + number) * unit + token % unit : start + token;
  }
  std::uint16_t* row_of(const LeanDecodeArgs& rank, bool keys, int request, int kv_head, int token) const {
    const int page_size = spec.features.page_size;
    const long long outer =
        page_size > 0 ? rank.page_table[request * rank.page_table_stride + token / page_size] : request;
    if (page_size > 0 && (outer < 0 || outer >= rank.pool_pages)) {
      ADD_FAILURE() << "a token that is seen is in no page";
      static std::array<std::uint16_t, kHeadDim> nowhere{};
      return nowhere.data();
    }
    const long long at = page_size > 0 ? token % page_size : token;
    auto* const base = static_cast<std::uint16_t*>(const_cast<void*>(keys ? rank.k : rank.v));
    return base + outer * (keys ? rank.k_stride_batch : rank.v_stride_batch) +
           kv_head * (keys ? rank.k_stride_head : rank.v_stride_head) +
           at * (keys ? rank.k_stride_token : rank.v_stride_token);
  }
  bool sees(int index, int query_index) const {
    const Features& f = spec.features;
    return index <= query_index && (f.window == 0 || index > query_index - f.window || index < f.sink_tokens);
  }

  void append() {
    const int queries = spec.features.q_len;
    for (const LeanDecodeArgs& rank : arrived) {
      for (int request = 0; request < rank.batch; ++request) {
        for (int token = 0; token < rank.context_lengths[request]; ++token) {
          const int query = index_of(rank, request, token) - (rank.full_lengths[request] - queries);
          // Of swapped parts some tokens lie behind the end.
          if (query < 0 || query >= queries || (mistake == Mistake::row_not_appended && request == 0)) continue;
          for (int kv_head = 0; kv_head < rank.kv_heads; ++kv_head) {
            const auto copy = [&](const void* from, long long batch, long long of_token, long long head, bool keys) {
              const auto* const row =
                  static_cast<const std::uint16_t*>(from) + request * batch + query * of_token + kv_head * head;
              std::memcpy(row_of(rank, keys, request, kv_head, token), row, kHeadDim * 2);
              if (mistake == Mistake::row_appended_twice && request == 0) {
                const LeanDecodeArgs& other = arrived[static_cast<std::size_t>(1 - rank.group_rank)];
                std::memcpy(row_of(other, keys, 0, kv_head, other.context_lengths[0]), row, kHeadDim * 2);
              }
            };
            copy(rank.k_new, rank.k_new_stride_batch, rank.k_new_stride_token, rank.k_new_stride_head, true);
            copy(rank.v_new, rank.v_new_stride_batch, rank.v_new_stride_token, rank.v_new_stride_head, false);
          }
        }
      }
    }
  }

  /// One launch on all ranks.
  void launch() {
    ++launches;
    const Features& features = spec.features;
    if (features.append) append();
    const auto ranks = static_cast<int>(arrived.size());
    const LeanDecodeArgs& first = arrived.front();
    const int heads_of_rank = problem.q_heads / ranks;
    for (int request = 0; request < first.batch; ++request) {
      for (int query = 0; query < features.q_len; ++query) {
        const int query_index = first.full_lengths[request] - features.q_len + query;
        for (int head = 0; head < problem.q_heads; ++head) {
          const auto* const q = static_cast<const std::uint16_t*>(first.q) + request * first.q_stride_batch +
                                query * first.q_stride_token + head * first.q_stride_head;
          std::vector<double> scores;
          std::vector<const std::uint16_t*> values;
          for (const LeanDecodeArgs& rank : arrived) {
            if (mistake == Mistake::part_left_out && rank.group_rank == ranks - 1) continue;
            for (int token = 0; token < rank.context_lengths[request]; ++token) {
              if (!sees(index_of(rank, request, token), query_index)) continue;
              const std::uint16_t* const k = row_of(rank, true, request, head / spec.group, token);
              double score = 0;
              for (int i = 0; i < kHeadDim; ++i) score += double{float_of(q[i])} * float_of(k[i]);
              scores.push_back(score * scale_of_argument(first.scale_log2));
              values.push_back(row_of(rank, false, request, head / spec.group, token));
            }
          }
          const double most = scores.empty() ? -INFINITY : *std::max_element(scores.begin(), scores.end());
          double sum = 0;
          std::vector<double> o(kHeadDim, 0);
          for (std::size_t i = 0; i < scores.size(); ++i) {
            const double weight = std::exp(scores[i] - most);
            sum += weight;
            for (int column = 0; column < kHeadDim; ++column)
              o[static_cast<std::size_t>(column)] += weight * float_of(values[i][column]);
          }
          for (int rank = 0; rank < ranks; ++rank) {
            const bool own = features.replicate_output || head / heads_of_rank == rank ||
                             (mistake == Mistake::foreign_head && rank == 0 && head == problem.q_heads - 1);
            if (own) write(arrived[static_cast<std::size_t>(rank)], request, query, head, o, sum, most);
          }
        }
      }
    }
    const LeanDecodeArgs& last = arrived.back();
    if (mistake == Mistake::workspace_left) last.tickets[0] = 1;
    if (mistake == Mistake::exchange_left)
      *static_cast<unsigned char*>(const_cast<void*>(group->member(ranks - 1).slots())) = 1;
    if (mistake == Mistake::not_repeatable && launches > 1) *static_cast<std::uint16_t*>(first.o) ^= 1;
  }
  void write(const LeanDecodeArgs& rank, int request, int query, int head, const std::vector<double>& o, double sum,
             double most) const {
    auto* const to = static_cast<std::uint16_t*>(rank.o) + request * rank.o_stride_batch + query * rank.o_stride_token +
                     head * rank.o_stride_head;
    for (int column = 0; column < kHeadDim; ++column)
      to[column] =
          bits_of(DType::bf16, sum == 0 ? 0.0f : static_cast<float>(o[static_cast<std::size_t>(column)] / sum));
    rank.lse[(request * spec.features.q_len + query) * problem.q_heads + head] =
        static_cast<float>(sum == 0 ? -INFINITY : most + std::log(sum));
  }

  KernelSpec spec;
  DecodeProblem problem;                             ///< of the whole contexts
  inline static std::unique_ptr<CubinCache> cubins;  ///< of all tests, so that each kernel is compiled once
  std::optional<Context> context;
  std::optional<Stream> stream;
  std::unique_ptr<LoadedKernel> kernel;
  std::unique_ptr<GroupCase> group;
  std::vector<LeanDecodeArgs> arrived;  ///< of the ranks that have launched
  Mistake mistake = Mistake::none;
  int launches = 0;
};

TEST_F(GroupChecks, APartHasTheTokensOfItsRankAndNothingElse) {
  for (const Features& features : std::vector<Features>{
           {.context_parallel = 2},
           {.context_parallel = 4, .context_interleave = 16, .replicate_output = true},
           {.page_size = 16, .q_len = 3, .context_parallel = 2, .context_interleave = 1},
           {.page_size = 8, .window = 20, .sink_tokens = 3, .context_parallel = 2},
           {.page_size = 16, .window = 20, .sink_tokens = 3, .context_parallel = 4, .context_interleave = 8},
           {.q_len = 2, .append = true, .context_parallel = 2},
           {.page_size = 16, .append = true, .context_parallel = 2, .context_interleave = 16}}) {
    SCOPED_TRACE(to_json(features));
    open(features, std::vector<int>(static_cast<std::size_t>(features.context_parallel), 0));
    ASSERT_FALSE(HasFatalFailure());
    expect_right();
    ASSERT_TRUE(group->set_context_lengths({7, 128, 40, 3, 99}));
    expect_right();
  }
}

TEST_F(GroupChecks, RanksOfAnotherGpuHaveDataOfTheirOwn) {
  open({.context_parallel = 2}, {0, 1});
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(group->gpus(), 2);
  expect_right();
}

TEST_F(GroupChecks, EveryMistakeOfAKernelIsFound) {
  open({.q_len = 2, .append = true, .context_parallel = 2});
  ASSERT_FALSE(HasFatalFailure());
  expect_right();
  EXPECT_GT(check(Mistake::parts_swapped).error_ratio, 1);
  EXPECT_GT(check(Mistake::part_left_out).error_ratio, 1);
  EXPECT_NE(check(Mistake::foreign_head).first_failure.find("rank 0 wrote query head 7"), std::string::npos);
  EXPECT_NE(check(Mistake::workspace_left).first_failure.find("rank 1 left 1 bytes of the workspace"),
            std::string::npos);
  EXPECT_NE(check(Mistake::exchange_left).first_failure.find("rank 1 left 1 bytes of the exchange memory"),
            std::string::npos);
  EXPECT_EQ(check(Mistake::not_repeatable).unequal_repeats, 1);
  EXPECT_GT(check(Mistake::row_not_appended).wrong_appended, 0);
  const ComparisonReport twice = check(Mistake::row_appended_twice);
  EXPECT_NE(twice.first_failure.find("0 wrong elements of new tokens in its cache, and"), std::string::npos)
      << twice.first_failure;
  expect_right();
}

}  // namespace
}  // namespace leanattn
