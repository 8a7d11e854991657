// late_copies.hpp -- shared memory of two CTAs, mbarriers in it, and a copy engine whose copies arrive late and in any
// order, for tests that compile the producers of kernels as they are. The names are those of the modules that stand
// before these (templates/prelude.cuh, templates/kv/row_copies.cuh). Threads are lanes (warp_lanes.hpp).
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/generator/warp_lanes.hpp"

namespace leanattn::late_copies {

using namespace warp_lanes;

struct uint4 {
  u32 x, y, z, w;
};
struct uint2 {
  u32 x, y;
};
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }

/// Shared memory of the two CTAs of a cluster, whose addresses count from the beginning of the first one's, and
/// mbarriers in it.
inline constexpr u32 kToOtherCta = 256 << 10;
alignas(1024) inline std::array<unsigned char, 2 * kToOtherCta> g_shared;
inline thread_local u32 t_cta = 0;
inline u32 cta_of_cluster() { return t_cta; }
struct Barrier {
  int count = 0, left = 0;
  i64 bytes = 0;  // that were expected and have not come
  u32 phase = 0;
  std::condition_variable completed;
};
inline std::mutex g_barriers_mutex;
inline std::map<u32, Barrier> g_barriers;

inline u32 shared_address(const void* p) {
  return static_cast<u32>(static_cast<const unsigned char*>(p) - g_shared.data());
}
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
inline void arrive(u32 barrier, int times) {
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
inline bool is_complete(u32 barrier, u32 parity) {
  const std::lock_guard lock(g_barriers_mutex);
  return g_barriers.at(barrier).phase % 2 != parity;
}
/// Sleeps, since hundreds of lanes that asked again and again would have most of the cores.
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
inline void store_at_peer_16(u32 address, const uint4& x, u32 barrier) {
  store_shared_16(address ^ kToOtherCta, x);
  bytes_came(barrier ^ kToOtherCta, 16);
}
inline void expect_from_peer(u32 barrier, u32 bytes) {
  const std::lock_guard lock(g_barriers_mutex);
  g_barriers.at(barrier).bytes += bytes;
}

/// Copies that were asked for. Those of a lane land, in falling order, some time after it has said that it waits for
/// them; others overtake them. One of more than 16 bytes tells its barrier how many came.
struct Copy {
  u32 to;
  const char* from;
  bool valid;
  u32 bytes = 16;
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
          std::memset(g_shared.data() + copy->to, 0, 16);
        }
      }
      if (work.copies.size() == 1 && work.copies[0].bytes > 16) {
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
  copy_engine().give({{destination, source, true, bytes}}, barrier);
}
inline void copy_async_16(u32 destination, const char* source, bool valid) {
  t_asked.push_back({destination, source, valid});
}
inline void arrive_with_copies(u32 barrier) { copy_engine().give(std::exchange(t_asked, {}), barrier); }
inline bool is_complete_now(u32 barrier, u32 parity) { return __all_sync(kFullMask, is_complete(barrier, parity)); }

}  // namespace leanattn::late_copies
