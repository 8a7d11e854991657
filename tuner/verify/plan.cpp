// plan.cpp -- makes the list of kernels to verify.
#include "tuner/verify/plan.hpp"
#include "generator/kernel_layout.hpp"
#include "generator/kv_encoding.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kHeadDims[] = {64, 96, 128, 256};
constexpr DType kDTypes[] = {DType::bf16, DType::fp16};
constexpr KvLayout kLayouts[] = {KvLayout::contiguous, KvLayout::strided};
constexpr FixUp kFixUps[] = {FixUp::ticket, FixUp::wait};

std::string group_name(const KernelSpec& spec) {
  return fmt::format("{} d{} {}", to_string(spec.dtype), spec.head_dim, to_string(spec.load));
}

/// How many specs of a combination are tried before the modest one. A combination that does not compile costs this
/// much.
constexpr std::size_t kAttempts = 2;

void add(std::vector<VerifyKernel>& kernels, const KernelSpec& base, std::size_t first_variant) {
  auto specs = kernel_variants(base, first_variant);
  if (specs.size() > kAttempts) specs.resize(kAttempts);
  const KernelSpec modest = modest_variant(base);
  if (validate(modest) && std::find(specs.begin(), specs.end(), modest) == specs.end()) specs.push_back(modest);
  if (!specs.empty())
    kernels.push_back(
        {.group = group_name(base), .specs = std::move(specs), .required = base.load == LoadPath::cp_async});
}

/// How far the rotation goes for each kernel. The table has 13 entries, a number that has no factor in common with this
/// step and the lengths of the loops. So every load path, fix-up and group meets every entry.
constexpr std::size_t kRotation = 5;

}  // namespace

const std::vector<int>& verify_groups() {
  static const std::vector<int> groups{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 32, 40, 48, 64};
  return groups;
}

const std::vector<Tunables>& verify_tunables() {
  static const std::vector<Tunables> table{
      {.warps = 4, .warp_tokens = 16, .steps_per_tile = 4, .stages = 2, .ctas_per_sm = 1, .pdl = false},
      {.warps = 2, .warp_tokens = 32, .steps_per_tile = 2, .stages = 3, .ctas_per_sm = 2, .pdl = true},
      {.warps = 8, .warp_tokens = 16, .steps_per_tile = 1, .stages = 2, .ctas_per_sm = 1, .pdl = false},
      {.warps = 1, .warp_tokens = 16, .steps_per_tile = 1, .stages = 4, .ctas_per_sm = 4, .pdl = true},
      {.warps = 4, .warp_tokens = 32, .steps_per_tile = 2, .stages = 2, .ctas_per_sm = 2, .pdl = false},
      {.warps = 8, .warp_tokens = 32, .steps_per_tile = 8, .stages = 1, .ctas_per_sm = 1, .pdl = true},
      {.warps = 3, .warp_tokens = 16, .steps_per_tile = 5, .stages = 3, .ctas_per_sm = 1, .pdl = false},
      {.warps = 16, .warp_tokens = 16, .steps_per_tile = 16, .stages = 1, .ctas_per_sm = 1, .pdl = false},
      {.warps = 2, .warp_tokens = 64, .steps_per_tile = 1, .stages = 1, .ctas_per_sm = 1, .pdl = true},
      {.warps = 4, .warp_tokens = 16, .steps_per_tile = 16, .stages = 4, .ctas_per_sm = 1, .pdl = true},
      {.warps = 1, .warp_tokens = 32, .steps_per_tile = 3, .stages = 2, .ctas_per_sm = 3, .pdl = false},
      {.warps = 2, .warp_tokens = 16, .steps_per_tile = 2, .stages = 1, .ctas_per_sm = 1, .pdl = false},
      {.warps = 8, .warp_tokens = 16, .steps_per_tile = 8, .stages = 3, .ctas_per_sm = 1, .pdl = true},
  };
  return table;
}

KernelSpec with_tunables(KernelSpec base, const Tunables& tunables) {
  const bool tensor = base.load == LoadPath::tensor;
  const auto up_to = [](int value, int multiple) { return (value + multiple - 1) / multiple * multiple; };
  base.warps = tensor ? up_to(tunables.warps, 4) : tunables.warps;  // A tensor kernel has whole warpgroups.
  base.warp_tokens = tunables.warp_tokens;
  base.tile = layout_of(base).step_tokens * tunables.steps_per_tile;
  base.stages = loads_to_registers(base.load) ? 1 : tensor ? up_to(tunables.stages, base.warps / 4) : tunables.stages;
  base.ctas_per_sm = tunables.ctas_per_sm;
  base.pdl =
      tunables.pdl && base.arch.major >= 9 &&
      (!stages_scales(base.features) || (base.load == LoadPath::tensor && boxes_bring_all(base.features, base.layout)));
  return base;
}

std::vector<LoadPath> load_paths_of(Arch arch) {
  std::vector<LoadPath> loads(std::begin(kLoadPaths), std::end(kLoadPaths));
  std::erase_if(loads, [&](LoadPath load) {
    return (load == LoadPath::bulk && arch.major < 9) || (load == LoadPath::tensor && arch != Arch{9, 0, true});
  });
  return loads;
}

std::vector<KernelSpec> kernel_variants(const KernelSpec& base, std::size_t first) {
  const auto& table = verify_tunables();
  std::vector<KernelSpec> specs;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const KernelSpec spec = with_tunables(base, table[(first + i) % table.size()]);
    if (validate(spec) && std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  }
  return specs;
}

