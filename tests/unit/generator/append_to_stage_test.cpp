// append_to_stage_test.cpp -- new rows of load path "tensor", stored by the threads of warpgroups one after the other:
// each stands where a swizzled tensor copy would have put it, and in the cache once. The modules of kernels are
// compiled here as they are, once for each set of constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace append_to_stage {

/// Stands for the rotation: the first word changes with the chunk and the position.
u32 turned(u32 word, int column, int position) { return word ^ static_cast<u32>(column * 7 + position * 64); }
uint4 rotated_16(const LeanDecodeArgs&, const char* row, int column, int position) {
  uint4 x = load_cached<uint4>(row + 2 * column);
  x.x = turned(x.x, column, position);
  return x;
}

/// The parts of a stage, one bit each, and those of the step for which this thread has waited.
u32 g_parts = 1, g_arrived = 0;
/// Shared memory, whose addresses count from its beginning, and what the threads have made visible of it.
std::vector<unsigned char> g_stages;
int g_fences = 0, g_barriers = 0;
constexpr u32 kStage = 2, kParity = 1;
bool is_complete(u32 barrier, u32 parity) {
  const u32 number = barrier / 8, parts = static_cast<u32>(std::popcount(g_parts));
  EXPECT_EQ(parity, kParity);
  EXPECT_EQ(number / parts, kStage);
  g_arrived |= 1u << number % parts;
  return true;
}
void store_shared_16(u32 address, const uint4& x) {
  EXPECT_EQ(g_arrived, g_parts) << "copies that come later would bring the old row again";
  std::memcpy(g_stages.data() + address, &x, 16);
}
void fence_async_proxy() { ++g_fences; }
void sync_warpgroup(int) { ++g_barriers; }

#include "tests/device/begin.cuh"
constexpr int kWindow = 1;  // segments may begin behind tokens that nobody sees
#include "tests/device/given_line.cuh"
#define CONSTANTS(latent, head_dim, value_dim, page, ragged, all_take_steps, parts)   \
  constexpr bool kLatent = latent, kRaggedQ = ragged, kAllTakeSteps = all_take_steps; \
  constexpr int kHeadDim = head_dim, kValueDim = value_dim, kPageSize = page, kStageParts = parts;
namespace pages {
CONSTANTS(false, 128, 64, 16, false, false, 1)
#include "templates/kv/page_table.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/append_to_stage.cuh"
}  // namespace pages
namespace dense {
CONSTANTS(false, 64, 128, 0, true, true, 1)
#include "templates/kv/page_table.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/append_to_stage.cuh"
}  // namespace dense
namespace latent {
CONSTANTS(true, 576, 512, 1, false, true, 2)
#include "templates/kv/page_table.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/append_to_stage.cuh"
}  // namespace latent
#undef CONSTANTS
#include "tests/device/end.cuh"

constexpr int kPanelBytes = kStepTokens * 128, kRequests = 3, kKvHeads = 2, kMostTokens = 400, kMostQueries = 70;
constexpr unsigned char kCopied = 0xc0, kCached = 0xa5;

/// A cache of kCached, and new rows of random elements. Strides count elements of two bytes.
struct Rows {
  int k_dims, v_dims, page_size;
  std::vector<unsigned char> k, v;
  std::vector<std::uint16_t> k_new, v_new;
  std::vector<int> table;
  LeanDecodeArgs args{};

  /// v_dims: 0 for a latent cache. page_size: 0 for a dense one.
  Rows(int of_k, int of_v, int page, bool ragged) : k_dims(of_k), v_dims(of_v), page_size(page) {
    std::mt19937 random(11);
    const int rows = kRequests * kMostTokens * kKvHeads, fresh = kRequests * kMostQueries * kKvHeads;
    k.assign(static_cast<std::size_t>(rows * (k_dims + 8)) * 2, kCached);
    v.assign(static_cast<std::size_t>(rows * (v_dims + 16)) * 2, kCached);
    for (int i = 0; i < fresh * k_dims; ++i) k_new.push_back(static_cast<std::uint16_t>(random()));
    for (int i = 0; i < fresh * v_dims; ++i) v_new.push_back(static_cast<std::uint16_t>(random()));
    const int outer_tokens = page > 0 ? page : kMostTokens;
    args.k = k.data(), args.v = v.data(), args.k_new = k_new.data(), args.v_new = v_new.data();
    // K has its tokens first and then its heads, V the other way round.
    args.k_stride_head = k_dims + 8, args.k_stride_token = kKvHeads * args.k_stride_head;
    args.k_stride_batch = outer_tokens * args.k_stride_token;
    args.v_stride_token = v_dims + 16, args.v_stride_head = outer_tokens * args.v_stride_token;
    args.v_stride_batch = kKvHeads * args.v_stride_head;
    args.k_new_stride_head = k_dims, args.k_new_stride_token = kKvHeads * k_dims;
    args.v_new_stride_head = v_dims, args.v_new_stride_token = kKvHeads * v_dims;
    args.k_new_stride_batch = ragged ? 0 : kMostQueries * args.k_new_stride_token;
    args.v_new_stride_batch = ragged ? 0 : kMostQueries * args.v_new_stride_token;
    if (page > 0) {
      const int pages = kMostTokens / page;
      for (int i = 0; i < kRequests * pages; ++i) table.push_back(kRequests * pages - 1 - i);
      args.page_table = table.data(), args.page_table_stride = pages, args.pool_pages = kRequests * pages;
    }
  }

