// plan_cache.hpp -- PlanCache: the plans of recent (problem, shape) pairs, which every decode step looks up. Any thread
// may call find(), which takes no lock and writes nothing; one thread at a time may call insert().
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/lookup/key.hpp"

namespace leanattn {
inline namespace v1 {

class PlanCore;

/// Each key belongs to a set of four entries, and a new key replaces the oldest entry of its set. So memory is bounded
/// however many shapes a program asks for, and a pair that was replaced only takes the slow path again.
///
/// An entry is a seqlock of one cache line: readers never write, and use what they read only if no writer came between.
/// All words are atomics that are read with acquire and written with release, so there is no data race.
class PlanCache {
 public:
  static constexpr std::size_t kWays = 4;
  explicit PlanCache(std::size_t sets = 512) : entries_(sets * kWays), set_mask_(sets - 1) {}  ///< sets: a power of two

  /// Null when there is no such entry. `winners` is the generation of winners that the caller uses. Entries of other
  /// generations do not count.
  const PlanCore* find(const LookupKey& key, std::uint64_t winners) const noexcept {
    const auto generation = static_cast<std::uint32_t>(winners);
    return find_where(key, [generation](std::uint32_t of_entry) { return of_entry == generation; });
  }
  /// The same of any generation: the plan that the pair got last.
  const PlanCore* find_any(const LookupKey& key) const noexcept {
    return find_where(key, [](std::uint32_t) { return true; });
  }

  void insert(const LookupKey& key, std::uint64_t winners, const PlanCore* plan) noexcept {
    Entry* set = &entries_[(hash(key) & set_mask_) * kWays];
    // The entry of the least sequence was written least often, and so, with equal traffic, longest ago.
    Entry* entry = set;
    for (std::size_t way = 0; way < kWays; ++way) {
      if (set[way].plan.load(std::memory_order_relaxed) == nullptr || holds(set[way], key)) {
        entry = &set[way];
        break;
      }
      if (set[way].sequence.load(std::memory_order_relaxed) < entry->sequence.load(std::memory_order_relaxed)) {
        entry = &set[way];
      }
    }
    const std::uint32_t before = entry->sequence.load(std::memory_order_relaxed);
    entry->sequence.store(before + 1, std::memory_order_relaxed);
    entry->generation.store(static_cast<std::uint32_t>(winners), std::memory_order_release);
    for (std::size_t i = 0; i < key.words.size(); ++i) {
      entry->words[i].store(key.words[i], std::memory_order_release);
    }
    entry->plan.store(plan, std::memory_order_release);
    entry->sequence.store(before + 2, std::memory_order_release);
  }

 private:
  struct alignas(64) Entry {
    // 32 bits each, so that an entry is one cache line. Neither wraps around while a reader looks.
    std::atomic<std::uint32_t> sequence{0};  ///< odd while being written
    std::atomic<std::uint32_t> generation{0};
    std::atomic<std::uint64_t> words[6] = {};
    std::atomic<const PlanCore*> plan{nullptr};
  };
  static_assert(sizeof(Entry) == 64);

  template <class Counts>
  const PlanCore* find_where(const LookupKey& key, Counts counts) const noexcept {
    const Entry* set = &entries_[(hash(key) & set_mask_) * kWays];
    for (std::size_t way = 0; way < kWays; ++way) {
      const Entry& entry = set[way];
      const std::uint32_t before = entry.sequence.load(std::memory_order_acquire);
      if (before % 2 != 0) continue;
      bool same = counts(entry.generation.load(std::memory_order_acquire));
      for (std::size_t i = 0; i < key.words.size(); ++i) {
        same &= entry.words[i].load(std::memory_order_acquire) == key.words[i];
      }
      const PlanCore* plan = entry.plan.load(std::memory_order_acquire);
      if (same && plan != nullptr && entry.sequence.load(std::memory_order_relaxed) == before) return plan;
    }
    return nullptr;
  }

  static bool holds(const Entry& entry, const LookupKey& key) noexcept {
    for (std::size_t i = 0; i < key.words.size(); ++i) {
      if (entry.words[i].load(std::memory_order_relaxed) != key.words[i]) return false;
    }
    return true;
  }

  std::vector<Entry> entries_;
  std::size_t set_mask_;
};

}  // namespace v1
}  // namespace leanattn
