// child_process_test.cpp -- where there are no descriptors or no processes left, errors name the limit.
#include "runtime/tuning/child_process.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/no_descriptors.hpp"
#include "tests/unit/cache/cache_fixture.hpp"

namespace leanattn {
namespace {

TEST(ChildProcess, APipeNeedsDescriptors) {
  const NoDescriptors none;
  const auto pipe = open_pipe();
  ASSERT_FALSE(pipe.has_value());
  EXPECT_NE(pipe.error().message.find("Too many open files"), std::string::npos) << pipe.error().message;
  EXPECT_NE(pipe.error().hint.find("ulimit -n"), std::string::npos) << pipe.error().hint;
}

TEST(ChildProcess, AChildNeedsAProcess) {
  EXPECT_EQ(cache_test::run_unprivileged([] {
              const rlimit none{0, 0};
              if (::setrlimit(RLIMIT_NPROC, &none) != 0) return 2;
              const std::string command[] = {"/bin/true"};
              const auto started = spawn_child(command, {});
              if (started) return 3;
              if (started.error().code != ErrorCode::out_of_memory) return 4;
              return started.error().hint.find("ulimit -u") != std::string::npos ? 0 : 5;
            }),
            0);
}

}  // namespace
}  // namespace leanattn