  /// The bytes of a query token's new row, of K as it is turned for `position`.
  std::vector<unsigned char> new_row(const std::vector<std::uint16_t>& from, int dims, int row, int kv_head,
                                     int position) const {
    std::vector<unsigned char> bytes(static_cast<std::size_t>(2 * dims));
    if (dims > 0) std::memcpy(bytes.data(), from.data() + (row * kKvHeads + kv_head) * dims, bytes.size());
    for (int column = 0; position >= 0 && column < dims; column += 8) {
      u32 word = 0;
      std::memcpy(&word, bytes.data() + 2 * column, 4);
      word = turned(word, column, position);
      std::memcpy(bytes.data() + 2 * column, &word, 4);
    }
    return bytes;
  }
  std::size_t offset(int token, int request, i64 batch, i64 head, i64 stride, int kv_head) const {
    i64 outer = request;
    if (page_size > 0) outer = table[static_cast<std::size_t>(request * args.page_table_stride + token / page_size)];
    const i64 at = page_size > 0 ? token % page_size : token;
    return static_cast<std::size_t>(2 * (outer * batch + kv_head * head + at * stride));
  }

  /// Lets all threads of `warpgroups` store the new rows of all steps of a segment, and compares the stages and every
  /// byte of the cache. `hole` is a token whose page nobody has, or below 0. Each warpgroup has stages of its own here,
  /// so that what only one of them stores shows. Answers how many rows the steps had.
  template <class Load, class Append>
  int expect_rows(const Segment& s, int first_row, int warpgroups, int hole, Load load, Append append) {
    const std::size_t k_bytes = static_cast<std::size_t>(k_dims * kPanelBytes / 64),
                      stage_bytes = k_bytes + static_cast<std::size_t>(v_dims * kPanelBytes / 64);
    std::vector<unsigned char> k_expected = k, v_expected = v;
    int found = 0;
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      for (int read = first_read(s); read < end_read(s); read += kStepTokens) {
        const Step step = step_at(s, read);
        g_stages.assign(3 * stage_bytes, kCopied);
        g_fences = g_barriers = 0;
        for (unsigned thread = 0; thread < 128; ++thread) {
          threadIdx.x = static_cast<unsigned>(warpgroup) * 128 + thread;
          g_arrived = 0;
          append(args, s, step, {}, {kStage, kParity}, load(args, s, static_cast<int>(thread)), warpgroup);
        }
        std::vector<unsigned char> stages(3 * stage_bytes, kCopied);
        bool any = false;
        for (int query = 0; query < s.query.count; ++query) {
          const int token = s.context_length - s.query.count + query, row = token - step.token;
          if (token < 0 || row < 0 || row >= step.count) continue;
          any = true;
          if (token == hole) continue;
          if (warpgroup == 0) ++found;
          const auto put = [&](const std::vector<unsigned char>& bytes, std::size_t begin) {
            for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
              const std::size_t chunk = byte / 16 % 8 ^ static_cast<std::size_t>(row % 8);
              stages[kStage * stage_bytes + begin + byte / 128 * kPanelBytes + static_cast<std::size_t>(row) * 128 +
                     chunk * 16 + byte % 16] = bytes[byte];
            }
          };
          const auto k_row = new_row(k_new, k_dims, first_row + query, s.kv_head, token);
          const auto v_row = new_row(v_new, v_dims, first_row + query, s.kv_head, -1);
          put(k_row, 0), put(v_row, k_bytes);
          std::copy(k_row.begin(), k_row.end(),
                    k_expected.begin() +
                        static_cast<std::ptrdiff_t>(offset(token, s.request, args.k_stride_batch, args.k_stride_head,
                                                           args.k_stride_token, s.kv_head)));
          if (v_dims > 0)
            std::copy(v_row.begin(), v_row.end(),
                      v_expected.begin() +
                          static_cast<std::ptrdiff_t>(offset(token, s.request, args.v_stride_batch, args.v_stride_head,
                                                             args.v_stride_token, s.kv_head)));
        }
        EXPECT_TRUE(g_stages == stages) << "step at " << read << " of warpgroup " << warpgroup;
        EXPECT_EQ(g_fences, any ? 128 : 0);
        EXPECT_EQ(g_barriers, g_fences) << "nobody reads the rows before all of them are there";
      }
      if (warpgroup == 0) {
        EXPECT_TRUE(k == k_expected && v == v_expected) << "the first warpgroup writes the cache";
        k.assign(k.size(), kCached), v.assign(v.size(), kCached);
        k_expected = k, v_expected = v;
      } else {
        EXPECT_TRUE(std::all_of(k.begin(), k.end(), [](unsigned char byte) { return byte == kCached; }) &&
                    std::all_of(v.begin(), v.end(), [](unsigned char byte) { return byte == kCached; }))
            << "no other does";
      }
    }
    return found;
  }
};

