// steps_gpu_test.cpp -- whole decode steps of the public interface append and rotate new tokens, do not depend on batch
// mates, and can share a prefix.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "leanattn/leanattn.hpp"
#include "tests/gpu/gpu_fixture.hpp"
#include "tuner/oracle/random_data.hpp"

namespace leanattn {
namespace {

using Bits = std::vector<std::uint16_t>;

std::uint16_t to_bf16(float x) { return bits_of(DType::bf16, x); }
float to_float(std::uint16_t x) { return static_cast<float>(value_of(DType::bf16, x)); }

constexpr std::uint16_t kNaN = 0x7fff;

Bits random_bf16(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Bits bits(count);
  for (auto& x : bits) x = to_bf16(normal(random));
  return bits;
}

class StepsOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto made = Engine::create({.device = 0, .cache_dir = {}, .disk_cache = false});
    ASSERT_TRUE(made) << made.error().message;
    engine.emplace(std::move(*made));
  }

  /// A device copy of `values` that lives as long as the test.
  template <class T>
  T* upload(const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    auto buffer = DeviceBuffer::allocate(std::max<std::int64_t>(bytes, 256));
    EXPECT_TRUE(buffer) << buffer.error().message;
    EXPECT_TRUE(copy_to_device_async(buffer->data(), values.data(), bytes, stream));
    EXPECT_TRUE(runner->stream_object().synchronize());
    buffers.push_back(std::move(*buffer));
    return buffers.back().as<T>();
  }
  template <class T>
  std::vector<T> download(const T* device, std::size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(
        copy_to_host(values.data(), device, static_cast<std::int64_t>(count * sizeof(T)), runner->stream_object()));
    return values;
  }

  void step(const Problem& problem, const PlanShape& shape, const DecodeArgs& args) {
    const auto plan = engine->plan(problem, shape, stream);
    ASSERT_TRUE(plan) << plan.error().message;
    const auto workspace = DeviceBuffer::allocate(plan->workspace_bytes());
    ASSERT_TRUE(workspace);
    ASSERT_TRUE(plan->init_workspace(workspace->data(), workspace->bytes(), stream));
    const auto launched = plan->launch(args, workspace->data(), stream);
    ASSERT_TRUE(launched) << launched.error().message;
    ASSERT_TRUE(runner->stream_object().synchronize());
  }

  std::optional<Engine> engine;
  std::vector<DeviceBuffer> buffers;
};

constexpr int kQHeads = 8, kKvHeads = 2, kDim = 128, kBatch = 3, kQLen = 2, kCapacity = 700;
const std::vector<int> kLengths{611, 2, 130};

std::size_t cache_row(int request, int head, int token) {
  return ((static_cast<std::size_t>(request) * kKvHeads + static_cast<std::size_t>(head)) * kCapacity +
          static_cast<std::size_t>(token)) *
         kDim;
}
std::size_t new_row(int request, int query, int head) {
  return ((static_cast<std::size_t>(request) * kQLen + static_cast<std::size_t>(query)) * kKvHeads +
          static_cast<std::size_t>(head)) *
         kDim;
}

/// Rotates a row in place by the kernel's table.
void rotate(std::uint16_t* row, const float* table, bool interleaved) {
  for (int i = 0; i < kDim / 2; ++i) {
    const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + kDim / 2;
    const float x = to_float(row[a]), y = to_float(row[b]), c = table[i], s = table[kDim / 2 + i];
    row[a] = to_bf16(x * c - y * s), row[b] = to_bf16(y * c + x * s);
  }
}

class AppendOnGpu : public StepsOnGpu, public testing::WithParamInterface<RopePairing> {};
INSTANTIATE_TEST_SUITE_P(Pairings, AppendOnGpu,
                         testing::Values(RopePairing::none, RopePairing::half_split, RopePairing::interleaved));

