// costs.hpp -- Costs: the numbers of the cost model. They are one table for all GPUs, which differ in what they report.
// tests/tools/fit_costs fits them to the timings in bench/results. Plain data; any thread.
#pragma once

#include <array>
#include <cstddef>

#include "generator/kernel_layout.hpp"

namespace leanattn {
inline namespace v1 {

/// What multiplies: matrix instructions of warps, FMAs, or matrix instructions of warpgroups that a producer feeds.
enum class Multiplier : std::size_t { mma, vector, wgmma };
inline constexpr std::size_t kMultipliers = 3;
Multiplier multiplier_of(const KernelSpec& spec, const KernelLayout& layout);

/// Microseconds at kFittedClockKhz, but for the last three.
struct Costs {
  /// From the launch until the first KV is there. By Multiplier.
  std::array<double, kMultipliers> start{};
  /// Products of 16 tokens with 128 columns of K and of V, for eight query rows (vector: one). By Multiplier.
  std::array<double, kMultipliers> work{};
  double step = 0;       ///< of a warp or warpgroup, beside its products: a barrier and a softmax
  double convert = 0;    ///< elements of one byte to operands, for 16 tokens of 128 columns of K and of V
  double lone_row = 0;   ///< a token whose rows are looked up or copied for itself
  double latency = 0;    ///< until a ring that was used up is full again
  double cta = 0;        ///< a CTA that follows another one in its place: the end of the one and the start of the other
  double segment = 0;    ///< each segment of a CTA after its first
  double row = 0;        ///< of a segment, for each query row of 128 columns of q and of O
  double partial = 0;    ///< merging one after the other: a partial, once for each column that a thread merges
  double exchange = 0;   ///< contributors that wait: for each doubling of their number, and each column as above
  double dependent = 0;  ///< by which a dependent launch starts sooner
  double late = 0;    ///< of the time at the memory's rate that a dependent launch loses, by the free share of the room
  double reread = 0;  ///< of the bytes of KV that another row block reads from L2
  double sm_rate = 0;  ///< the most that one SM pulls, over its even share of the memory's rate

  bool operator==(const Costs&) const = default;
};
inline constexpr std::size_t kCosts = sizeof(Costs) / sizeof(double);

}  // namespace v1
}  // namespace leanattn
