// array_check_test.cpp -- what LEANATTN_DEBUG=1 finds in the arrays of a launch. A fictional GPU runs the code of the
// kernel on the host.
#include "runtime/engine/array_check.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/cuda/nvrtc.hpp"
#include "templates/check/pages.cuh"
#include "templates/check/workspace.cuh"
#include "tests/unit/runtime/fake_cuda.hpp"

namespace leanattn {
namespace {

/// Runs the kernels of the checks, one thread after the other.
void run_on_host(const std::string& kernel, void** params) {
  if (kernel == "lean_check_workspace") {
    const auto* const words = *static_cast<const unsigned**>(params[0]);
    const auto count = *static_cast<unsigned long long*>(params[1]);
    auto* const offender = *static_cast<unsigned long long**>(params[2]);
    constexpr unsigned long long kThreads = 7;
    for (unsigned long long thread = 0; thread < kThreads; ++thread)
      *offender = std::min(*offender, lean_find_nonzero(words, count, thread, kThreads));
    return;
  }
  ASSERT_EQ(kernel, "lean_check_arrays");
  const auto& args = *static_cast<const LeanDecodeArgs*>(params[0]);
  const auto& limits = *static_cast<const LeanArrayLimits*>(params[1]);
  auto* const offender = *static_cast<unsigned long long**>(params[2]);
  constexpr int kThreads = 3;
  for (int request = 0; request < args.batch; ++request) {
    for (int thread = 0; thread < kThreads; ++thread) {
      *offender = std::min(*offender, lean_find_offender(args, limits, request, thread, kThreads));
    }
  }
}

class ArrayChecks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
    fake_gpu() = FakeGpu{};
    fake_gpu().run = run_on_host;
    context_.emplace(std::move(*Context::retain(0)));
    auto check = ArrayCheck::load({9, 0, true}, nullptr);
    ASSERT_TRUE(check) << check.error().message << check.error().log;
    check_.emplace(*std::move(check));
    // Three requests of 40, 0 and 33 tokens in pages of 16.
    problem_.features.page_size = 16;
    args_.batch = 3;
    args_.context_capacity = 64;
    args_.context_lengths = lengths_.data();
    args_.page_table = pages_.data();
    args_.page_table_stride = 5;
    args_.pool_pages = 8;
    args_.q_offsets = offsets_.data();
    args_.query_tokens = 12;
  }
  void TearDown() override {
    check_.reset();
    context_.reset();
    EXPECT_EQ(fake_gpu().live_objects(), 0);
  }

  /// The message about what is wrong; empty when nothing is.
  std::string finds() const {
    const auto ok = (*check_)(problem_, args_, nullptr);
    if (ok) return "";
    EXPECT_EQ(ok.error().code, ErrorCode::invalid_argument);
    EXPECT_FALSE(ok.error().hint.empty());
    return ok.error().message;
  }

  std::optional<Context> context_;
  std::optional<ArrayCheck> check_;
  DecodeProblem problem_;
  LeanDecodeArgs args_{};
  std::vector<int> lengths_{40, 0, 33};
  // Entries behind a context may be anything.
  std::vector<int> pages_{7, 0, 3, -1, 99, -1, -1, -1, -1, -1, 3, 3, 1, 1 << 30, -7};
  std::vector<int> offsets_{0, 4, 4, 7};
};

TEST_F(ArrayChecks, FindNothingInASoundLaunch) { EXPECT_EQ(finds(), ""); }

TEST_F(ArrayChecks, NameTheFirstWordOfAWorkspaceThatIsNotZero) {
  std::vector<std::uint32_t> workspace(1000);
  const auto bytes = static_cast<std::int64_t>(workspace.size() * 4);
  EXPECT_TRUE(check_->expect_zero(workspace.data(), bytes, nullptr));
  for (const std::size_t word : {999, 500, 0}) {
    workspace[word] = 0x80000000u + static_cast<std::uint32_t>(word);
    const auto found = check_->expect_zero(workspace.data(), bytes, nullptr);
    ASSERT_FALSE(found) << word;
    EXPECT_EQ(found.error().code, ErrorCode::workspace_corrupt);
    EXPECT_NE(found.error().message.find(fmt::format("word {} of workspace {} is {:#x}", word,
                                                     static_cast<const void*>(workspace.data()), workspace[word])),
              std::string::npos)
        << found.error().message;
    EXPECT_FALSE(found.error().hint.empty());
  }
  EXPECT_TRUE(check_->expect_zero(workspace.data() + 1, 4 * 499, nullptr)) << "what is no part of it may be anything";
}

TEST_F(ArrayChecks, NameTheFirstLengthBeyondTheCapacity) {
  lengths_[2] = 65;
  EXPECT_EQ(finds(), "context_lengths[2] is 65, and the capacity 64");
  lengths_[1] = -3;
  EXPECT_EQ(finds(), "context_lengths[1] is -3, and the capacity 64");
}

