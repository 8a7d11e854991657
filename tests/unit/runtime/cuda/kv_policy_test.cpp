// kv_policy_test.cpp -- which kernels tell L2 to evict KV first (kKvReadOnce, templates/prelude.cuh): those whose KV is
// not read again. The copies of others have no hint, but for those of prefill, where it depends on the request
// (kv_policy, templates/kv/tensor.cuh). Needs no GPU.
#include <gtest/gtest.h>

#include <array>
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

TEST(KvPolicy, PrefillKeepsWhatOtherRowBlocksRead) {
  DecodeProblem problem;
  problem.features = {.page_size = 16, .q_len = 1024, .ragged_q = true};
  KernelSpec spec = base_spec({9, 0, true}, problem);
  spec.load = LoadPath::tensor, spec.tile = 64, spec.warp_tokens = 16, spec.stages = 3, spec.ctas_per_sm = 1;
  // How many kinds of copies have a hint and how many have none, and how many choose by the request.
  const auto copies_of = [&](int warps) {
    spec.warps = warps;
    const auto kernel = emit(spec);
    EXPECT_TRUE(kernel) << kernel.error().message;
    const auto count = [&](std::string_view text) {
      int found = 0;
      for (auto at = kernel->source.find(text); at != std::string::npos; at = kernel->source.find(text, at + 1))
        ++found;
      return found;
    };
    return std::array{count("complete_tx::bytes.L2::cache_hint [%0]"), count("complete_tx::bytes [%0]"),
                      count("@!p cp.async.bulk.tensor")};
  };
  EXPECT_EQ(copies_of(8), (std::array{1, 1, 1}));
  // The walk of requests with few query tokens reads all KV once, although requests may share pages.
  EXPECT_EQ(copies_of(12), (std::array{2, 1, 1}));
}

}  // namespace
}  // namespace leanattn
