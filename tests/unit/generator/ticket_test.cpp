// ticket_test.cpp -- the contributors of every output tile draw their tickets from counters that no other output tile
// uses: in whatever order CTAs come, one of each output tile draws the last ticket, and all counters are zero behind
// it. merge/ticket.cuh is compiled here as it is, for several kernels, and the CTAs walk as on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "tests/thoroughness.hpp"

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace tickets {

// ---- in place of instructions, and of the modules behind ----
int leanattn_ptx(const char*) { return 0; }  // what keeps values out of registers
u32 atomicInc(u32* counter, u32 last) {
  const u32 before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}
float sqrt_approx(float x) { return std::sqrt(x); }
float exp2_approx(float x) { return std::exp2(x); }
void report_fault(const LeanDecodeArgs&, unsigned) { ADD_FAILURE() << "a counter was not zero"; }
bool goes_on_waiting(const LeanDecodeArgs&, u32&) { return false; }
struct Results {};
struct Output {};
template <class Segment>
Output destination_of(const LeanDecodeArgs&, const Segment&, int) {
  return {};
}
template <class State>
void write_output(const LeanDecodeArgs&, const Output&, const State&, const float4&) {}
template <class State>
void store_partial(float*, int, const State&, const float4&) {}
void clear_partial(float*, int, bool) {}
void store_own_partial(const LeanDecodeArgs&, ...) {}
template <class C>
void keep_own_partial(const LeanDecodeArgs&, const C&) {}
void keep_in_l2(const void*) {}
constexpr bool kMerges = true;
constexpr int kMergeBatch = 1, kMergeColumns = 1;

// ---- merge/ticket.cuh, for several kernels ----
#define TICKETS_OF_KERNEL                                                                                \
  struct Kernel {                                                                                        \
    using Line = Walk;                                                                                   \
    using Plan = FixUp;                                                                                  \
    static constexpr int kInStep = kRowBlocksInStep, kMostTokens = kQLen, kTokens = kTile;               \
    static constexpr bool kInvariant = kBatchInvariant, kRagged = kRaggedQ;                              \
    static bool start(const LeanDecodeArgs& args, u32* sums, Walk& at) {                                 \
      return start_walk(args, first_length(args), sums, at);                                             \
    }                                                                                                    \
    static bool next(const LeanDecodeArgs& args, Walk& at) { return next_segment(args, at); }            \
    static void plan(const LeanDecodeArgs& args, const Walk& at, FixUp& f) { plan_fix_up(args, at, f); } \
    static u32* first_of(const LeanDecodeArgs& args, const FixUp& f) { return first_counter(args, f); }  \
  };

#include "tests/device/begin.cuh"
constexpr int kSelectionQueries = 1, kStepTokens = 16, kTile = 16;
namespace plain {
constexpr int kGroup = 4, kRowBlocks = 2;
#include "tests/device/line.cuh"

#include "templates/merge/partial.cuh"

#include "templates/merge/workspace.cuh"

#include "templates/merge/ticket.cuh"
TICKETS_OF_KERNEL
}  // namespace plain
namespace in_step {
constexpr int kGroup = 12, kRowBlocks = 3, kRowBlocksInStep = 3;
#include "tests/device/line.cuh"

#include "templates/merge/partial.cuh"

#include "templates/merge/workspace.cuh"

#include "templates/merge/ticket.cuh"
TICKETS_OF_KERNEL
}  // namespace in_step
namespace ragged {
constexpr int kGroup = 4, kQLen = 40, kRowBlocks = 6;
constexpr bool kRaggedQ = true;
#include "tests/device/line.cuh"

#include "templates/merge/partial.cuh"

#include "templates/merge/workspace.cuh"

#include "templates/merge/ticket.cuh"
TICKETS_OF_KERNEL
}  // namespace ragged
namespace ragged_in_step {
constexpr int kGroup = 20, kQLen = 6, kRowBlocks = 8, kRowBlocksInStep = 2;
constexpr bool kRaggedQ = true;
#include "tests/device/line.cuh"

#include "templates/merge/partial.cuh"

#include "templates/merge/workspace.cuh"

#include "templates/merge/ticket.cuh"
TICKETS_OF_KERNEL
}  // namespace ragged_in_step
namespace invariant {
constexpr int kGroup = 4, kRowBlocks = 2;
constexpr bool kBatchInvariant = true;
#include "tests/device/line.cuh"

#include "templates/merge/partial.cuh"

#include "templates/merge/workspace.cuh"

#include "templates/merge/ticket.cuh"
TICKETS_OF_KERNEL
}  // namespace invariant
#include "tests/device/end.cuh"

/// What a CTA does at the end of a segment that leaves a partial.
template <class Kernel>
struct Contribution {
  typename Kernel::Plan plan;
  u32 output;  ///< where the output tile begins on the line, and its row block in step
};

/// The contributions of each of `grid` CTAs, in the order in which it makes them.
template <class Kernel>
std::vector<std::vector<Contribution<Kernel>>> contributions_of(const LeanDecodeArgs& args, u32 grid) {
  std::vector<std::vector<Contribution<Kernel>>> all(grid);
  run_lanes(kLanes, [&](u32 lane) {
    gridDim.x = grid;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
      static u32 part_sums[32];
      typename Kernel::Line at;
      for (bool more = Kernel::start(args, part_sums, at); more; more = Kernel::next(args, at)) {
        const auto& s = at.segment;
        if (lane != 0 || (s.tile_begin == 0 && s.tile_end == s.tiles)) continue;
        Contribution<Kernel> made{};
        Kernel::plan(args, at, made.plan);
        made.output = at.origin * Kernel::kInStep + blockIdx.x % Kernel::kInStep;
        all[blockIdx.x].push_back(made);
      }
    }
  });
  return all;
}

