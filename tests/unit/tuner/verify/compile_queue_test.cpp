// compile_queue_test.cpp -- the queue hands out every kernel in order and can be left at any time.
#include "tuner/verify/compile_queue.hpp"

#include <gtest/gtest.h>

#include "tests/no_threads.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

constexpr Arch kQueueArch{9, 0, true};

TEST(CompileQueue, HandsOutEveryKernelInOrder) {
  if (const auto version = nvrtc_version(); !version) GTEST_SKIP() << "there is no NVRTC: " << version.error().message;
  auto kernels = representative_kernels(kQueueArch);
  kernels.resize(tries(2, 4));
  CompileQueue queue(kernels, nullptr, 2, 2);
  for (const VerifyKernel& kernel : kernels) {
    const auto choice = queue.next();
    ASSERT_TRUE(choice.has_value());
    EXPECT_EQ(choice->kernel, &kernel);
    EXPECT_TRUE(choice->compiled.has_value())
        << kernel_name(kernel.specs.front()) << ": " << choice->compiled.error().message;
  }
  EXPECT_FALSE(queue.next().has_value());
}

TEST(CompileQueue, CompilesOnTheCallersThreadWhereThereIsNoOther) {
  if (const auto version = nvrtc_version(); !version) GTEST_SKIP() << "there is no NVRTC: " << version.error().message;
  const auto kernels = representative_kernels(kQueueArch);
  const NoThreads none;
  CompileQueue queue(kernels, nullptr, 2, 2);
  for (int i = 0; i < tries(1, 2); ++i) {
    const auto choice = queue.next();
    ASSERT_TRUE(choice.has_value());
    EXPECT_EQ(choice->kernel, &kernels[static_cast<std::size_t>(i)]);
    EXPECT_TRUE(choice->compiled.has_value()) << choice->compiled.error().message;
  }
}

TEST(CompileQueue, MayBeDestroyedWhileKernelsAreLeft) {
  const auto kernels = representative_kernels(kQueueArch);
  CompileQueue queue(kernels, nullptr, 2, 1);
  // The destructor must neither hang nor leak, which the sanitizers would report.
}

}  // namespace
}  // namespace leanattn
