// lanes.hpp -- what CUDA gives to device code, for modules of kernels that tests compile for the host: its types, its
// arithmetic, and its votes and shuffles. A lane of a warp is a thread (start_lanes). A thread that is none stands for
// lanes that are all alike: what it asks of its warp it gets from itself.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace leanattn::device {

using u32 = unsigned;
using i64 = long long;
using u64 = unsigned long long;
using std::max;
using std::min;

// Types stand apart, so that arguments of theirs bring no functions of this namespace beside those of a test.
namespace types {
struct uint2 {
  u32 x, y;
};
struct uint4 {
  u32 x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
}  // namespace types
using namespace types;
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct ThreadIndex {
  u32 x, y;
};
inline thread_local ThreadIndex threadIdx{}, blockIdx{}, gridDim{};

inline constexpr u32 kLanes = 32, kMostWarps = 8;

inline thread_local u32 t_half = 0;  // of Warp::values_, for the lane's last vote or shuffle

/// The lanes' values of one vote or shuffle of a warp. All lanes of the warp make each call. A lane that is ahead
/// writes one half of the values while others still read the other half, so that a call waits once.
class Warp {
 public:
  template <class T, class Read>
  auto exchange(T value, Read read) {
    static_assert(sizeof(T) <= sizeof(u64));
    t_half ^= 1;
    std::array<u64, kLanes>& values = values_[t_half];
    std::memcpy(&values[threadIdx.x % kLanes], &value, sizeof(T));
    barrier_.arrive_and_wait();
    return read([&](u32 lane) {
      T of_lane;
      std::memcpy(&of_lane, &values[lane % kLanes], sizeof(T));
      return of_lane;
    });
  }
  void sync() { barrier_.arrive_and_wait(); }

 private:
  std::array<std::array<u64, kLanes>, 2> values_{};
  std::barrier<> barrier_{kLanes};
};
/// The lanes that were started together, whose warps are theirs.
struct Block {
  explicit Block(u32 lanes) : barrier(lanes) {}
  std::barrier<> barrier;
  std::array<Warp, kMostWarps> warps;
};
inline thread_local Block* t_block = nullptr;  // of this thread; null where it is no lane

/// Starts `lanes` threads, each of which calls `work` with its number, which is its threadIdx, too. They are joined
/// with what is returned.
template <class Work>
std::vector<std::jthread> start_lanes(u32 lanes, Work work) {
  const auto block = std::make_shared<Block>(lanes);
  std::vector<std::jthread> threads;
  for (u32 lane = 0; lane < lanes; ++lane) {
    threads.emplace_back([block, lane, work] {
      threadIdx.x = lane, t_block = block.get();
      work(lane);
    });
  }
  return threads;
}
template <class Work>
void run_lanes(u32 lanes, Work work) {
  start_lanes(lanes, work).clear();
}

template <class T, class Read>
auto exchange(T value, Read read) {
  if (t_block == nullptr) return read([value](u32) { return value; });
  return t_block->warps.at(threadIdx.x / kLanes).exchange(value, read);
}

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names
template <class T>
T __shfl_sync(u32, T value, int lane) {
  return exchange(value, [lane](const auto& of_lane) { return of_lane(static_cast<u32>(lane)); });
}
template <class T>
T __shfl_xor_sync(u32, T value, int distance) {
  return exchange(value, [distance](const auto& of_lane) { return of_lane(threadIdx.x ^ static_cast<u32>(distance)); });
}
template <class T>
T __shfl_up_sync(u32, T value, int distance) {
  const u32 lane = threadIdx.x % kLanes, by = static_cast<u32>(distance);
  return exchange(value, [&](const auto& of_lane) { return of_lane(lane < by ? lane : lane - by); });
}
inline u32 __ballot_sync(u32, bool value) {
  if (t_block == nullptr) return value ? 0xffffffffu : 0;
  return exchange(value, [](const auto& of_lane) {
    u32 bits = 0;
    for (u32 lane = 0; lane < kLanes; ++lane) bits |= (of_lane(lane) ? 1u : 0u) << lane;
    return bits;
  });
}
inline bool __any_sync(u32 mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(u32 mask, bool value) { return __ballot_sync(mask, value) == 0xffffffffu; }
inline u32 __reduce_add_sync(u32, u32 value) {
  return exchange(value, [](const auto& of_lane) {
    u32 sum = 0;
    for (u32 lane = 0; lane < kLanes; ++lane) sum += of_lane(lane);
    return sum;
  });
}
inline void __syncwarp() {
  if (t_block != nullptr) t_block->warps.at(threadIdx.x / kLanes).sync();
}
inline void __syncthreads() {
  if (t_block != nullptr) t_block->barrier.arrive_and_wait();
}
template <class T>
T atomicAdd(T* to, T value) {
  return std::atomic_ref(*to).fetch_add(value);
}
inline void __nanosleep(u32) { std::this_thread::yield(); }

inline int __popc(u32 bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<u32>(bits)); }
inline float __uint_as_float(u32 bits) { return std::bit_cast<float>(bits); }
inline u32 __float_as_uint(float x) { return std::bit_cast<u32>(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline u32 __byte_perm(u32 low, u32 high, u32 selector) {
  const u64 bytes = static_cast<u64>(high) << 32 | low;
  u32 picked = 0;
  for (u32 i = 0; i < 4; ++i) picked |= static_cast<u32>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return picked;
}
// NOLINTEND(bugprone-reserved-identifier)

/// In the place of an instruction of PTX that no function of the host stands for (begin.cuh).
[[noreturn]] inline int leanattn_ptx(const char* operands) {
  std::fprintf(stderr, "A test compiled this for the host, and ran it: asm(%s)\n", operands);
  std::abort();
}

}  // namespace leanattn::device