KernelSpec modest_variant(const KernelSpec& base) {
  return with_tunables(
      base, {.warps = 2, .warp_tokens = 16, .steps_per_tile = 2, .stages = 1, .ctas_per_sm = 1, .pdl = false});
}

std::vector<VerifyKernel> verify_combinations(Arch arch) {
  std::vector<VerifyKernel> kernels;
  std::size_t rotation = 0;
  for (DType dtype : kDTypes) {
    for (int head_dim : kHeadDims) {
      for (int group : verify_groups()) {
        for (KvLayout layout : kLayouts) {
          for (LoadPath load : load_paths_of(arch)) {
            for (FixUp fixup : kFixUps) {
              for (bool lse : {false, true}) {
                add(kernels,
                    {.arch = arch,
                     .head_dim = head_dim,
                     .group = group,
                     .dtype = dtype,
                     .layout = layout,
                     .lse = lse,
                     .load = load,
                     .fixup = fixup},
                    rotation += kRotation);
              }
            }
          }
        }
      }
    }
  }
  // For a few heads every entry of the table is a kernel of its own. Those that spill are only counted.
  for (int head_dim : kHeadDims) {
    for (int group : {1, 4, 8}) {
      for (LoadPath load : load_paths_of(arch)) {
        const KernelSpec base{.arch = arch,
                              .head_dim = head_dim,
                              .group = group,
                              .dtype = group == 4 ? DType::fp16 : DType::bf16,
                              .lse = true,
                              .load = load};
        for (const KernelSpec& spec : kernel_variants(base, 0)) {
          kernels.push_back({.group = fmt::format("tunables d{}", head_dim), .specs = {spec}, .required = false});
        }
      }
    }
  }
  return kernels;
}

std::vector<VerifyKernel> representative_kernels(Arch arch) {
  struct Heads {
    int head_dim, group;
    DType dtype;
    KvLayout layout;
    bool lse;
    LoadPath load;
    FixUp fixup;
    std::size_t first_variant;
  };
  using enum LoadPath;
  using enum FixUp;
  constexpr auto kContiguous = KvLayout::contiguous;
  constexpr auto kStrided = KvLayout::strided;
  constexpr Heads kHeads[] = {
      {128, 4, DType::bf16, kContiguous, true, cp_async, ticket, 0},
      {64, 7, DType::fp16, kStrided, true, bulk, wait, 1},
      {96, 5, DType::fp16, kContiguous, true, ldg, ticket, 3},
      {256, 2, DType::bf16, kStrided, true, cp_async, wait, 11},
      {128, 8, DType::bf16, kContiguous, true, bulk, ticket, 1},
      {128, 1, DType::bf16, kStrided, true, ldg, ticket, 0},
      {64, 1, DType::fp16, kContiguous, true, cp_async, wait, 2},
      {256, 8, DType::bf16, kContiguous, true, bulk, ticket, 11},
      {96, 16, DType::fp16, kStrided, true, cp_async, ticket, 3},
      {64, 40, DType::bf16, kContiguous, true, cp_async, ticket, 0},
      {256, 64, DType::fp16, kContiguous, true, bulk, wait, 11},
      {64, 32, DType::fp16, kStrided, true, ldg, wait, 3},
      {96, 3, DType::bf16, kContiguous, true, bulk, ticket, 9},
      {128, 4, DType::bf16, kContiguous, true, cp_async, ticket, 3},
      {128, 8, DType::fp16, kContiguous, true, cp_async, ticket, 7},
      {64, 8, DType::bf16, kStrided, false, bulk, ticket, 4},
      {128, 4, DType::bf16, kContiguous, true, tensor, ticket, 0},
      {64, 7, DType::fp16, kStrided, true, tensor, wait, 2},
      {256, 2, DType::bf16, kContiguous, true, tensor, wait, 1},
      {128, 20, DType::fp16, kStrided, true, tensor, ticket, 4},
      {128, 1, DType::bf16, kContiguous, true, vector, ticket, 1},
      {64, 2, DType::fp16, kStrided, true, vector, wait, 0},
  };
  std::vector<VerifyKernel> kernels;
  for (Heads heads : kHeads) {
    if (heads.load == tensor && arch != Arch{9, 0, true}) heads.load = bulk;
    if (heads.load == bulk && arch.major < 9) heads.load = cp_async;
    add(kernels,
        {.arch = arch,
         .head_dim = heads.head_dim,
         .group = heads.group,
         .dtype = heads.dtype,
         .layout = heads.layout,
         .lse = heads.lse,
         .load = heads.load,
         .fixup = heads.fixup},
        heads.first_variant);
  }
  return kernels;
}

std::vector<PlannedCase> combination_cases(const KernelSpec&) {
  return {
      {.shape = {.kv_heads = 2, .context_lengths = {83, 0, 200}}, .grids = {7, 200}},
      {.shape = {.kv_heads = 3,
                 .context_lengths = {513, 1},
                 .context_capacity = 600,
                 .padded = true,
                 .data = DataKind::peaked},
       .grids = {1, 132}},
      {.shape = {.kv_heads = 1, .context_lengths = {3000}, .padded = true}, .grids = {131}},
  };
}

}  // namespace v1
}  // namespace leanattn
