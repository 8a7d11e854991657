// kv_policy_test.cpp -- which kernels tell L2 to evict KV first (kKvReadOnce, templates/prelude.cuh): those whose KV is
// not read again. The copies of others have no hint. Needs no GPU.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

TEST(KvPolicy, KvLeavesFirstOnlyWhereItIsReadOnce) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  struct Case {
    const char* what;
    Features features;
    bool read_once;
  };
  for (const Case& c : {Case{"dense", {}, true}, Case{"several query tokens of one row block", {.q_len = 4}, true},
                        Case{"pages, which requests may share", {.page_size = 16}, false},
                        Case{"two row blocks", {.q_len = 64, .mask = QueryMask::full}, false}}) {
    for (const LoadPath load : {LoadPath::bulk, LoadPath::tensor}) {
      DecodeProblem problem;
      problem.features = c.features;
      KernelSpec spec = base_spec({9, 0, true}, problem);
      spec.load = load;
      while (!validate(spec) && spec.stages > 1) --spec.stages;
      const auto kernel = emit(spec);
      ASSERT_TRUE(kernel) << kernel.error().message;
      // The compile matrix has every feature; here one kernel with a hint and one without are enough.
      if (thorough() || (load == LoadPath::tensor && c.features.q_len == 1)) {
        ASSERT_TRUE(compile(*kernel)) << c.what << ", " << to_string(load);
      }
      for (const std::string_view hint :
           {"complete_tx::bytes.L2::cache_hint", "createpolicy.fractional.L2::evict_first"})
        EXPECT_EQ(kernel->source.find(hint) != std::string::npos, c.read_once) << c.what << ", " << to_string(load);
    }
  }
}

}  // namespace
}  // namespace leanattn
