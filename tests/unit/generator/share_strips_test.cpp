// share_strips_test.cpp -- who takes what of an output tile with many columns: each column of each contributor's
// partial is loaded and cleared once, each column of the result is written once, and a state that columns share is
// cleared by the warp that loads it, where partials announce themselves. merge/share_strips.cuh is compiled here as it
// is, once for each set of constants. Lanes run one after the other: votes and shuffles give a lane its own value back,
// so that sums are not looked at here. `leanattn verify` does that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/thoroughness.hpp"

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace share_strips {

// ---- in place of the modules in front ----
struct Contributors {
  u32 first_slot, count, mine;
};
struct Segment {};
inline bool goes_on_waiting(const LeanDecodeArgs&, u32&) { return false; }
template <class State>
bool arrived(const State& state, const float4&) {
  return state.max != 0;
}
template <class State>
void give_up(bool, State&, float4&) {
  ADD_FAILURE() << "a lane waits for what it did not ask for";
}

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
template <class State>
void load(const Partial& partial, int column, bool wanted, State& state) {
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
inline Output destination_of(const LeanDecodeArgs&, const Segment&, int column) { return {column}; }
template <class State>
void write_output(const LeanDecodeArgs&, const Output& output, const State&, const float4&) {
  ++g_written.at(static_cast<std::size_t>(output.column));
}

// ---- merge/share_strips.cuh, for several kernels ----
#include "tests/device/begin.cuh"
#undef __shared__
#define __shared__  // strip_shared is the namespace's
#define SHARE_STRIPS_OF(name, rows, value_dim, warps, loads, counts)                       \
  namespace name {                                                                         \
  constexpr int kGroup = rows, kValueDim = value_dim, kWarps = warps, kStripLoads = loads; \
  constexpr bool kCountsPartials = counts;                                                 \
  constexpr int kStateColumns = counts ? 4 : loads / 4, kSharedBytes = 1 << 20;            \
  alignas(16) unsigned char strip_shared[kSharedBytes];
#define LOADS_PARTIALS                                                                                  \
  inline void load_partial(const Partial& p, int c, bool w, RowState& s, float4&) { load(p, c, w, s); } \
  inline void clear_partial(const Partial& p, int c, bool w) { clear(p, c, w, c % kStateColumns == 0); }

SHARE_STRIPS_OF(latent_16, 16, 512, 4, 8, false)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

LOADS_PARTIALS
#include "templates/merge/announced_partials.cuh"

#include "templates/merge/share_strips.cuh"
}  // namespace latent_16
SHARE_STRIPS_OF(halves_16, 16, 512, 8, 8, false)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

LOADS_PARTIALS
#include "templates/merge/announced_partials.cuh"

#include "templates/merge/share_strips.cuh"
}  // namespace halves_16
SHARE_STRIPS_OF(many_rows, 64, 512, 8, 8, false)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

LOADS_PARTIALS
#include "templates/merge/announced_partials.cuh"

#include "templates/merge/share_strips.cuh"
}  // namespace many_rows
SHARE_STRIPS_OF(group_16, 16, 128, 4, 4, false)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

LOADS_PARTIALS
#include "templates/merge/announced_partials.cuh"

#include "templates/merge/share_strips.cuh"
}  // namespace group_16
SHARE_STRIPS_OF(group_10, 10, 512, 4, 8, false)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

LOADS_PARTIALS
#include "templates/merge/announced_partials.cuh"

#include "templates/merge/share_strips.cuh"
}  // namespace group_10
SHARE_STRIPS_OF(twelve_warps, 24, 512, 12, 8, false)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

LOADS_PARTIALS
#include "templates/merge/announced_partials.cuh"

#include "templates/merge/share_strips.cuh"
}  // namespace twelve_warps
SHARE_STRIPS_OF(one_warp, 4, 128, 1, 4, false)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

LOADS_PARTIALS
#include "templates/merge/announced_partials.cuh"