Segment segment(int request, int kv_head, int context, int first, int end, int first_query, int queries,
                int shift = 0) {
  Segment s = segment_of(request, kv_head, context, first, end, shift);
  s.query = {first_query, queries};
  return s;
}

TEST(AppendToStage, OfAPagedCache) {
  Rows rows(128, 64, 16, false);
  g_parts = 1;
  const auto check = [&](const Segment& s, int hole = -1) {
    return rows.expect_rows(s, s.request * kMostQueries, 1, hole, pages::load_new_chunk, pages::append_to_stage);
  };
  EXPECT_EQ(check(segment(1, 1, 333, 256, 333, 0, 1)), 1);
  EXPECT_EQ(check(segment(2, 0, 321, 256, 321, 0, 3)), 3) << "on both sides of a step's end";
  EXPECT_EQ(check(segment(0, 1, 200, 0, 200, 0, 70)), 70) << "more than the threads carry at once, over three steps";
  EXPECT_EQ(check(segment(0, 1, 3, 0, 3, 0, 5)), 3) << "a context that is shorter than the query tokens";
  EXPECT_EQ(check(segment(0, 1, 300, 0, 128, 0, 4)), 0) << "the end of the context is another CTA's";
  EXPECT_EQ(check(segment(0, 1, 130, 64, 128, 0, 4)), 2) << "and here a part of the new rows";
  EXPECT_EQ(check(segment(0, 1, 130, 128, 130, 0, 4)), 2) << "whose others these are";
  EXPECT_EQ(check(segment(1, 0, 350, 64, 150, 0, 2, 200)), 2) << "behind a window's first token";
  for (const int page : {-1, rows.args.pool_pages}) {
    rows.table[static_cast<std::size_t>(rows.args.page_table_stride + 90 / 16)] = page;
    EXPECT_EQ(check(segment(1, 1, 91, 64, 91, 0, 1), 90), 0) << "nothing is written to a hole";
  }
}

TEST(AppendToStage, OfADenseCacheForTwoWarpgroupsAndRaggedQueries) {
  Rows rows(64, 128, 0, true);
  g_parts = 1;
  const auto check = [&](const Segment& s) {
    return rows.expect_rows(s, s.query.first, 2, -1, dense::load_new_chunk, dense::append_to_stage);
  };
  EXPECT_EQ(check(segment(0, 0, 64, 0, 64, 0, 1)), 1);
  EXPECT_EQ(check(segment(2, 1, 129, 64, 129, 7, 9)), 9);
  EXPECT_EQ(check(segment(1, 1, 77, 64, 77, 5, 0)), 0) << "a request without query tokens";
}

TEST(AppendToStage, OfALatentCacheIsOneRow) {
  Rows rows(576, 0, 1, false);
  g_parts = 3;
  const auto check = [&](const Segment& s) {
    return rows.expect_rows(s, s.request * kMostQueries, 2, -1, latent::load_new_chunk, latent::append_to_stage);
  };
  EXPECT_EQ(check(segment(1, 0, 200, 128, 200, 0, 1)), 1);
  EXPECT_EQ(check(segment(2, 0, 200, 128, 200, 0, 4)), 4);
}

}  // namespace append_to_stage
}  // namespace
}  // namespace leanattn::device
