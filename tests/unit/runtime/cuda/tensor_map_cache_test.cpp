// tensor_map_cache_test.cpp -- TensorMapCache finds the maps that were inserted for the very same key, also while other
// threads write.
#include "runtime/cuda/tensor_map_cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <vector>

namespace leanattn {
namespace {

LeanDecodeArgs launch_of(std::uintptr_t layer) {
  LeanDecodeArgs args{};
  args.k = reinterpret_cast<void*>(0x100000 * (layer + 1));
  args.v = reinterpret_cast<void*>(0x100000 * (layer + 1) + 0x80000);
  args.batch = 4;
  return args;
}

KvTensorMaps maps_of(std::uintptr_t layer) {
  KvTensorMaps maps{};
  for (std::size_t walk = 0; walk < maps.walks.size(); ++walk) {
    auto& [k, v] = maps.walks[walk];
    for (std::size_t i = 0; i < std::size(k.opaque); ++i) k.opaque[i] = layer + walk, v.opaque[i] = ~layer - walk;
  }
  return maps;
}

bool are_of(const KvTensorMaps& maps, std::uintptr_t layer) {
  bool right = true;
  for (std::size_t walk = 0; walk < maps.walks.size(); ++walk) {
    const auto& [k, v] = maps.walks[walk];
    for (std::size_t i = 0; i < std::size(k.opaque); ++i)
      right &= k.opaque[i] == layer + walk && v.opaque[i] == ~layer - walk;
  }
  return right;
}

TEST(TensorMapCache, EverythingThatAMapDependsOnMakesAnotherKey) {
  const LeanDecodeArgs base = launch_of(0);
  const std::vector<std::function<void(LeanDecodeArgs&)>> changes = {
      [](LeanDecodeArgs& args) { args.k = args.v; },
      [](LeanDecodeArgs& args) { args.v = args.k; },
      [](LeanDecodeArgs& args) { args.k_stride_token = 1; },
      [](LeanDecodeArgs& args) { args.k_stride_head = 1; },
      [](LeanDecodeArgs& args) { args.k_stride_batch = 1; },
      [](LeanDecodeArgs& args) { args.v_stride_token = 1; },
      [](LeanDecodeArgs& args) { args.v_stride_head = 1; },
      [](LeanDecodeArgs& args) { args.v_stride_batch = 1; },
      [](LeanDecodeArgs& args) { args.batch = 5; },
      [](LeanDecodeArgs& args) { args.kv_heads = 1; },
      [](LeanDecodeArgs& args) { args.context_capacity = 1; },
      [](LeanDecodeArgs& args) { args.pool_pages = 1; },
      [](LeanDecodeArgs& args) { args.k_block_scales = args.k; },
      [](LeanDecodeArgs& args) { args.v_block_scales = args.k; },
      [](LeanDecodeArgs& args) { args.kv_scale_stride_token = 1; },
      [](LeanDecodeArgs& args) { args.kv_scale_stride_head = 1; },
      [](LeanDecodeArgs& args) { args.kv_scale_stride_batch = 1; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    LeanDecodeArgs args = base;
    changes[i](args);
    EXPECT_NE(tensor_map_key(args, 128), tensor_map_key(base, 128)) << i;
  }
  EXPECT_NE(tensor_map_key(base, 256), tensor_map_key(base, 128)) << "of two configurations with one kernel";
  LeanDecodeArgs other_query = base;
  other_query.q = other_query.o = reinterpret_cast<void*>(0x1000);
  EXPECT_EQ(tensor_map_key(other_query, 128), tensor_map_key(base, 128)) << "maps do not depend on queries";
}

TEST(TensorMapCache, ThreadsFindWholeMapsOfTheirOwnKeyOrNone) {
  TensorMapCache cache(2);
  constexpr int kThreads = 16, kRounds = 3000, kLayers = 1000;  // many more than there are entries
  std::atomic<int> wrong{0}, found{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(thread));
      std::uniform_int_distribution<std::uintptr_t> layers(0, kLayers - 1);
      for (int round = 0; round < kRounds; ++round) {
        const std::uintptr_t layer = layers(random);
        const TensorMapKey key = tensor_map_key(launch_of(layer), 128);
        KvTensorMaps maps;
        if (!cache.find(key, maps)) {
          cache.insert(key, maps_of(layer));
        } else {
          ++found;
          if (!are_of(maps, layer)) ++wrong;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace leanattn