#include "templates/merge/share_strips.cuh"
}  // namespace one_warp
// Numbers of columns that are no multiple of the threads.
SHARE_STRIPS_OF(group_95, 95, 128, 8, 8, false)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

LOADS_PARTIALS
#include "templates/merge/announced_partials.cuh"

#include "templates/merge/share_strips.cuh"
}  // namespace group_95
SHARE_STRIPS_OF(group_17, 17, 128, 4, 4, false)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

LOADS_PARTIALS
#include "templates/merge/announced_partials.cuh"

#include "templates/merge/share_strips.cuh"
}  // namespace group_17
/// As in merge/counted_partials.cuh, which has instructions that only a GPU has. States are cleared elsewhere.
template <int kCount, class PartialOf, class ColumnOf, class Wanted, class State>
void take_counted(PartialOf partial_of, ColumnOf column_of, Wanted wanted, State (&stat)[kCount]) {
  for (int i = 0; i < kCount; ++i) {
    stat[i] = {-INFINITY, 0.0f};
    load(partial_of(i), static_cast<int>(column_of(i)), wanted(i), stat[i]);
    clear(partial_of(i), static_cast<int>(column_of(i)), wanted(i), false);
  }
}
SHARE_STRIPS_OF(roles_64, 64, 512, 8, 8, true)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

template <int kCount, class PartialOf, class ColumnOf, class Wanted>
void take_partials(const LeanDecodeArgs&, PartialOf partial_of, ColumnOf column_of, Wanted wanted,
                   RowState (&stat)[kCount], float4 (&)[kCount]) {
  take_counted(partial_of, column_of, wanted, stat);
}
#include "templates/merge/share_strips.cuh"
}  // namespace roles_64
// Rows that are no multiple of eight.
SHARE_STRIPS_OF(roles_33, 33, 512, 8, 8, true)
#include "tests/device/prelude.cuh"

#include "templates/merge/partial.cuh"

template <int kCount, class PartialOf, class ColumnOf, class Wanted>
void take_partials(const LeanDecodeArgs&, PartialOf partial_of, ColumnOf column_of, Wanted wanted,
                   RowState (&stat)[kCount], float4 (&)[kCount]) {
  take_counted(partial_of, column_of, wanted, stat);
}
#include "templates/merge/share_strips.cuh"
}  // namespace roles_33
#undef LOADS_PARTIALS
#undef SHARE_STRIPS_OF
#include "tests/device/end.cuh"

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
    if (!in_turn(number++ % 3, 3)) continue;
    expect_everything_once(2048, 4, latent_16::kStateColumns, count, latent_16::reduce_share);
    expect_everything_once(2048, 8, halves_16::kStateColumns, count, halves_16::reduce_share);
    expect_everything_once(512, 4, group_16::kStateColumns, count, group_16::reduce_share);
    expect_everything_once(1280, 4, group_10::kStateColumns, count, group_10::reduce_share);
    expect_everything_once(3072, 12, twelve_warps::kStateColumns, count, twelve_warps::reduce_share);
    expect_everything_once(128, 1, one_warp::kStateColumns, count, one_warp::reduce_share);
  }
  for (const u32 count : {2u, 3u, 5u, 17u, 44u, 66u, 132u}) {
    if (!in_turn(number++ % 2, 2)) continue;
    expect_everything_once(8192, 8, many_rows::kStateColumns, count, many_rows::reduce_share);
    expect_everything_once(8192, 8, 0, count, roles_64::reduce_share);
    expect_everything_once(4224, 8, 0, count, roles_33::reduce_share);
    expect_everything_once(3040, 8, group_95::kStateColumns, count, group_95::reduce_share);
    expect_everything_once(544, 4, group_17::kStateColumns, count, group_17::reduce_share);
  }
}

}  // namespace share_strips
}  // namespace
}  // namespace leanattn::device
