// dependent_chain_test.cpp -- the kernel in front of a dependent launch compiles everywhere. No GPU is needed.
#include "tuner/oracle/dependent_chain.hpp"

#include <gtest/gtest.h>

#include "runtime/cuda/compiler.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

TEST(DependentChain, CompilesForEveryArchOfTheMatrix) {
  if (const auto version = nvrtc_version(); !version) GTEST_SKIP() << "no NVRTC: " << version.error().message;
  std::size_t number = 0;
  for (const Arch arch : matrix_arches()) {
    if (!in_turn(number++ % 3, 3)) continue;
    const auto compiled = compile_source(dependent_chain_source(), arch, nullptr);
    ASSERT_TRUE(compiled.has_value()) << to_string(arch) << ": " << compiled.error().message << "\n"
                                      << compiled.error().log;
    const std::string cubin(compiled->cubin.begin(), compiled->cubin.end());
    EXPECT_NE(cubin.find("chain_rows"), std::string::npos) << to_string(arch);
  }
}

TEST(DependentChain, LetsItsSuccessorStartBeforeItHasWrittenAnything) {
  const std::string source = dependent_chain_source();
  EXPECT_EQ(source.find("#include"), std::string::npos);
  const auto released = source.find("griddepcontrol.launch_dependents"), written = source.find("*there = *here");
  ASSERT_NE(released, std::string::npos);
  ASSERT_NE(written, std::string::npos);
  EXPECT_LT(released, written);
}

}  // namespace
}  // namespace leanattn
