// tensor_map_cache.hpp -- TensorMapCache: the tensor maps of recent launches of one kernel. Any thread, without locks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/cuda/tensor_map.hpp"

namespace leanattn {
inline namespace v1 {

/// Everything of a launch on which its tensor maps depend.
struct TensorMapKey {
  std::array<std::uint64_t, 17> words{};

  bool operator==(const TensorMapKey&) const = default;
};
TensorMapKey tensor_map_key(const LeanDecodeArgs& args, int l2_promotion) noexcept;

/// The layers of a model take turns, each with a KV cache of its own, so there are many entries, in sets of four as in
/// PlanCache. Each entry is a seqlock: readers never write, and of two writers one gives up.
class TensorMapCache {
 public:
  static constexpr std::size_t kSets = 64, kWays = 4;  ///< a power of two; 168 kB together
  /// walks: how many of a KvTensorMaps' the kernel has.
  explicit TensorMapCache(std::size_t walks = 1) : walks_(walks), entries_(kSets * kWays) {}

  /// False when there is no such entry, and then `maps` has no meaning.
  bool find(const TensorMapKey& key, KvTensorMaps& maps) const noexcept;
  void insert(const TensorMapKey& key, const KvTensorMaps& maps) noexcept;

 private:
  static constexpr std::size_t kMapWords = sizeof(CUtensorMap) / sizeof(std::uint64_t);
  struct alignas(64) Entry {
    std::atomic<std::uint64_t> sequence{0};  ///< odd while being written; 0: empty
    std::array<std::atomic<std::uint64_t>, std::tuple_size_v<decltype(TensorMapKey::words)>> key{};
    struct OfWalk {
      std::array<std::atomic<std::uint64_t>, kMapWords> k{}, v{};
    };
    std::array<OfWalk, 2> walks{};

    bool holds(const TensorMapKey& wanted) const noexcept;
  };

  std::size_t walks_;
  std::vector<Entry> entries_;
};

}  // namespace v1
}  // namespace leanattn
