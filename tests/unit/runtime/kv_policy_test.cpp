// Which kernels let KV leave L2 first (kv_policy, templates/prelude.cuh): those after which nobody reads it again. No
// GPU.
#include <gtest/gtest.h>

#include <string>

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
      EXPECT_NE(kernel->source.find("\"l\"(kv_policy())"), std::string::npos) << "its copies carry the policy";
      kernel->source += c.read_once ? "static_assert(kKvReadOnce);\n" : "static_assert(!kKvReadOnce);\n";
      const auto compiled = compile(*kernel);
      EXPECT_TRUE(compiled) << c.what << ", " << to_string(load) << ": " << compiled.error().log;
    }
  }
}

}  // namespace
}  // namespace leanattn
