// instructions.hpp -- what host tests of kernels have in place of PTX: functions with the names of those that are
// instructions (templates/prelude.cuh, templates/kv/row_copies.cuh and others). There is shared memory of two CTAs with
// mbarriers in it, and a copy engine whose copies arrive late and in any order. A test may have its own instead:
// modules take the function of the innermost namespace.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/lanes.hpp"

namespace leanattn::device {

// What host and device compile.
namespace types {
#include "templates/kernel_args.cuh"

#include "templates/line/schedule.cuh"

#include "templates/shared_layout.cuh"
}  // namespace types

#include "tests/device/constants.cuh"

inline float exp2_approx(float x) { return std::exp2(x); }
inline void wait_for_previous_kernel() {}

/// Elements of q and o.
struct Bf16 {
  static u32 of(float value) {
    const u32 bits = std::bit_cast<u32>(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
  static u32 pack(float low, float high) { return of(low) | of(high) << 16; }
  static float2 unpack(u32 x) { return {std::bit_cast<float>(x << 16), std::bit_cast<float>(x & 0xffff0000u)}; }
};
using Element = Bf16;

/// fp8 e4m3 by its definition (PTX ISA, "cvt"): steps of 2^-9 up to 2^-6, then of an eighth of the power of two below.
inline float value_of_e4m3(u32 byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15), fraction = static_cast<int>(byte & 7);
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                        : std::ldexp(8.0f + static_cast<float>(fraction), exponent - 10);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}
inline u32 e4m3_of(float value) {
  if (std::isnan(value)) return 0x7f;
  const u32 sign = std::signbit(value) ? 0x80u : 0u;
  const float magnitude = std::min(std::abs(value), 448.0f);
  const int exponent = magnitude < std::ldexp(1.0f, -6) ? -6 : std::ilogb(magnitude);
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));  // a carry is the next power
  return sign | static_cast<u32>((exponent + 6) * 8 + steps);
}
inline u32 e4m3_pair(float low, float high) { return e4m3_of(low) | e4m3_of(high) << 8; }
/// An e4m3 value as fp16, which has all of them, and none as a subnormal.
inline u32 fp16_of_e4m3(u32 byte) {
  const float value = value_of_e4m3(byte);
  const u32 bits = std::bit_cast<u32>(value);
  return value == 0 ? (byte & 0x80) << 8 : (bits >> 16 & 0x8000) | (((bits & 0x7fffffff) >> 13) - ((127 - 15) << 10));
}
inline u32 scaled_pair(u32 bytes, float scale) {
  return Element::pack(value_of_e4m3(bytes & 0xff) * scale, value_of_e4m3(bytes >> 8 & 0xff) * scale);
}
inline u32 expand_pair(u32 x, int half) {
  const u32 bytes = half == 0 ? x : x >> 16;
  return fp16_of_e4m3(bytes & 0xff) | fp16_of_e4m3(bytes >> 8 & 0xff) << 16;
}

template <class T>
T load_cached(const void* p) {
  T x;
  std::memcpy(&x, p, sizeof(T));
  return x;
}

/// Shared memory of the two CTAs of a cluster, whose addresses count from the beginning of the first one's, and
/// mbarriers in it. Tests place rings in front of kObjects, and objects of modules lie behind it.
inline constexpr u32 kToOtherCta = 2 << 20, kObjects = 1 << 20;
alignas(1024) inline std::array<unsigned char, 2 * kToOtherCta> g_shared;
inline thread_local u32 t_cta = 0;
inline u32 cta_of_cluster() { return t_cta; }
inline u32 at_peer(u32 address) { return address ^ kToOtherCta; }

// NOLINTNEXTLINE(bugprone-reserved-identifier): CUDA's name
inline u64 __cvta_generic_to_shared(const void* p) {
  return static_cast<u64>(static_cast<const unsigned char*>(p) - g_shared.data());
}
inline u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
/// The next object of `bytes`, as an address in the first CTA.
inline u32 place_object(std::size_t bytes) {
  static std::mutex mutex;
  static u32 end = kObjects;
  const std::lock_guard lock(mutex);
  const u32 at = end;
  end += static_cast<u32>((bytes + 63) / 64 * 64);
  EXPECT_LE(end, kToOtherCta) << "the objects of all kernels do not fit";
  return at;
}
/// What a module has as `__shared__ T`, of this thread's CTA.
template <class T>
T& shared_object() {
  static const u32 at = place_object(sizeof(T));
  return *reinterpret_cast<T*>(g_shared.data() + at + t_cta * kToOtherCta);
}

struct Barrier {
  int count = 0, left = 0;
  i64 bytes = 0;  // that were expected and have not come
  u32 phase = 0;
  std::condition_variable completed;
};
inline std::mutex g_barriers_mutex;
inline std::map<u32, Barrier> g_barriers;

