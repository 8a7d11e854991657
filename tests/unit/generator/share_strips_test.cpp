// share_strips_test.cpp -- who takes what of an output tile with many columns: each column of each contributor's
// partial is loaded and cleared once, each column of the result is written once, and a state that columns share is
// cleared by the warp that loads it, where partials announce themselves. merge/share_strips.cuh is compiled here as it
// is, once for each set of constants. Lanes run one after the other: votes and shuffles give a lane its own value back,
// so that sums are not looked at here. `leanattn verify` does that.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "tests/thoroughness.hpp"

namespace {
namespace share_strips {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wshadow"

// ---- what CUDA and the modules before give ----
using u32 = unsigned;
using u64 = unsigned long long;
using std::max;
using std::min;
#define LEAN_DEVICE inline
#define __shared__
#define __align__(bytes)
constexpr u32 kFullMask = 0xffffffffu;
constexpr float kNegInf = -INFINITY;
struct {
  u32 x;
} threadIdx;
struct float4 {
  float x = 0, y = 0, z = 0, w = 0;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct RowState {
  float max, sum;
};
struct Contributors {
  u32 first_slot, count, mine;
};
struct Segment {};
struct LeanDecodeArgs {
  float scale_log2 = 1;
};
// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names
inline int __clz(int n) { return std::countl_zero(static_cast<u32>(n)); }
inline bool __any_sync(u32, bool value) { return value; }
inline bool __all_sync(u32, bool value) { return value; }
template <class T>
T __shfl_xor_sync(u32, T value, u32) {
  return value;
}
inline void __nanosleep(u32) {}
// NOLINTEND(bugprone-reserved-identifier)
inline u32 lean_quotient(u32 n, u32 d) { return n / d; }
inline float reference_of(float max) { return std::isinf(max) ? 0 : max; }
inline float exp2_approx(float x) { return std::exp2(x); }
inline void add_scaled(float4& sum, const float4& x, float weight) { sum.x += x.x * weight; }
inline bool goes_on_waiting(const LeanDecodeArgs&, u32&) { return false; }
inline bool arrived(const RowState& state, const float4&) { return state.max != 0; }
inline void give_up(bool, RowState&, float4&) { ADD_FAILURE() << "a lane waits for what it did not ask for"; }
inline void sync_workers() {}

/// What happened to a column of a contributor's partial, and to the state that begins with it. Warps are counted over
/// all contributors; 0 is none.
struct Place {
  int loads = 0, clears = 0;
  u32 loaded_by = 0, state_cleared_by = 0;
};
std::vector<Place> g_places;  // [contributor][column]
std::vector<int> g_written;   // [column]
u32 g_contributor;            // whose CTA runs
constexpr u32 kFirstSlot = 7;

/// A partial in the workspace.
struct Partial {
  u32 contributor;
};
inline Partial partial_at(const LeanDecodeArgs&, u32 slot, u32 which) {
  EXPECT_EQ(which, slot == kFirstSlot ? 1u : 0u) << "the first contributor's partial is its slot's second one";
  return {slot - kFirstSlot};
}
inline Place& place_of(const Partial& partial, int column) {
  return g_places.at(partial.contributor * g_written.size() + static_cast<std::size_t>(column));
}
inline u32 warp_of_all() { return g_contributor * 64 + threadIdx.x / 32 + 1; }
inline void load(const Partial& partial, int column, bool wanted, RowState& state) {
  if (!wanted) return;
  Place& place = place_of(partial, column);
  ++place.loads, place.loaded_by = warp_of_all();
  state = {1.0f, 1.0f};
}
inline void clear(const Partial& partial, int column, bool wanted, bool clears_state) {
  if (!wanted) return;
  Place& place = place_of(partial, column);
  ++place.clears;
  if (clears_state) place.state_cleared_by = warp_of_all();
}
struct Output {
  int column;
};
inline Output output_of(const LeanDecodeArgs&, const Segment&, int column) { return {column}; }
inline void write_output(const LeanDecodeArgs&, const Output& output, const RowState&, const float4&) {
  ++g_written.at(static_cast<std::size_t>(output.column));
}

// ---- merge/share_strips.cuh, for several kernels ----
#define SHARE_STRIPS_OF(name, columns, warps, loads, counts)                                            \
  namespace name {                                                                                      \
  constexpr int kColumns = columns, kWarps = warps, kThreads = 32 * warps, kStripLoads = loads;         \
  constexpr bool kCountsPartials = counts;                                                              \
  constexpr int kStateColumns = counts ? 4 : loads / 4, kSharedBytes = 1 << 20;                         \
  alignas(16) unsigned char strip_shared[kSharedBytes];                                                 \
  inline void load_partial(const Partial& p, int c, bool w, RowState& s, float4&) { load(p, c, w, s); } \
  inline void clear_partial(const Partial& p, int c, bool w) { clear(p, c, w, c % kStateColumns == 0); }
SHARE_STRIPS_OF(latent_16, 2048, 4, 8, false)
#include "templates/merge/announced_partials.cuh"
#include "templates/merge/share_strips.cuh"
}  // namespace latent_16
SHARE_STRIPS_OF(halves_16, 2048, 8, 8, false)
#include "templates/merge/announced_partials.cuh"
#include "templates/merge/share_strips.cuh"
}  // namespace halves_16
SHARE_STRIPS_OF(many_rows, 8192, 8, 8, false)
#include "templates/merge/announced_partials.cuh"
#include "templates/merge/share_strips.cuh"
}  // namespace many_rows
SHARE_STRIPS_OF(group_16, 512, 4, 4, false)
#include "templates/merge/announced_partials.cuh"
#include "templates/merge/share_strips.cuh"
}  // namespace group_16
SHARE_STRIPS_OF(group_10, 1280, 4, 8, false)
#include "templates/merge/announced_partials.cuh"
#include "templates/merge/share_strips.cuh"
}  // namespace group_10
SHARE_STRIPS_OF(twelve_warps, 3072, 12, 8, false)
#include "templates/merge/announced_partials.cuh"
#include "templates/merge/share_strips.cuh"
}  // namespace twelve_warps
SHARE_STRIPS_OF(one_warp, 128, 1, 4, false)
#include "templates/merge/announced_partials.cuh"
#include "templates/merge/share_strips.cuh"
}  // namespace one_warp
// Numbers of columns that are no multiple of the threads.
SHARE_STRIPS_OF(group_95, 3040, 8, 8, false)
#include "templates/merge/announced_partials.cuh"
#include "templates/merge/share_strips.cuh"
}  // namespace group_95
SHARE_STRIPS_OF(group_17, 544, 4, 4, false)
#include "templates/merge/announced_partials.cuh"
#include "templates/merge/share_strips.cuh"
}  // namespace group_17
SHARE_STRIPS_OF(roles_64, 8192, 8, 8, true)
/// As in merge/counted_partials.cuh, which has instructions that only a GPU has. States are cleared elsewhere.
template <int kCount, class PartialOf, class ColumnOf, class Wanted>
void take_partials(const LeanDecodeArgs&, PartialOf partial_of, ColumnOf column_of, Wanted wanted,
                   RowState (&stat)[kCount], float4 (&)[kCount]) {
  for (int i = 0; i < kCount; ++i) {
    stat[i] = {kNegInf, 0.0f};
    load(partial_of(i), static_cast<int>(column_of(i)), wanted(i), stat[i]);
    clear(partial_of(i), static_cast<int>(column_of(i)), wanted(i), false);
  }
}
#include "templates/merge/share_strips.cuh"
}  // namespace roles_64
// Rows that are no multiple of eight.
SHARE_STRIPS_OF(roles_33, 4224, 8, 8, true)
template <int kCount, class PartialOf, class ColumnOf, class Wanted>
void take_partials(const LeanDecodeArgs& args, PartialOf partial_of, ColumnOf column_of, Wanted wanted,
                   RowState (&stat)[kCount], float4 (&out)[kCount]) {
  roles_64::take_partials(args, partial_of, column_of, wanted, stat, out);
}
#include "templates/merge/share_strips.cuh"
}  // namespace roles_33
#undef LEAN_DEVICE
#undef __shared__
#undef __align__
#undef SHARE_STRIPS_OF
#pragma GCC diagnostic pop

