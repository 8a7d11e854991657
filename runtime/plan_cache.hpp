// plan_cache.hpp -- PlanCache: the plans of recent (problem, shape) pairs, for the look-up of every decode step.
// find() from any thread, without locks or writes; insert() from one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/lookup_key.hpp"

namespace leanattn {
inline namespace v1 {

class PlanCore;

/// Each key has a set of four places; a new one drives out the oldest of its set. So memory is bounded however many
/// shapes a program asks for, and a pair that was driven out only costs the slow path again.
///
/// A place is a seqlock of one cache line: readers never write, and take what they read only when no writer passed. All
/// words are atomics read with acquire and written with release, so nothing is a data race.
class PlanCache {
 public:
  static constexpr std::size_t kWays = 4;
  explicit PlanCache(std::size_t sets = 512) : places_(sets * kWays), set_mask_(sets - 1) {}  ///< sets: a power of two

  /// Null when not there. `winners` is the generation of those the caller goes by: plans of older ones do not count.
  const PlanCore* find(const LookupKey& key, std::uint64_t winners) const noexcept {
    const auto generation = static_cast<std::uint32_t>(winners);
    const Place* set = &places_[(hash(key) & set_mask_) * kWays];
    for (std::size_t way = 0; way < kWays; ++way) {
      const Place& place = set[way];
      const std::uint32_t before = place.sequence.load(std::memory_order_acquire);
      if (before % 2 != 0) continue;
      bool same = place.generation.load(std::memory_order_acquire) == generation;
      for (std::size_t i = 0; i < key.words.size(); ++i) {
        same &= place.words[i].load(std::memory_order_acquire) == key.words[i];
      }
      const PlanCore* plan = place.plan.load(std::memory_order_acquire);
      if (same && plan != nullptr && place.sequence.load(std::memory_order_relaxed) == before) return plan;
    }
    return nullptr;
  }

  void insert(const LookupKey& key, std::uint64_t winners, const PlanCore* plan) noexcept {
    Place* set = &places_[(hash(key) & set_mask_) * kWays];
    // The least sequence is the place written least often: with equal traffic, the one written longest ago.
    Place* place = set;
    for (std::size_t way = 0; way < kWays; ++way) {
      if (set[way].plan.load(std::memory_order_relaxed) == nullptr || holds(set[way], key)) {
        place = &set[way];
        break;
      }
      if (set[way].sequence.load(std::memory_order_relaxed) < place->sequence.load(std::memory_order_relaxed)) {
        place = &set[way];
      }
    }
    const std::uint32_t before = place->sequence.load(std::memory_order_relaxed);
    place->sequence.store(before + 1, std::memory_order_relaxed);
    place->generation.store(static_cast<std::uint32_t>(winners), std::memory_order_release);
    for (std::size_t i = 0; i < key.words.size(); ++i) {
      place->words[i].store(key.words[i], std::memory_order_release);
    }
    place->plan.store(plan, std::memory_order_release);
    place->sequence.store(before + 2, std::memory_order_release);
  }

 private:
  struct alignas(64) Place {
    // Half a word each, so that a place is one cache line: neither goes round while a reader looks.
    std::atomic<std::uint32_t> sequence{0};  ///< odd while being written
    std::atomic<std::uint32_t> generation{0};
    std::atomic<std::uint64_t> words[6] = {};
    std::atomic<const PlanCore*> plan{nullptr};
  };
  static_assert(sizeof(Place) == 64);

  static bool holds(const Place& place, const LookupKey& key) noexcept {
    for (std::size_t i = 0; i < key.words.size(); ++i) {
      if (place.words[i].load(std::memory_order_relaxed) != key.words[i]) return false;
    }
    return true;
  }

  std::vector<Place> places_;
  std::size_t set_mask_;
};

}  // namespace v1
}  // namespace leanattn
