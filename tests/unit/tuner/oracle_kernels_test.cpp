// The helper kernels of a check compile everywhere; nothing here needs a GPU.
#include "tuner/oracle_kernels.hpp"

#include <gtest/gtest.h>

#include "runtime/compiler.hpp"

namespace leanattn {
namespace {

TEST(OracleKernels, CompileForEveryArchOfTheMatrix) {
  if (const auto version = nvrtc_version(); !version) GTEST_SKIP() << "no NVRTC: " << version.error().message;
  for (const Arch arch : matrix_arches()) {
    const auto compiled = compile_source(oracle_source(), arch, nullptr);
    ASSERT_TRUE(compiled.has_value()) << to_string(arch) << ": " << compiled.error().message << "\n"
                                      << compiled.error().log;
    EXPECT_FALSE(compiled->cubin.empty());
    const std::string cubin(compiled->cubin.begin(), compiled->cubin.end());
    for (const char* name : {"check_fill_q", "check_fill_kv", "check_oracle", "check_plain"}) {
      EXPECT_NE(cubin.find(name), std::string::npos) << name << " is missing for " << to_string(arch);
    }
  }
}

TEST(OracleKernels, SourceIsFlatAndTheSameEveryTime) {
  const std::string source = oracle_source();
  EXPECT_EQ(source.find("#include"), std::string::npos);
  EXPECT_EQ(source, oracle_source());
}

}  // namespace
}  // namespace leanattn