template <class Reduce>
void expect_everything_once(int columns, int warps, int state_columns, u32 count, Reduce reduce) {
  SCOPED_TRACE(std::to_string(columns) + " columns, " + std::to_string(warps) + " warps, " + std::to_string(count) +
               " contributors");
  g_written.assign(static_cast<std::size_t>(columns), 0);
  g_places.assign(g_written.size() * count, {});
  for (g_contributor = 0; g_contributor < count; ++g_contributor) {
    for (threadIdx.x = 0; threadIdx.x < static_cast<u32>(warps) * 32; ++threadIdx.x)
      reduce({}, {kFirstSlot, count, g_contributor}, {}, threadIdx.x / 32);
  }
  EXPECT_TRUE(std::all_of(g_written.begin(), g_written.end(), [](int times) { return times == 1; }));
  EXPECT_TRUE(std::all_of(g_places.begin(), g_places.end(),
                          [](const Place& place) { return place.loads == 1 && place.clears == 1; }));
  if (state_columns == 0) return;  // states are cleared elsewhere
  const auto shared = static_cast<std::size_t>(state_columns);
  // One assertion for all places, of which there are millions.
  std::size_t cleared_by_others = 0;
  for (std::size_t i = 0; i < g_places.size(); ++i)
    cleared_by_others += g_places[i].loaded_by != g_places[i / shared * shared].state_cleared_by ? 1 : 0;
  EXPECT_EQ(cleared_by_others, 0u) << "a warp clears a state that another one may still wait for";
}

TEST(ShareStrips, EveryColumnOfEveryPartialIsTakenOnceWhateverTheNumberOfContributors) {
  std::vector<u32> counts;
  for (u32 count = 2; count <= 20; ++count) counts.push_back(count);
  for (const u32 count : {33u, 64u, 65u, 128u, 132u, 264u}) counts.push_back(count);
  std::size_t number = 0;
  for (const u32 count : counts) {
    if (!leanattn::in_turn(number++ % 3, 3)) continue;
    expect_everything_once(2048, 4, latent_16::kStateColumns, count, latent_16::reduce_share);
    expect_everything_once(2048, 8, halves_16::kStateColumns, count, halves_16::reduce_share);
    expect_everything_once(512, 4, group_16::kStateColumns, count, group_16::reduce_share);
    expect_everything_once(1280, 4, group_10::kStateColumns, count, group_10::reduce_share);
    expect_everything_once(3072, 12, twelve_warps::kStateColumns, count, twelve_warps::reduce_share);
    expect_everything_once(128, 1, one_warp::kStateColumns, count, one_warp::reduce_share);
  }
  for (const u32 count : {2u, 3u, 5u, 17u, 44u, 66u, 132u}) {
    expect_everything_once(8192, 8, many_rows::kStateColumns, count, many_rows::reduce_share);
    expect_everything_once(8192, 8, 0, count, roles_64::reduce_share);
    expect_everything_once(4224, 8, 0, count, roles_33::reduce_share);
    expect_everything_once(3040, 8, group_95::kStateColumns, count, group_95::reduce_share);
    expect_everything_once(544, 4, group_17::kStateColumns, count, group_17::reduce_share);
  }
}

}  // namespace share_strips
}  // namespace
