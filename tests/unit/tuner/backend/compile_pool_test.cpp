// compile_pool_test.cpp -- the order in which a CompilePool compiles what it was asked for.
#include "tuner/backend/compile_pool.hpp"

#include <gtest/gtest.h>

#include <latch>
#include <optional>
#include <vector>

#include "tests/no_threads.hpp"

namespace leanattn {
namespace {

KernelSpec with_stages(int stages) {
  KernelSpec spec;
  spec.stages = stages;
  return spec;
}

TEST(CompilePool, UrgentKernelsComeFirstAlsoWhenTheyWaitAlready) {
  std::latch asked_for_all{1};
  std::vector<int> order;  // read once the last kernel is compiled
  CompilePool pool(
      [&](const KernelSpec& spec) -> Result<CompiledSpec> {
        asked_for_all.wait();
        order.push_back(spec.stages);
        return CompiledSpec{};
      },
      1);
  const std::vector<KernelSpec> first{with_stages(1)}, later{with_stages(2), with_stages(3), with_stages(4)},
      urgent{with_stages(5), with_stages(4), with_stages(1), with_stages(5)};
  pool.enqueue(first, /*urgent=*/true);
  pool.enqueue(later);
  pool.enqueue(urgent, /*urgent=*/true);
  pool.enqueue(later);  // changes nothing
  asked_for_all.count_down();
  ASSERT_NE(pool.wait(with_stages(3), [] { return false; }), nullptr);
  // The thread may have begun with the first one before the urgent ones came; it was asked for first in either case.
  const std::vector<int> began{1, 5, 4, 2, 3}, waited{5, 4, 1, 2, 3};
  EXPECT_TRUE(order == began || order == waited);
  for (const int stages : {1, 2, 3, 4, 5}) EXPECT_NE(pool.find(with_stages(stages)), nullptr);
}

TEST(CompilePool, CompilesOnTheCallersThreadWhereThereIsNoOther) {
  std::vector<int> order;
  std::optional<CompilePool> pool;
  {
    const NoThreads none;
    pool.emplace(
        [&](const KernelSpec& spec) -> Result<CompiledSpec> {
          order.push_back(spec.stages);
          return CompiledSpec{};
        },
        3);
  }
  const std::vector<KernelSpec> specs{with_stages(1), with_stages(2), with_stages(3)};
  pool->enqueue(specs);
  EXPECT_EQ(pool->find(with_stages(2)), nullptr);
  EXPECT_EQ(pool->wait(with_stages(2), [] { return true; }), nullptr);
  ASSERT_NE(pool->wait(with_stages(2), [] { return false; }), nullptr);
  ASSERT_NE(pool->wait(with_stages(1), [] { return false; }), nullptr);
  EXPECT_EQ(order, (std::vector{2, 1}));
  pool->abandon();
  EXPECT_EQ(pool->wait(with_stages(3), [] { return false; }), nullptr);
}

}  // namespace
}  // namespace leanattn