/// Returns whether groups of contributors merged first.
template <class Kernel>
bool expect_counters_apart(const std::vector<int>& lengths, const std::vector<int>& starts, u32 grid, u32 segment_cost,
                           unsigned seed) {
  constexpr int kHeads = 2, kCapacity = 1000;
  std::vector<u32> counters(1 << 16);
  LeanDecodeArgs args{};
  args.batch = static_cast<int>(lengths.size()), args.kv_heads = kHeads;
  args.segment_cost = Kernel::kInvariant ? 0 : segment_cost;
  args.context_lengths = lengths.data(), args.context_capacity = kCapacity, args.q_offsets = starts.data();
  args.grid_reciprocal = lean_reciprocal(grid / Kernel::kInStep), args.tickets = counters.data();
  const auto all = contributions_of<Kernel>(args, grid);

  // Each CTA makes its contributions in their order, and CTAs come in any.
  std::vector<u32> order;
  for (u32 cta = 0; cta < grid; ++cta) order.insert(order.end(), all[cta].size(), cta);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  std::vector<std::size_t> made(grid);
  bool grouped = false;
  std::map<const u32*, u32> user;                              // the output tile that a counter is of
  std::map<u32, u32> contributors, drawn, of_last;             // of an output tile
  const auto use = [&](u32* counter, u32 output, u32 count) {  // whether the ticket is the last one
    EXPECT_LT(static_cast<std::size_t>(counter - counters.data()), counters.size());
    EXPECT_TRUE(Kernel::kInvariant || counter - counters.data() < grid) << "the grid bounds the workspace";
    const auto [known, first] = user.emplace(counter, output);
    EXPECT_EQ(known->second, output) << "two output tiles share a counter";
    return atomicInc(counter, count - 1) == count - 1;
  };
  for (const u32 cta : order) {
    const auto& [plan, output] = all[cta][made[cta]++];
    const auto [known, first] = contributors.emplace(output, plan.c.count);
    EXPECT_EQ(known->second, plan.c.count);
    ++drawn[output], grouped |= plan.groups > 1;
    if (!use(Kernel::first_of(args, plan), output, plan.members)) continue;
    if (plan.groups > 1 && !use(args.tickets + plan.c.first_slot, output, plan.groups)) continue;
    ++of_last[output];
  }
  for (const auto& [output, count] : contributors) {
    EXPECT_EQ(drawn[output], count);
    EXPECT_EQ(of_last[output], 1u) << "one CTA merges output tile " << output;
  }
  EXPECT_TRUE(std::ranges::all_of(counters, [](u32 counter) { return counter == 0; }));
  return grouped;
}

/// A change has each batch and each number of ranges with one of the other, and one long context of many contributors,
/// which merge in groups.
template <class Kernel>
void expect_counters_apart_in_all_batches() {
  std::mt19937 random(11);
  bool grouped = false;
  std::size_t number = 0;
  for (const int batch : {1, 6, 40}) {
    for (const u32 ranges : {5u, 33u, 200u}) {
      const std::size_t at = number++;
      if (const bool groups = batch == 1 && ranges == 200; !groups && !in_turn((at / 3 + at) % 3, 3)) continue;
      std::vector<int> lengths, starts{0};
      for (int request = 0; request < batch; ++request) {
        lengths.push_back(static_cast<int>(batch == 1 || random() % 5 == 0 ? 1000 : random() % 200));
        const int tokens = random() % 3 == 0 ? Kernel::kMostTokens : 1;
        const int count = static_cast<int>(random() % static_cast<unsigned>(tokens + 1));
        starts.push_back(starts.back() + (batch == 1 ? 1 : count));
      }
      // A grid may have CTAs left over.
      const u32 grid = ranges * Kernel::kInStep + ranges % Kernel::kInStep;
      grouped |= expect_counters_apart<Kernel>(lengths, starts, grid, ranges % 3, static_cast<unsigned>(random()));
    }
  }
  EXPECT_TRUE(grouped);
}

TEST(Tickets, NoTwoOutputTilesShareACounter) {
  expect_counters_apart_in_all_batches<plain::Kernel>();
  expect_counters_apart_in_all_batches<in_step::Kernel>();
  expect_counters_apart_in_all_batches<ragged::Kernel>();
  expect_counters_apart_in_all_batches<ragged_in_step::Kernel>();
  expect_counters_apart_in_all_batches<invariant::Kernel>();
}

}  // namespace tickets
}  // namespace
}  // namespace leanattn::device
