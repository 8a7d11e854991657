// Which kernels let KV leave L2 first (kKvReadOnce, templates/prelude.cuh): those after which nobody reads it again.
// The others' copies carry no hint at all. No GPU.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "runtime/compiler.hpp"
#include "runtime/lookup.hpp"
#include "runtime/nvrtc.hpp"

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
      auto kernel = emit(spec);
      ASSERT_TRUE(kernel) << kernel.error().message;
      ASSERT_TRUE(compile(*kernel)) << c.what << ", " << to_string(load);
      // A hint that does not exist: only kernels that use none compile.
      constexpr std::string_view kHint = "L2::cache_hint";
      const auto at = kernel->source.find(kHint);
      ASSERT_NE(at, std::string::npos);
      kernel->source.replace(at, kHint.size(), "L2::no_such_hint");
      const auto compiled = compile(*kernel);
      EXPECT_EQ(compiled.has_value(), !c.read_once) << c.what << ", " << to_string(load);
      const std::string log = compiled ? "" : compiled.error().log;
      EXPECT_EQ(log.find("no_such_hint") != std::string::npos, c.read_once) << log;
      EXPECT_NE(kernel->source.find("createpolicy.fractional.L2::evict_first"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace leanattn