TEST_P(AppendOnGpu, OneLaunchDoesWhatRotatingWritingAndAttendingDo) {
  const RopePairing rope = GetParam();
  Bits q = random_bf16(kBatch * kQLen * kQHeads * kDim, 1), k_new = random_bf16(kBatch * kQLen * kKvHeads * kDim, 2),
       v_new = random_bf16(k_new.size(), 3), k = random_bf16(cache_row(kBatch, 0, 0), 4), v = random_bf16(k.size(), 5);
  std::vector<float> table(static_cast<std::size_t>(kCapacity) * kDim);
  for (int position = 0; position < kCapacity; ++position) {
    for (int i = 0; i < kDim / 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / kDim);
      table[static_cast<std::size_t>(position * kDim + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<std::size_t>(position * kDim + kDim / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  // The new rows are NaN in the cache to which the kernel appends, and right in the other one.
  Bits k_after = k, v_after = v, q_after = q;
  for (int request = 0; request < kBatch; ++request) {
    for (int query = 0; query < kQLen; ++query) {
      const int position = kLengths[static_cast<std::size_t>(request)] - kQLen + query;
      const float* row_table = &table[static_cast<std::size_t>(position * kDim)];
      for (int head = 0; head < kKvHeads; ++head) {
        const std::size_t to = cache_row(request, head, position), from = new_row(request, query, head);
        std::copy_n(&k_new[from], kDim, &k_after[to]);
        std::copy_n(&v_new[from], kDim, &v_after[to]);
        std::fill_n(&k[to], kDim, kNaN);
        std::fill_n(&v[to], kDim, kNaN);
        if (rope != RopePairing::none) rotate(&k_after[to], row_table, rope == RopePairing::interleaved);
      }
      for (int head = 0; head < kQHeads && rope != RopePairing::none; ++head) {
        rotate(&q_after[static_cast<std::size_t>((request * kQLen + query) * kQHeads + head) * kDim], row_table,
               rope == RopePairing::interleaved);
      }
    }
  }
  const Problem plain{.q_heads = kQHeads, .kv_heads = kKvHeads, .head_dim = kDim, .q_len = kQLen};
  Problem appending = plain;
  appending.append = true;
  appending.rope = rope;
  const PlanShape shape{.batch = kBatch, .longest_context = 611, .total_context = 743};
  DecodeArgs args;
  args.batch = kBatch;
  args.context_capacity = kCapacity;
  args.context_lengths = upload(std::vector<std::int32_t>(kLengths.begin(), kLengths.end()));
  args.q = upload(q_after), args.k = upload(k_after), args.v = upload(v_after);
  auto* expected_o = upload(Bits(q.size(), kNaN));
  args.o = expected_o;
  ASSERT_NO_FATAL_FAILURE(step(plain, shape, args));

  std::uint16_t *k_cache = upload(k), *v_cache = upload(v), *o = upload(Bits(q.size(), kNaN));
  args.q = upload(q), args.k = k_cache, args.v = v_cache, args.o = o;
  args.k_new = upload(k_new), args.v_new = upload(v_new);
  if (rope != RopePairing::none) args.rope_table = upload(table);
  ASSERT_NO_FATAL_FAILURE(step(appending, shape, args));

  const Bits k_got = download(k_cache, k.size()), v_got = download(v_cache, v.size()), o_got = download(o, q.size()),
             o_expected = download(expected_o, q.size());
  EXPECT_EQ(v_got, v_after);
  if (rope == RopePairing::none) {
    EXPECT_EQ(k_got, k_after);
    EXPECT_EQ(o_got, o_expected) << "the same kernel on the same bytes";
    return;
  }
  // The device fuses products and sums, so that a rotated element may differ in its last place.
  for (std::size_t i = 0; i < k_got.size(); ++i) {
    ASSERT_NEAR(to_float(k_got[i]), to_float(k_after[i]), 0.01f + 0.01f * std::abs(to_float(k_after[i]))) << i;
  }
  for (std::size_t i = 0; i < o_got.size(); ++i) {
    ASSERT_NEAR(to_float(o_got[i]), to_float(o_expected[i]), 0.03f) << i;
  }
}

TEST_F(StepsOnGpu, BatchMatesDoNotChangeABit) {
  const std::vector<std::int32_t> lengths{5000, 1, 3000, 9000, 2048, 0};
  constexpr int kLongest = 9000;
  const auto batch = static_cast<int>(lengths.size());
  const std::size_t q_row = kQHeads * kDim, kv_rows = static_cast<std::size_t>(kKvHeads) * kLongest * kDim;
  const Problem problem{
      .q_heads = kQHeads, .kv_heads = kKvHeads, .head_dim = kDim, .lse = true, .batch_invariant = true};
  std::uint16_t *q = upload(random_bf16(lengths.size() * q_row, 1)),
                *k = upload(random_bf16(lengths.size() * kv_rows, 2)),
                *v = upload(random_bf16(lengths.size() * kv_rows, 3));
  const std::int32_t* device_lengths = upload(lengths);
  const auto run = [&](int first, int count, int max_batch, Bits& o, std::vector<float>& lse) {
    auto* out = upload(Bits(static_cast<std::size_t>(count) * q_row, kNaN));
    auto* out_lse = upload(std::vector<float>(static_cast<std::size_t>(count) * kQHeads, NAN));
    DecodeArgs args;
    const auto skip = static_cast<std::size_t>(first);
    args.q = q + skip * q_row, args.k = k + skip * kv_rows, args.v = v + skip * kv_rows;
    args.o = out, args.lse = out_lse;
    args.context_lengths = device_lengths + first;
    args.batch = count;
    args.context_capacity = kLongest;
    ASSERT_NO_FATAL_FAILURE(step(problem, {.batch = count, .max_batch = max_batch, .longest_context = kLongest}, args));
    o = download(out, static_cast<std::size_t>(count) * q_row);
    lse = download(out_lse, static_cast<std::size_t>(count) * kQHeads);
  };
  Bits together, alone;
  std::vector<float> lse_together, lse_alone;
  ASSERT_NO_FATAL_FAILURE(run(0, batch, batch, together, lse_together));
  EXPECT_NE(together[0], kNaN);
  for (int request = 0; request < batch; ++request) {
    ASSERT_NO_FATAL_FAILURE(run(request, 1, 1, alone, lse_alone));
    const auto at = static_cast<std::size_t>(request);
    EXPECT_EQ(std::memcmp(alone.data(), &together[at * q_row], q_row * 2), 0) << "request " << request;
    EXPECT_EQ(std::memcmp(lse_alone.data(), &lse_together[at * kQHeads], kQHeads * 4), 0) << "request " << request;
  }
  // Now the request has neighbours on one side only, and the grid is another.
  ASSERT_NO_FATAL_FAILURE(run(1, 3, 3, alone, lse_alone));
  EXPECT_EQ(std::memcmp(alone.data(), &together[q_row], 3 * q_row * 2), 0);
}

TEST_F(StepsOnGpu, HolesOfAPageTableAreAsIfTheirPagesWereNotThere) {
  // Keys are not rotated, so that a context with holes is the same as the shorter one without them. The pages that the
  // holes would name wildly, and page 0, are NaN.
  constexpr int kPage = 16, kPages = 60, kMaxPages = 24, kRequests = 4;
  const std::vector<std::int32_t> holes{-1, kPages, std::numeric_limits<std::int32_t>::max(),
                                        std::numeric_limits<std::int32_t>::min()};
  const std::size_t page_size = static_cast<std::size_t>(kKvHeads) * kPage * kDim, q_size = kRequests * kQHeads * kDim;
  Bits k = random_bf16(kPages * page_size, 2), v = random_bf16(k.size(), 3);
  std::fill_n(k.begin(), page_size, kNaN), std::fill_n(v.begin(), page_size, kNaN);
  std::vector<std::int32_t> with_holes(kRequests * kMaxPages, -1), without = with_holes, long_lengths, short_lengths;
  std::mt19937 random(5);
  for (int request = 0; request < kRequests; ++request) {
    int written = 0, kept = 0, page = 1 + request * 13;
    // The last page is not full and no hole. The last request has nothing but holes before it.
    for (; written < kMaxPages - 1 && kept < 11; ++written) {
      const bool hole = request == kRequests - 1 || random() % 3 == 0;
      const auto at = static_cast<std::size_t>(request * kMaxPages);
      if (hole) {
        with_holes[at + static_cast<std::size_t>(written)] = holes[random() % holes.size()];
      } else {
        with_holes[at + static_cast<std::size_t>(written)] = without[at + static_cast<std::size_t>(kept++)] = page++;
      }
    }
    with_holes[static_cast<std::size_t>(request * kMaxPages + written)] =
        without[static_cast<std::size_t>(request * kMaxPages + kept)] = page;
    long_lengths.push_back(written * kPage + 5), short_lengths.push_back(kept * kPage + 5);
  }
  const Problem problem{.q_heads = kQHeads, .kv_heads = kKvHeads, .head_dim = kDim, .lse = true, .page_size = kPage};
  DecodeArgs args;
  args.q = upload(random_bf16(q_size, 1)), args.k = upload(k), args.v = upload(v);
  args.batch = kRequests, args.max_pages = kMaxPages, args.pool_pages = kPages;
  const auto run = [&](const std::vector<std::int32_t>& table, const std::vector<std::int32_t>& lengths, Bits& o,
                       std::vector<float>& lse) {
    args.page_table = upload(table), args.context_lengths = upload(lengths);
    args.o = upload(Bits(q_size, kNaN)), args.lse = upload(std::vector<float>(kRequests * kQHeads, NAN));
    step(problem, {.batch = kRequests, .longest_context = kMaxPages * kPage}, args);
    o = download(static_cast<const std::uint16_t*>(args.o), q_size), lse = download(args.lse, kRequests * kQHeads);
  };
  Bits got, expected;
  std::vector<float> got_lse, expected_lse;
  ASSERT_NO_FATAL_FAILURE(run(with_holes, long_lengths, got, got_lse));
  ASSERT_NO_FATAL_FAILURE(run(without, short_lengths, expected, expected_lse));
  for (std::size_t i = 0; i < q_size; ++i) ASSERT_NEAR(to_float(got[i]), to_float(expected[i]), 4e-3f) << i;
  for (std::size_t i = 0; i < got_lse.size(); ++i) ASSERT_NEAR(got_lse[i], expected_lse[i], 1e-3f) << i;
}

TEST_F(StepsOnGpu, ASharedPrefixReadOnceGivesTheWholeResult) {
  constexpr int kPrefix = 900, kOwn = 200, kRequests = 6, kWhole = kPrefix + kOwn;
  const std::vector<std::int32_t> own{200, 1, 57, 0, 128, 199};
  const std::size_t q_size = kRequests * kQHeads * kDim;
  const Bits q = random_bf16(q_size, 1), prefix_k = random_bf16(kKvHeads * kPrefix * kDim, 2),
             prefix_v = random_bf16(prefix_k.size(), 3), own_k = random_bf16(kRequests * kKvHeads * kOwn * kDim, 4),
             own_v = random_bf16(own_k.size(), 5);
  const auto joined = [&](const Bits& prefix, const Bits& rest) {
    Bits whole(static_cast<std::size_t>(kRequests) * kKvHeads * kWhole * kDim);
    for (std::size_t row = 0; row < kRequests * kKvHeads; ++row) {
      std::copy_n(&prefix[row % kKvHeads * kPrefix * kDim], kPrefix * kDim, &whole[row * kWhole * kDim]);
      std::copy_n(&rest[row * kOwn * kDim], kOwn * kDim, &whole[row * kWhole * kDim + kPrefix * kDim]);
    }
    return whole;
  };
  const Problem problem{.q_heads = kQHeads, .kv_heads = kKvHeads, .head_dim = kDim, .lse = true};
  std::vector<std::int32_t> whole_lengths = own;
  for (auto& length : whole_lengths) length += kPrefix;
  const auto outputs = [&](DecodeArgs& args) {
    args.o = upload(Bits(q_size, kNaN));
    args.lse = upload(std::vector<float>(kRequests * kQHeads, NAN));
  };
  DecodeArgs whole;
  whole.q = upload(q), whole.k = upload(joined(prefix_k, own_k)), whole.v = upload(joined(prefix_v, own_v));
  whole.context_lengths = upload(whole_lengths);
  whole.batch = kRequests, whole.context_capacity = kWhole;
  outputs(whole);
  ASSERT_NO_FATAL_FAILURE(step(problem, {.batch = kRequests, .longest_context = kWhole}, whole));

  Problem shared = problem;
  shared.q_len = kRequests, shared.query_mask = AttentionMask::full;
  DecodeArgs prefix;
  prefix.q = whole.q, prefix.k = upload(prefix_k), prefix.v = upload(prefix_v);
  prefix.context_lengths = upload(std::vector<std::int32_t>{kPrefix});
  prefix.batch = 1, prefix.context_capacity = kPrefix;
  outputs(prefix);
  ASSERT_NO_FATAL_FAILURE(step(shared, {.batch = 1, .longest_context = kPrefix}, prefix));
  DecodeArgs rest;
  rest.q = whole.q, rest.k = upload(own_k), rest.v = upload(own_v);
  rest.context_lengths = upload(own);
  rest.batch = kRequests, rest.context_capacity = kOwn;
  outputs(rest);
  ASSERT_NO_FATAL_FAILURE(step(problem, {.batch = kRequests, .longest_context = kOwn}, rest));

  leanattn_merge_args merge;
  leanattn_merge_args_init(&merge);
  merge.o[0] = prefix.o, merge.o[1] = rest.o, merge.lse[0] = prefix.lse, merge.lse[1] = rest.lse;
  merge.out_o = prefix.o, merge.out_lse = prefix.lse;  // The result replaces the prefix's.
  merge.rows = kRequests * kQHeads, merge.parts = 2, merge.dim = kDim;
  const auto merged = engine->merge_partials(merge, stream);
  ASSERT_TRUE(merged) << merged.error().message;
  ASSERT_TRUE(runner->stream_object().synchronize());

  const Bits expected = download(static_cast<const std::uint16_t*>(whole.o), q_size),
             got = download(static_cast<const std::uint16_t*>(prefix.o), q_size);
  const auto expected_lse = download(whole.lse, kRequests * kQHeads),
             got_lse = download(prefix.lse, kRequests * kQHeads);
  for (std::size_t i = 0; i < q_size; ++i) ASSERT_NEAR(to_float(got[i]), to_float(expected[i]), 4e-3f) << i;
  for (std::size_t i = 0; i < got_lse.size(); ++i) ASSERT_NEAR(got_lse[i], expected_lse[i], 1e-3f) << i;
}

}  // namespace
}  // namespace leanattn