TEST_F(ArrayChecks, NameTheFirstPageThatIsUsedAndDoesNotExist) {
  pages_[12] = 8;
  EXPECT_EQ(finds(), "page_table, request 2, entry 2 is 8, and the pool has 8 pages");
  pages_[10] = -1;
  EXPECT_EQ(finds(), "page_table, request 2, entry 0 is -1, and the pool has 8 pages");
  lengths_[0] = 49;  // needs a fourth page
  EXPECT_EQ(finds(), "page_table, request 0, entry 3 is -1, and the pool has 8 pages");
}

TEST_F(ArrayChecks, NameTheFirstCountOfAListThatHasFewerEntries) {
  problem_.features.selection_block = 16, problem_.features.q_len = 2;
  std::vector<int> counts{5, 0, 3, 5, 1, 2};
  args_.selected_counts = counts.data(), args_.selection_capacity = 5;
  pages_[1] = -1;  // which may be nobody's choice
  EXPECT_EQ(finds(), "");
  counts[3] = 6;
  EXPECT_EQ(finds(), "selected_counts, request 1, query token 1 is 6, and lists have 5 entries");
  counts[0] = -1;
  EXPECT_EQ(finds(), "selected_counts, request 0, query token 0 is -1, and lists have 5 entries");
  counts[0] = counts[3] = 5;
  problem_.features.selection_in_pool = true;
  args_.context_lengths = nullptr, args_.page_table = nullptr;
  EXPECT_EQ(finds(), "");
}

TEST_F(ArrayChecks, NameTheFirstLengthThatASecondCacheDoesNotHave) {
  problem_.features.selection_block = 16, problem_.features.q_len = 2, problem_.features.second_cache = true;
  std::vector<int> counts{5, 0, 3, 5, 1, 2}, lengths{32, 0, 7, 1, 2, 3};
  args_.selected_counts = counts.data(), args_.selection_capacity = 5;
  args_.second_lengths = lengths.data(), args_.second_capacity = 32;
  EXPECT_EQ(finds(), "");
  lengths[3] = 33;
  EXPECT_EQ(finds(), "second_lengths, request 1, query token 1 is 33, and the second cache has 32 tokens a request");
  lengths[2] = -1;
  EXPECT_EQ(finds(), "second_lengths, request 1, query token 0 is -1, and the second cache has 32 tokens a request");
  counts[2] = 6;
  EXPECT_EQ(finds(), "selected_counts, request 1, query token 0 is 6, and lists have 5 entries");
}

TEST_F(ArrayChecks, NameTheFirstSpanThatDoesNotHoldItsQueryTokensOrOverlapsAnother) {
  // Query tokens 0 to 3 are tokens 36 to 39 of request 0, and 4 to 6 tokens 30 to 32 of request 2.
  problem_.features.q_len = 4, problem_.features.ragged_q = problem_.features.spans = true;
  const std::vector<LeanSpan> sound{{30, 38}, {31, 38}, {0, 0}, {39, 50}, {0, 0}, {31, 32}, {32, 33}};
  std::vector<LeanSpan> spans = sound;
  args_.spans = spans.data();
  EXPECT_EQ(finds(), "");
  const auto expect = [&](std::size_t token, LeanSpan span, const std::string& message) {
    spans = sound;
    spans[token] = span;
    EXPECT_EQ(finds(), message);
  };
  expect(2, {38, 38}, "spans[2], of query token 2 of request 0, is 38 to 38");
  expect(2, {39, 41}, "spans[2], of query token 2 of request 0, is 39 to 41");
  expect(2, {30, 39}, "spans[2], of query token 2 of request 0, is 30 to 39");
  expect(3, {38, 50}, "spans[3], of query token 3 of request 0, is 38 to 50");
  expect(5, {31, 34}, "spans[6], of query token 2 of request 2, is 32 to 33");
  expect(1, {29, 38}, "spans[1], of query token 1 of request 0, is 29 to 38");
  expect(0, {-1, 38}, "spans[0], of query token 0 of request 0, is -1 to 38");
  expect(1, {0, 0}, "spans[1], of query token 1 of request 0, is 0 to 0");
}

TEST_F(ArrayChecks, NameTheFirstOffsetOfPackedKeysThatFallsOrLeavesTheRows) {
  problem_.features.packed_kv = true, problem_.features.page_size = 0;
  std::vector<int> offsets{0, 40, 40, 64};  // the capacity
  args_.context_lengths = offsets.data(), args_.page_table = nullptr;
  EXPECT_EQ(finds(), "");
  offsets[3] = 65;
  EXPECT_EQ(finds(), "kv_offsets[2] is 40 and kv_offsets[3] 65, and k and v have 64 rows");
  offsets[2] = 39;
  EXPECT_EQ(finds(), "kv_offsets[1] is 40 and kv_offsets[2] 39, and k and v have 64 rows");
  offsets[0] = -1;
  EXPECT_EQ(finds(), "kv_offsets[0] is -1 and kv_offsets[1] 40, and k and v have 64 rows");
}

