// prefill_plan_test.cpp -- the kernels and steps of verify's part `prefill`.
#include "tuner/verify/prefill_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "generator/families/family.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
namespace {

constexpr Arch kPrefillHopper{9, 0, true}, kPrefillAmpere{8, 0, false};

TEST(VerifyPrefill, KernelsHaveHeadsPagesMasksAndFeatures) {
  for (const Arch arch : {kPrefillHopper, kPrefillAmpere}) {
    std::set<int> head_dims, groups, pages;
    std::set<DType> dtypes;
    std::set<LoadPath> loads;
    std::set<QueryMask> masks;
    std::set<FixUp> fixups;
    std::set<std::pair<KvFormat, KvScale>> staged;
    bool window = false, sinks = false, soft_cap = false, alibi = false, sink_logits = false, append = false;
    for (const VerifyKernel& kernel : prefill_kernels(arch)) {
      for (const KernelSpec& spec : kernel.specs) {
        EXPECT_TRUE(validate(spec)) << kernel_name(spec);
        EXPECT_TRUE(has_prefill(spec.features)) << kernel_name(spec);
        EXPECT_EQ(canonical({.features = spec.features}).features.q_len, spec.features.q_len);
      }
      const KernelSpec& spec = kernel.specs.front();
      const auto& f = spec.features;
      head_dims.insert(spec.head_dim), groups.insert(spec.group), pages.insert(f.page_size), dtypes.insert(spec.dtype);
      loads.insert(spec.load), masks.insert(f.mask), fixups.insert(spec.fixup);
      window |= f.window > 0, sinks |= f.sink_tokens > 0, soft_cap |= f.soft_cap > 0, alibi |= f.alibi;
      sink_logits |= f.sink_logits, append |= f.append;
      if (stages_scales(f)) staged.insert({f.kv_format, f.kv_scale});
    }
    for (const int head_dim : {64, 128, 256}) EXPECT_TRUE(head_dims.contains(head_dim)) << head_dim;
    for (const int group : {1, 4, 7, 8}) EXPECT_TRUE(groups.contains(group)) << group;
    for (const int page_size : {0, 1, 16, 64, 128}) EXPECT_TRUE(pages.contains(page_size)) << page_size;
    EXPECT_EQ(dtypes.size(), 2u);
    EXPECT_EQ(masks, (std::set<QueryMask>{QueryMask::causal, QueryMask::full}));
    EXPECT_EQ(fixups.size(), 2u);
    EXPECT_GE(loads.size(), arch == kPrefillHopper ? 3u : 2u);
    EXPECT_TRUE(window && sinks && soft_cap && alibi && sink_logits && append);
    EXPECT_EQ(staged, (std::set<std::pair<KvFormat, KvScale>>{{KvFormat::int4, KvScale::in_row},
                                                              {KvFormat::int4, KvScale::token},
                                                              {KvFormat::fp8_e4m3, KvScale::in_row},
                                                              {KvFormat::int8, KvScale::in_row},
                                                              {KvFormat::nvfp4, KvScale::tensor},
                                                              {KvFormat::nvfp4, KvScale::head}}));
  }
}

TEST(VerifyPrefill, TheFamilyForPrefillIsMetInPagesAndWithGatheredRows) {
  std::set<bool> gathers, appends;
  std::set<FixUp> fixups;
  for (const VerifyKernel& kernel : prefill_kernels(kPrefillHopper)) {
    const KernelSpec& spec = kernel.specs.front();
    const KernelLayout layout = layout_of(spec);
    if (layout.family != &kWgmmaPrefill) continue;
    gathers.insert(layout.gathers_rows), appends.insert(spec.features.append), fixups.insert(spec.fixup);
  }
  EXPECT_EQ(gathers.size(), 2u);
  EXPECT_EQ(appends.size(), 2u);
  EXPECT_EQ(fixups.size(), 2u);
}

TEST(VerifyPrefill, WarpsWithRowsOfTheirOwnAreMetOnEveryArchitecture) {
  for (const Arch arch : matrix_arches()) {
    std::set<int> head_dims, pages, warps, steps, stages;
    std::set<FixUp> fixups;
    bool window = false, spans = false, packed = false, full = false, logits = false, narrow_v = false;
    for (const VerifyKernel& kernel : prefill_kernels(arch)) {
      const KernelSpec& spec = kernel.specs.front();
      if (&family_of(spec) != &kMmaPrefill) continue;
      const auto& f = spec.features;
      head_dims.insert(spec.head_dim), pages.insert(f.page_size), warps.insert(spec.warps),
          steps.insert(spec.warp_tokens);
      stages.insert(spec.stages), fixups.insert(spec.fixup);
      window |= f.window > 0, spans |= f.spans, packed |= f.packed_kv, full |= f.mask == QueryMask::full;
      logits |= f.sink_logits, narrow_v |= f.v_head_dim > 0;
    }
    for (const int head_dim : {64, 128, 256}) EXPECT_TRUE(head_dims.contains(head_dim)) << to_string(arch);
    for (const int page_size : {0, 1, 16, 64, 128}) EXPECT_TRUE(pages.contains(page_size)) << to_string(arch);
    EXPECT_EQ(warps, (std::set<int>{4, 8})) << to_string(arch);
    EXPECT_TRUE(steps.contains(32) && steps.contains(64)) << to_string(arch);
    EXPECT_TRUE(stages.contains(2) && stages.contains(3)) << to_string(arch);
    EXPECT_EQ(fixups.size(), 2u) << to_string(arch);
    EXPECT_TRUE(window && spans && packed && full && logits && narrow_v) << to_string(arch);
  }
}

TEST(VerifyPrefill, TwoWalksInACtaAreMetWithMasksWindowsAndLogits) {
  int kernels = 0;
  bool windows = false, full = false, logits = false, dense = false, paged = false;
  for (const VerifyKernel& kernel : prefill_kernels(kPrefillHopper)) {
    const KernelSpec& spec = kernel.specs.front();
    if (layout_of(spec).family != &kWgmmaMixed) continue;
    const auto& f = spec.features;
    ++kernels;
    windows |= f.window > 0, full |= f.mask == QueryMask::full, logits |= f.sink_logits;
    dense |= f.page_size == 0, paged |= f.page_size == 16;
  }
  EXPECT_GE(kernels, 10);
  EXPECT_TRUE(windows && full && logits && dense && paged);
}

TEST(VerifyPrefill, ThreeWarpgroupsAreMetWithMasksWindowsAndLogits) {
  std::set<int> head_dims, steps;
  bool windows = false, full = false, logits = false, dense = false, paged = false;
  for (const VerifyKernel& kernel : prefill_kernels(kPrefillHopper)) {
    const KernelSpec& spec = kernel.specs.front();
    if (layout_of(spec).family != &kWgmmaPrefill || spec.warps != 12) continue;
    const auto& f = spec.features;
    head_dims.insert(spec.head_dim), steps.insert(4 * spec.warp_tokens);
    windows |= f.window > 0, full |= f.mask == QueryMask::full, logits |= f.sink_logits;
    dense |= f.page_size == 0, paged |= f.page_size == 16;
  }
  EXPECT_TRUE(head_dims.contains(64) && head_dims.contains(128));
  EXPECT_GE(steps.size(), 2u);
  EXPECT_TRUE(windows && full && logits && dense && paged);
}

TEST(VerifyPrefill, EveryListIsMetAndTheLongOnesOnce) {
  using Requests = std::vector<std::pair<int, int>>;
  std::vector<Requests> met;
  int most_contexts = 0;
  for (const VerifyKernel& kernel : prefill_kernels(kPrefillHopper)) {
    for (const PlannedCase& planned : prefill_cases(kernel.specs.front())) {
      ASSERT_EQ(planned.shape.query_tokens.size(), planned.shape.context_lengths.size());
      Requests requests;
      for (std::size_t i = 0; i < planned.shape.query_tokens.size(); ++i)
        requests.emplace_back(planned.shape.query_tokens[i], planned.shape.context_lengths[i]);
      most_contexts += planned.shape.context_lengths.front() > 100000;
      met.push_back(std::move(requests));
    }
  }
  for (const auto* lists : {&prefill_lists(), &long_prefill_lists()}) {
    for (const PrefillStep& step : *lists) EXPECT_TRUE(std::ranges::count(met, step.requests) > 0) << step.name;
  }
  EXPECT_LE(most_contexts, 2) << "the oracle takes seconds";
}

TEST(VerifyPrefill, MixedStepsHaveAllKindsOfRequests) {
  const std::vector<PlannedCase> cases = prefill_cases(prefill_kernels(kPrefillHopper).front().specs.front());
  const CaseShape& shape = cases.front().shape;
  const std::set<int> counts(shape.query_tokens.begin(), shape.query_tokens.end());
  for (const int count : {0, 1, 127, 128, 129, 255, 256, 257}) EXPECT_TRUE(counts.contains(count)) << count;
  bool longer = false, empty = false;
  for (std::size_t i = 0; i < shape.query_tokens.size(); ++i) {
    longer |= shape.query_tokens[i] > shape.context_lengths[i] && shape.context_lengths[i] > 0;
    empty |= shape.query_tokens[i] > 0 && shape.context_lengths[i] == 0;
  }
  EXPECT_TRUE(longer && empty);
}

}  // namespace
}  // namespace leanattn
