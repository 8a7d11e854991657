// read_limit_test.cpp -- the kernels that only read compile for every GPU generation.
#include "tuner/measure/read_limit.hpp"

#include <gtest/gtest.h>

#include "runtime/cuda/compiler.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

TEST(ReadLimit, CompilesWithoutSpillsOnEveryArch) {
  const auto arches = matrix_arches();
  for (std::size_t i = 0; i < arches.size(); ++i) {
    const Arch arch = arches[i];
    if (arch != Arch{9, 0, true} && !in_turn(i, arches.size())) continue;
    const auto compiled = compile_source(read_limit_source(), arch, nullptr);
    if (!compiled && compiled.error().code == ErrorCode::nvrtc_missing) GTEST_SKIP() << compiled.error().message;
    ASSERT_TRUE(compiled) << to_string(arch) << ": " << compiled.error().message << "\n" << compiled.error().log;
    EXPECT_EQ(compiled->resources.spill_store_bytes, 0) << to_string(arch);
    for (const ReadVariant& variant : read_variants(arch)) {
      const std::string cubin(compiled->cubin.begin(), compiled->cubin.end());
      EXPECT_NE(cubin.find(variant.kernel), std::string::npos) << to_string(arch) << " lacks " << variant.kernel;
      EXPECT_LE(variant.ctas_per_sm * (variant.stages * variant.stage_bytes + 1024), shared_bytes_per_sm(arch));
      EXPECT_LE(variant.stages, 16);
    }
  }
}

}  // namespace
}  // namespace leanattn