inline void init_barrier(u32 barrier, int count) {
  const std::lock_guard lock(g_barriers_mutex);
  Barrier& b = g_barriers[barrier];
  b.count = b.left = count, b.bytes = 0, b.phase = 0;
}
inline void complete(Barrier& b) {
  if (b.left != 0 || b.bytes != 0) return;
  b.left = b.count, ++b.phase;
  b.completed.notify_all();
}
inline void arrive(u32 barrier, int times = 1) {
  const std::lock_guard lock(g_barriers_mutex);
  Barrier& b = g_barriers.at(barrier);
  b.left -= times;
  EXPECT_GE(b.left, 0) << "more arrivals than the barrier counts";
  complete(b);
}
inline void expect_bytes(u32 barrier, u32 bytes) {
  const std::lock_guard lock(g_barriers_mutex);
  Barrier& b = g_barriers.at(barrier);
  --b.left, b.bytes += bytes;
  complete(b);
}
inline void bytes_came(u32 barrier, u32 bytes) {
  const std::lock_guard lock(g_barriers_mutex);
  Barrier& b = g_barriers.at(barrier);
  b.bytes -= bytes;
  complete(b);
}
inline void arrive_at_peer(u32 barrier) { arrive(at_peer(barrier)); }
/// Sleeps for a while, since hundreds of lanes that asked again and again would have most of the cores.
inline bool is_complete(u32 barrier, u32 parity) {
  std::unique_lock lock(g_barriers_mutex);
  Barrier& b = g_barriers.at(barrier);
  return b.completed.wait_for(lock, std::chrono::milliseconds(50), [&] { return b.phase % 2 != parity; });
}
inline bool has_phase(u32 barrier, u32 parity) {
  const std::lock_guard lock(g_barriers_mutex);
  return g_barriers.at(barrier).phase % 2 != parity;
}
inline bool is_complete_now(u32 barrier, u32 parity) { return __all_sync(0xffffffffu, has_phase(barrier, parity)); }
/// Nobody waits in vain here.
inline bool goes_on_waiting(const LeanDecodeArgs&, u32&, u32 = 0) { return true; }
inline void wait_for(u32 barrier, u32 parity) {
  std::unique_lock lock(g_barriers_mutex);
  Barrier& b = g_barriers.at(barrier);
  b.completed.wait(lock, [&] { return b.phase % 2 != parity; });
}

inline uint4 load_shared_16(u32 address) {
  uint4 x;
  std::memcpy(&x, g_shared.data() + address, 16);
  return x;
}
inline u32 load_shared_1(u32 address) { return static_cast<unsigned char>(g_shared[address]); }
inline u32 load_shared_4(u32 address) {
  u32 x = 0;
  std::memcpy(&x, g_shared.data() + address, 4);
  return x;
}
inline uint2 load_shared_8(u32 address) {
  uint2 x;
  std::memcpy(&x, g_shared.data() + address, 8);
  return x;
}
inline void store_shared_16(u32 address, const uint4& x) { std::memcpy(g_shared.data() + address, &x, 16); }
inline void store_shared_zero_16(u32 address) { store_shared_16(address, {}); }
inline void store_at_peer_16(u32 address, const uint4& x, u32 barrier) {
  store_shared_16(at_peer(address), x);
  bytes_came(at_peer(barrier), 16);
}
inline void expect_from_peer(u32 barrier, u32 bytes) {
  const std::lock_guard lock(g_barriers_mutex);
  g_barriers.at(barrier).bytes += bytes;
}

/// Copies that were asked for. Those of a lane land, in falling order, some time after it has said that it waits for
/// them; others overtake them. Those of bulk copies tell their barrier how many came.
struct Copy {
  u32 to;
  const char* from;
  bool valid;
  u32 bytes = 16;
  bool bulk = false;
};
inline thread_local std::vector<Copy> t_asked;
class CopyEngine {
 public:
  CopyEngine() : thread_([this](const std::stop_token& stop) { run(stop); }) {}
  void give(std::vector<Copy> copies, u32 barrier) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({std::move(copies), barrier});
    }
    given_.notify_one();
  }

 private:
  struct Work {
    std::vector<Copy> copies;
    u32 barrier;
  };
  void run(const std::stop_token& stop) {
    std::mt19937 random(3);
    for (;;) {
      Work work;
      {
        std::unique_lock lock(mutex_);
        if (!given_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
        const std::size_t at = random() % queue_.size();
        work = std::move(queue_[at]);
        queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(at));
      }
      for (auto copy = work.copies.rbegin(); copy != work.copies.rend(); ++copy) {
        if (copy->valid) {
          std::memcpy(g_shared.data() + copy->to, copy->from, copy->bytes);
        } else {
          std::memset(g_shared.data() + copy->to, 0, copy->bytes);
        }
      }
      if (work.copies.size() == 1 && work.copies[0].bulk) {
        bytes_came(work.barrier, work.copies[0].bytes);
      } else {
        arrive(work.barrier, 1);
      }
    }
  }
  std::mutex mutex_;
  std::condition_variable_any given_;
  std::vector<Work> queue_;
  std::jthread thread_;
};
inline CopyEngine& copy_engine() {
  static CopyEngine engine;
  return engine;
}
inline void copy_bulk(u32 destination, const char* source, u32 bytes, u32 barrier) {
  copy_engine().give({{destination, source, true, bytes, true}}, barrier);
}
inline void copy_async_16(u32 destination, const char* source, bool valid) {
  t_asked.push_back({destination, source, valid});
}
inline void copy_async_8(u32 destination, const char* source, bool valid) {
  t_asked.push_back({destination, source, valid, 8});
}
inline void arrive_with_copies(u32 barrier) { copy_engine().give(std::exchange(t_asked, {}), barrier); }
inline void fence_async_proxy() {}

/// The rows that L2 was asked for.
inline std::mutex g_prefetched_mutex;
inline std::vector<const char*> g_prefetched;
template <int kBytes>
void prefetch_row(const char* row, bool exists) {
  const std::scoped_lock lock(g_prefetched_mutex);
  if (exists) g_prefetched.push_back(row);
}

}  // namespace leanattn::device