TEST_F(ArrayChecks, LookAtPagesThatASpanShowsBesideTheWindow) {
  problem_.features.q_len = 4, problem_.features.ragged_q = problem_.features.spans = true;
  problem_.features.window = 2;  // request 0 sees tokens 35 to 39
  pages_[0] = pages_[1] = -1;
  std::vector<LeanSpan> spans(7);
  args_.spans = spans.data();
  EXPECT_EQ(finds(), "");
  spans[0] = {31, 37};
  EXPECT_EQ(finds(), "page_table, request 0, entry 1 is -1, and the pool has 8 pages");
}

TEST_F(ArrayChecks, LeavePagesAloneThatAWindowHides) {
  problem_.features.window = 8;  // request 0 sees tokens 32 to 39, request 2 25 to 32
  pages_[0] = pages_[1] = pages_[10] = -1;
  EXPECT_EQ(finds(), "");
  problem_.features.window = 9;  // now request 0 sees token 31, which is on the second page
  EXPECT_EQ(finds(), "page_table, request 0, entry 1 is -1, and the pool has 8 pages");
  problem_.features.window = 8;
  problem_.features.sink_tokens = 1;
  EXPECT_EQ(finds(), "page_table, request 0, entry 0 is -1, and the pool has 8 pages");
  problem_.features.sink_tokens = 0;
  problem_.features.q_len = 2;  // the first query token sees one token more
  EXPECT_EQ(finds(), "page_table, request 0, entry 1 is -1, and the pool has 8 pages");
}

TEST_F(ArrayChecks, LeavePagesAloneThatAWindowOverAWholeContextHidesFromARank) {
  problem_.features.context_parallel = 2, problem_.features.window = 20;
  // The parts of request 0 and 2 are tokens 10 to 49 of 60, and 0 to 32 of 100.
  std::vector<int> full{60, 0, 100}, starts{10, 0, 0};
  args_.full_lengths = full.data(), args_.context_starts = starts.data(), args_.context_rank = 0;
  pages_[0] = pages_[10] = pages_[11] = pages_[12] = -1;  // request 0 is seen from its token 30 on
  EXPECT_EQ(finds(), "");
  pages_[1] = -1;
  EXPECT_EQ(finds(), "page_table, request 0, entry 1 is -1, and the pool has 8 pages");
  pages_[1] = 1;
  problem_.features.sink_tokens = 11;  // one of them is this rank's
  EXPECT_EQ(finds(), "page_table, request 0, entry 0 is -1, and the pool has 8 pages");
  problem_.features.sink_tokens = 10;
  EXPECT_EQ(finds(), "page_table, request 2, entry 0 is -1, and the pool has 8 pages");
  // Units of 16 tokens in turn: rank 1 has tokens 16 to 31, 48 to 63 and 80 to 87 of 88.
  problem_.features.context_interleave = 16, problem_.features.sink_tokens = 0;
  full = {88, 0, 88}, lengths_ = {40, 0, 40}, args_.context_starts = nullptr, args_.context_rank = 1;
  problem_.features.window = 24;  // from token 64 on
  pages_[0] = pages_[1] = pages_[10] = pages_[11] = -1, pages_[12] = 2;
  EXPECT_EQ(finds(), "");
  problem_.features.window = 25;
  EXPECT_EQ(finds(), "page_table, request 0, entry 1 is -1, and the pool has 8 pages");
}

TEST_F(ArrayChecks, NameQueryOffsetsThatFallOrRiseTooFar) {
  problem_.features.q_len = 4;
  problem_.features.ragged_q = true;
  EXPECT_EQ(finds(), "");
  offsets_[3] = 9;
  EXPECT_EQ(finds(), "q_offsets[2] is 4 and q_offsets[3] 9");
  offsets_[2] = 3;
  EXPECT_EQ(finds(), "q_offsets[1] is 4 and q_offsets[2] 3");
  offsets_[0] = -1;
  EXPECT_EQ(finds(), "q_offsets[0] is -1 and q_offsets[1] 4");
}

TEST_F(ArrayChecks, NameQueryOffsetsBeyondTheTensor) {
  problem_.features = {.q_len = 4, .ragged_q = true};
  args_.query_tokens = offsets_[3];
  EXPECT_EQ(finds(), "");
  offsets_[3] += 1;
  EXPECT_EQ(finds(), fmt::format("q_offsets[2] is {} and q_offsets[3] {}", offsets_[2], offsets_[3]));
  args_.query_tokens = 3;
  EXPECT_EQ(finds(), "q_offsets[0] is 0 and q_offsets[1] 4") << "the first such request";
}

TEST_F(ArrayChecks, OfADenseCacheLookAtLengthsAlone) {
  problem_.features = {};
  args_.page_table = nullptr;
  args_.q_offsets = nullptr;
  EXPECT_EQ(finds(), "");
  lengths_[0] = 1000;
  EXPECT_EQ(finds(), "context_lengths[0] is 1000, and the capacity 64");
}

TEST_F(ArrayChecks, ALostContextIsReportedAsOne) {
  fake_gpu().fail_once["cuStreamSynchronize"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  const auto lost = (*check_)(problem_, args_, nullptr);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::context_lost);
}

}  // namespace
}  // namespace leanattn
