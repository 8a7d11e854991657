// warp_lanes.hpp -- threads as the lanes of warps, with CUDA's names, for tests that compile modules of kernels as they
// are. A test that uses it starts one thread for each lane, and gives each its threadIdx.
#pragma once

#include <array>
#include <barrier>
#include <bit>

namespace leanattn::warp_lanes {

using u32 = unsigned;
using i64 = long long;
inline constexpr u32 kFullMask = 0xffffffffu;
inline constexpr unsigned kLanes = 32, kMostWarps = 8;

struct ThreadIndex {
  unsigned x;
};
inline thread_local ThreadIndex threadIdx{};

/// The lanes' values of one vote or shuffle of a warp. All lanes of the warp make each call.
class Warp {
 public:
  template <class Read>
  auto exchange(i64 value, Read read) {
    values_[threadIdx.x % kLanes] = value;
    barrier_.arrive_and_wait();
    const auto result = read(values_);
    barrier_.arrive_and_wait();
    return result;
  }
  void sync() { barrier_.arrive_and_wait(); }

 private:
  std::array<i64, kLanes> values_{};
  std::barrier<> barrier_{kLanes};
};
inline Warp& warp_of_lanes() {
  static std::array<Warp, kMostWarps> warps;
  return warps[threadIdx.x / kLanes % kMostWarps];
}

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names
template <class T>
T __shfl_sync(u32, T value, int lane) {
  return static_cast<T>(warp_of_lanes().exchange(
      value, [&](const auto& values) { return values[static_cast<unsigned>(lane) % kLanes]; }));
}
inline float __shfl_xor_sync(u32, float value, int distance) {
  return std::bit_cast<float>(
      static_cast<u32>(warp_of_lanes().exchange(std::bit_cast<u32>(value), [&](const auto& values) {
        return values[threadIdx.x % kLanes ^ static_cast<unsigned>(distance)];
      })));
}
inline u32 __ballot_sync(u32, bool value) {
  return warp_of_lanes().exchange(value ? 1 : 0, [](const auto& values) {
    u32 bits = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) bits |= static_cast<u32>(values[lane]) << lane;
    return bits;
  });
}
inline bool __any_sync(u32 mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(u32 mask, bool value) { return __ballot_sync(mask, value) == kFullMask; }
inline void __syncwarp() { warp_of_lanes().sync(); }
// NOLINTEND(bugprone-reserved-identifier)

}  // namespace leanattn::warp_lanes
