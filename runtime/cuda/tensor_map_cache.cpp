// tensor_map_cache.cpp -- the seqlocks of the cache and the hash of their keys.
#include "runtime/cuda/tensor_map_cache.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// The index of the first entry of a key's set.
std::size_t set_of(const TensorMapKey& key) noexcept {
  std::uint64_t mixed = 0;
  for (const std::uint64_t word : key.words) {
    mixed = (mixed ^ word) * 0x9e3779b97f4a7c15;
    mixed ^= mixed >> 32;
  }
  return (mixed & (TensorMapCache::kSets - 1)) * TensorMapCache::kWays;
}

}  // namespace

TensorMapKey tensor_map_key(const LeanDecodeArgs& args, int l2_promotion) noexcept {
  const auto pair = [](int first, int second) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(first)) << 32 | static_cast<std::uint32_t>(second);
  };
  const auto word = [](auto value) { return static_cast<std::uint64_t>(value); };
  return {{reinterpret_cast<std::uintptr_t>(args.k), reinterpret_cast<std::uintptr_t>(args.v),
           word(args.k_stride_token), word(args.k_stride_head), word(args.k_stride_batch), word(args.v_stride_token),
           word(args.v_stride_head), word(args.v_stride_batch), pair(args.batch, args.kv_heads),
           word(args.context_capacity), word(args.pool_pages), word(l2_promotion),
           reinterpret_cast<std::uintptr_t>(args.k_block_scales), reinterpret_cast<std::uintptr_t>(args.v_block_scales),
           word(args.kv_scale_stride_token), word(args.kv_scale_stride_head), word(args.kv_scale_stride_batch)}};
}

bool TensorMapCache::Entry::holds(const TensorMapKey& wanted) const noexcept {
  for (std::size_t i = 0; i < wanted.words.size(); ++i) {
    if (key[i].load(std::memory_order_acquire) != wanted.words[i]) return false;
  }
  return true;
}

bool TensorMapCache::find(const TensorMapKey& key, KvTensorMaps& maps) const noexcept {
  const Entry* const set = &entries_[set_of(key)];
  for (std::size_t way = 0; way < kWays; ++way) {
    const Entry& entry = set[way];
    const std::uint64_t before = entry.sequence.load(std::memory_order_acquire);
    if (before == 0 || before % 2 != 0 || !entry.holds(key)) continue;
    for (std::size_t walk = 0; walk < walks_; ++walk) {
      for (std::size_t i = 0; i < kMapWords; ++i) {
        maps.walks[walk].k.opaque[i] = entry.walks[walk].k[i].load(std::memory_order_acquire);
        maps.walks[walk].v.opaque[i] = entry.walks[walk].v[i].load(std::memory_order_acquire);
      }
    }
    if (entry.sequence.load(std::memory_order_relaxed) == before) return true;
  }
  return false;
}

void TensorMapCache::insert(const TensorMapKey& key, const KvTensorMaps& maps) noexcept {
  // The entry of the least sequence is empty, or else was written least often.
  Entry* const set = &entries_[set_of(key)];
  Entry* written_least = set;
  for (std::size_t way = 1; way < kWays; ++way) {
    if (set[way].sequence.load(std::memory_order_relaxed) < written_least->sequence.load(std::memory_order_relaxed))
      written_least = &set[way];
  }
  Entry& entry = *written_least;
  std::uint64_t before = entry.sequence.load(std::memory_order_relaxed);
  if (before % 2 != 0 || !entry.sequence.compare_exchange_strong(before, before + 1, std::memory_order_acq_rel)) return;
  for (std::size_t i = 0; i < key.words.size(); ++i) entry.key[i].store(key.words[i], std::memory_order_release);
  for (std::size_t walk = 0; walk < walks_; ++walk) {
    for (std::size_t i = 0; i < kMapWords; ++i) {
      entry.walks[walk].k[i].store(maps.walks[walk].k.opaque[i], std::memory_order_release);
      entry.walks[walk].v[i].store(maps.walks[walk].v.opaque[i], std::memory_order_release);
    }
  }
  entry.sequence.store(before + 2, std::memory_order_release);
}

}  // namespace v1
}  // namespace leanattn
