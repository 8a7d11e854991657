#include "tests/unit/generator/compile_matrix.hpp"

#include <iterator>
#include <utility>

#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

/// The kernels of an arch, a head_dim and a load path: both dtypes with both fix-ups, where a thread has the registers.
std::vector<KernelSpec> family(Arch arch, int head_dim, LoadPath load) {
  std::vector<KernelSpec> specs;
  for (DType dtype : {DType::bf16, DType::fp16}) {
    for (FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      // Both dtypes share their register needs; the group alternates so that the matrix covers more of it.
      const int group = load == LoadPath::vector ? (dtype == DType::bf16 ? 2 : 1)
                        : dtype == DType::bf16   ? 4
                        : fixup == FixUp::ticket ? 1
                                                 : 16;
      const KernelSpec spec = matrix_spec(arch, dtype, head_dim, load, fixup, group);
      if (load == LoadPath::ldg && !validate(spec)) continue;  // more registers than a thread has
      specs.push_back(spec);
    }
  }
  return specs;
}

const Features kFeatures[] = {
    {.page_size = 16},
    {.page_size = 1},
    {.page_size = 48, .q_len = 3, .ragged_q = true, .mask = QueryMask::tree},
    {.q_len = 4},
    {.q_len = 40, .mask = QueryMask::full},
    {.window = 500, .sink_tokens = 4, .sink_logits = true},
    {.page_size = 8, .q_len = 2, .window = 100, .soft_cap = 30, .alibi = true},
    {.score = "score * 0.5f + fminf(1.0f, kv_index - q_index) * head"},
    {.kv_format = KvFormat::fp8_e4m3},
    {.page_size = 32, .kv_format = KvFormat::fp8_e5m2, .kv_scale = KvScale::head},
    {.kv_format = KvFormat::int8, .kv_scale = KvScale::token},
    {.v_head_dim = 64},
    {.page_size = 16, .v_head_dim = 64, .latent = true, .append = true, .rope = Rope::interleaved},
    {.page_size = 16, .append = true, .rope = Rope::half_split},
    {.append = true, .rope = Rope::interleaved, .rope_dim = 64, .batch_invariant = true},
    {.q_len = 16, .kv_format = KvFormat::int8, .kv_scale = KvScale::head, .append = true},
    {.page_size = 16, .kv_format = KvFormat::int8, .append = true, .rope = Rope::half_split},
    {.q_len = 16, .append = true, .rope = Rope::half_split},
    {.page_size = 64, .q_len = 3, .selection_block = 64},
    {.page_size = 16, .kv_format = KvFormat::int8, .kv_scale = KvScale::token, .selection_block = 16},
    {.page_size = 4, .selection_block = 128, .selection_in_pool = true},
    {.page_size = 64, .selection_block = 1},
    {.page_size = 64, .q_len = 2, .selection_block = 64, .second_cache = true},
    {.page_size = 4, .selection_block = 16, .second_cache = true},
    {.context_parallel = 2},
    {.page_size = 16, .q_len = 4, .ragged_q = true, .context_parallel = 8, .context_interleave = 16},
    {.q_len = 3, .kv_format = KvFormat::int8, .context_parallel = 4, .replicate_output = true},
    {.page_size = 16, .q_len = 2, .window = 500, .sink_tokens = 4, .context_parallel = 3, .context_interleave = 16},
    {.page_size = 16, .q_len = 2, .append = true, .rope = Rope::half_split, .context_parallel = 2},
    {.append = true, .context_parallel = 3, .context_interleave = 16},
    {.q_len = 4,
     .window = 100,
     .append = true,
     .rope = Rope::interleaved,
     .context_interleave = 16,
     .context_ranks = 4},
    {.page_size = 16, .q_len = 2, .alibi = true, .context_parallel = 2, .context_interleave = 1, .context_ranks = 4},
    {.soft_cap = 20,
     .alibi = true,
     .score = "score + q_index - kv_index",
     .context_parallel = 2,
     .context_interleave = 1},
    {.page_size = 16, .kv_format = KvFormat::int4, .kv_scale = KvScale::in_row},
    {.q_len = 3, .ragged_q = true, .window = 100, .kv_format = KvFormat::int4, .kv_scale = KvScale::token},
    {.page_size = 16, .kv_format = KvFormat::fp8_e4m3, .kv_scale = KvScale::in_row},
    {.page_size = 16, .kv_format = KvFormat::int4, .kv_scale = KvScale::in_row, .append = true},
    {.q_len = 2, .kv_format = KvFormat::int8, .kv_scale = KvScale::in_row, .append = true},
    {.page_size = 16, .kv_format = KvFormat::nvfp4},
    {.q_len = 3, .ragged_q = true, .window = 100, .kv_format = KvFormat::nvfp4, .kv_scale = KvScale::head},
    {.page_size = 16, .kv_format = KvFormat::nvfp4, .append = true},
};

constexpr int kPrompt = 4096;
const std::pair<int, Features> kPrefill[] = {
    {128, {.page_size = 16, .q_len = kPrompt, .ragged_q = true}},
    {64, {.page_size = 1, .q_len = kPrompt, .ragged_q = true, .append = true, .rope = Rope::interleaved}},
    {128, {.q_len = kPrompt, .ragged_q = true, .append = true, .rope = Rope::half_split}},
    {128, {.page_size = 16, .q_len = kPrompt, .ragged_q = true, .window = 500, .sink_tokens = 4, .sink_logits = true}},
    {192, {.page_size = 128, .q_len = kPrompt, .ragged_q = true, .soft_cap = 30, .alibi = true, .v_head_dim = 128}},
    {192, {.page_size = 12, .q_len = kPrompt, .ragged_q = true}},
    {256, {.page_size = 16, .q_len = kPrompt, .ragged_q = true}},
    {256, {.q_len = kPrompt, .ragged_q = true, .score = "score * 0.5f + head"}},
    {128, {.q_len = 16, .mask = QueryMask::tree}},
    {128, {.page_size = 16, .q_len = 16, .ragged_q = true, .batch_invariant = true}},
    {128, {.page_size = 64, .selection_block = 64}},
    {128, {.page_size = 16, .q_len = 16, .ragged_q = true, .context_parallel = 2}},
};

}  // namespace

KernelSpec matrix_spec(Arch arch, DType dtype, int head_dim, LoadPath load, FixUp fixup, int group) {
  KernelSpec spec{
      .arch = arch, .head_dim = head_dim, .group = group, .dtype = dtype, .lse = true, .load = load, .fixup = fixup};
  spec.layout = group % 2 == 0 ? KvLayout::contiguous : KvLayout::strided;
  spec.stages = loads_to_registers(load) ? 1 : 2;
  while (!validate(spec) && spec.warps > 1) spec.warps /= 2;  // what fits the shared memory of the smaller archs
  return spec;
}

std::vector<KernelSpec> matrix(Combinations combinations) {
  std::vector<KernelSpec> specs;
  std::size_t turn = 0, arch_turn = run_seed();
  for (Arch arch : matrix_arches()) {
    ++turn, ++arch_turn;
    for (LoadPath load : kLoadPaths) {
      if (load == LoadPath::bulk && arch.major < 9) continue;  // no bulk copies before Hopper
      std::vector<std::vector<KernelSpec>> of_dims;            // of each head_dim that the load path has
      for (int head_dim : {64, 96, 128, 256}) {
        if (load == LoadPath::tensor && (arch != Arch{9, 0, true} || head_dim % 64 != 0)) continue;  // wgmma
        if (auto kernels = family(arch, head_dim, load); !kernels.empty()) of_dims.push_back(std::move(kernels));
      }
      const std::size_t count =
          combinations == Combinations::covering ? std::min<std::size_t>(of_dims.size(), 1) : of_dims.size();
      for (std::size_t i = 0; i < count; ++i) {
        const auto& kernels = of_dims[(arch_turn + static_cast<std::size_t>(load) + i) % of_dims.size()];
        if (combinations == Combinations::all || load == LoadPath::tensor) {
          specs.insert(specs.end(), kernels.begin(), kernels.end());
        } else {
          specs.push_back(kernels[++turn % kernels.size()]);
        }
      }
    }
  }
  const std::size_t ordinary = specs.size();
  // Query rows on the matrix rows: one warpgroup holds all, two take steps in turn, two have half of them each.
  for (const auto& [q_len, warps] : {std::pair{12, 4}, std::pair{16, 8}, std::pair{32, 8}}) {
    KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 128, LoadPath::tensor, FixUp::ticket, 4);
    spec.features = {.q_len = q_len, .mask = QueryMask::full};
    spec.warps = warps, spec.stages = 2;
    specs.push_back(spec);
  }
  // Prefill, with all widths of V, whatever brings K and V and whatever rows see.
  for (const auto& [head_dim, features] : kPrefill) {
    const FixUp fixup = specs.size() % 2 == 0 || features.batch_invariant ? FixUp::ticket : FixUp::wait;
    KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 128, LoadPath::tensor, fixup, 8);
    spec.head_dim = head_dim, spec.features = features, spec.warps = 8, spec.stages = 2;
    if (features.batch_invariant) spec.tile = 2048;
    if (features.selection_block > 0) spec.group = 128;
    specs.push_back(spec);
    spec.warp_tokens = 32, spec.tile = features.batch_invariant ? 2048 : 128;  // steps of 128 tokens
    if (validate(spec)) specs.push_back(spec);
  }
  // Three warpgroups of prefill, with steps as long as their registers allow.
  for (const auto& [head_dim, warp_tokens] : {std::pair{64, 28}, std::pair{64, 24}, std::pair{128, 20}}) {
    for (const int page_size : {0, 16}) {
      KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 128, LoadPath::tensor, FixUp::ticket, 4);
      spec.head_dim = head_dim, spec.features = {.page_size = page_size, .q_len = kPrompt, .ragged_q = true};
      spec.warps = 12, spec.warp_tokens = warp_tokens, spec.tile = 4 * warp_tokens, spec.stages = 3;
      specs.push_back(spec);
    }
  }
  // Two walks in a CTA.
  for (const int page_size : {0, 16}) {
    KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 128, LoadPath::tensor, FixUp::ticket, 4);
    spec.features = {.page_size = page_size, .q_len = kPrompt, .ragged_q = true};
    spec.warps = 12, spec.stages = 3;
    specs.push_back(spec);
  }
  // Boxes of warps: rows that hold their scales, and pages with scales of blocks, adjacent and not.
  for (const KvFormat format : {KvFormat::int4, KvFormat::nvfp4}) {
    for (const auto& [head_dim, group] : {std::pair{64, 8}, std::pair{128, 4}, std::pair{128, 5}, std::pair{256, 3}}) {
      KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 128, LoadPath::tensor, FixUp::ticket, group);
      spec.features = {.page_size = 16, .kv_format = format};
      if (format == KvFormat::int4) spec.features.kv_scale = KvScale::in_row;
      spec.head_dim = head_dim, spec.warps = 8, spec.stages = 2, spec.pdl = group == 4;
      if (group < 8) spec.warp_tokens = 32;
      specs.push_back(spec);
    }
  }
  // Prefill by mma.sync: warps with 32 query rows, and with 16.
  for (const Arch arch : {Arch{8, 0, false}, Arch{9, 0, true}, Arch{12, 0, true}}) {
    for (const auto& [head_dim, warps] : {std::pair{128, 4}, std::pair{256, 8}}) {
      KernelSpec spec = matrix_spec(arch, DType::bf16, 128, LoadPath::cp_async, FixUp::ticket, 4);
      spec.head_dim = head_dim, spec.features = {.page_size = 16, .q_len = kPrompt, .ragged_q = true};
      spec.warps = warps, spec.warp_tokens = 32, spec.stages = 2;
      if (validate(spec)) specs.push_back(spec);
    }
  }
  // Latent caches: tokens on the matrix rows, and warpgroups with roles. Where those trade registers, the compiler may
  // spill a few words between segments.
  for (const auto& [warps, group] : {std::pair{4, 16}, std::pair{8, 64}}) {
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 576, LoadPath::tensor, fixup, group);
      spec.features = {.page_size = fixup == FixUp::wait ? 64 : 0, .v_head_dim = 512, .latent = true};
      spec.warps = warps, spec.stages = 2;
      specs.push_back(spec);
    }
  }
  // What query tokens have selected, block by block on every load path and row by row over latent caches.
  for (const LoadPath load : kLoadPaths) {
    KernelSpec spec =
        matrix_spec({9, 0, true}, DType::bf16, 128, load, FixUp::ticket, load == LoadPath::vector ? 1 : 4);
    spec.features = {.page_size = 64, .selection_block = 64};
    specs.push_back(spec);
  }
  for (const auto& [warps, group] : {std::pair{4, 16}, std::pair{8, 64}}) {
    for (const bool in_pool : {false, true}) {
      KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 576, LoadPath::tensor, FixUp::wait, group);
      spec.features = {.page_size = 64, .v_head_dim = 512, .latent = true, .selection_block = 1};
      spec.features.selection_in_pool = in_pool;
      spec.warps = warps, spec.stages = 2;
      specs.push_back(spec);
      spec.features.second_cache = true;
      specs.push_back(spec);
    }
  }
  // Rows of a format of their own: as a whole, from pages of any size, with new rows, selected.
  for (const auto& [warps, group] : {std::pair{4, 16}, std::pair{8, 128}}) {
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 576, LoadPath::tensor, fixup, group);
      spec.features = {.kv_format = KvFormat::fp8_ds_mla, .v_head_dim = 512, .latent = true};
      spec.warps = warps, spec.stages = 2;
      if (fixup == FixUp::ticket) specs.push_back(spec);
      spec.features.page_size = fixup == FixUp::wait ? 64 : 1, spec.features.q_len = 2;
      specs.push_back(spec);
      KernelSpec appends = spec;
      appends.features.append = true;
      specs.push_back(appends);
      KernelSpec turns = appends;
      turns.features.rope = Rope::interleaved, turns.warps = 8;
      specs.push_back(turns);
      spec.features.page_size = 64, spec.features.selection_block = 1;
      spec.features.selection_in_pool = fixup == FixUp::wait;
      specs.push_back(spec);
      spec.features.second_cache = true;
      specs.push_back(spec);
      spec.head_dim = 512, spec.features.kv_format = KvFormat::fp8_ds_v4;
      specs.push_back(spec);
      appends.head_dim = 512, appends.features.kv_format = KvFormat::fp8_ds_v4, appends.features.page_size = 64;
      appends.warps = 8;
      specs.push_back(appends);
    }
  }
  // Latent caches of one-byte elements: eight warps that share columns, four, and warpgroups with roles.
  for (const auto& [warps, group] : {std::pair{8, 16}, std::pair{4, 16}, std::pair{8, 64}}) {
    const FixUp fixup = warps == 4 ? FixUp::ticket : FixUp::wait;
    KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 576, LoadPath::tensor, fixup, group);
    spec.features = {.page_size = 64, .kv_format = KvFormat::fp8_e4m3, .v_head_dim = 512, .latent = true};
    spec.warps = warps, spec.stages = 2;
    KernelSpec more = spec;
    more.features.q_len = 3, more.features.ragged_q = warps == 4;
    more.features.kv_format = group == 64 ? KvFormat::int8 : KvFormat::fp8_e5m2;
    more.features.append = group == 64;
    specs.push_back(spec);
    specs.push_back(more);
  }
  // New rows that go to the stage: to one warpgroup, to both, and to the one that leads.
  for (const auto& [warps, group] : {std::pair{4, 16}, std::pair{8, 16}, std::pair{8, 128}}) {
    KernelSpec spec = matrix_spec({9, 0, true}, DType::bf16, 576, LoadPath::tensor, FixUp::wait, group);
    spec.features = {.page_size = warps == 4 ? 1 : 64,
                     .q_len = 2,
                     .v_head_dim = 512,
                     .latent = true,
                     .append = true,
                     .rope = Rope::interleaved};
    spec.warps = warps, spec.stages = 2, spec.pdl = group == 128;
    specs.push_back(spec);
  }
  // Wide heads of one-byte elements, whose queries stand in shared memory whatever the load path.
  KernelSpec wide = matrix_spec({9, 0, true}, DType::fp16, 480, LoadPath::ldg, FixUp::wait, 8);
  wide.features = {.kv_format = KvFormat::int8, .v_head_dim = 16};
  wide.stages = 1;
  specs.push_back(wide);
  if (combinations == Combinations::all) return specs;
  // Of these kernels every fourth one has its turn.
  std::vector<KernelSpec> in_their_turn(specs.begin(), specs.begin() + static_cast<std::ptrdiff_t>(ordinary));
  for (std::size_t i = ordinary; i < specs.size(); ++i) {
    if (in_turn(i % 4, 4)) in_their_turn.push_back(specs[i]);
  }
  return in_their_turn;
}

std::span<const Features> matrix_features() { return kFeatures; }

std::vector<KernelSpec> features_matrix(Combinations combinations) {
  constexpr LoadPath kLoads[] = {LoadPath::cp_async, LoadPath::bulk, LoadPath::tensor, LoadPath::ldg, LoadPath::vector};
  std::vector<KernelSpec> specs;
  std::size_t turn = 0, arches_before = 0, arch_turn = 0;
  for (Arch arch : matrix_arches()) {
    ++turn;
    const std::size_t others = matrix_arches().size() - 1;
    std::size_t feature = 0;
    for (const Features& features : kFeatures) {
      ++turn;
      if (combinations == Combinations::covering) {
        const std::size_t number = feature++;
        const bool has_turn = arch == Arch{9, 0, true}
                                  ? in_turn(number % 2, 2)
                                  : number % others == arches_before && in_turn((number + 1) % 4, 4);
        if (!has_turn) continue;
      }
      for (std::size_t i = 0; i < std::size(kLoads); ++i) {
        const LoadPath load = kLoads[(turn + i) % std::size(kLoads)];
        KernelSpec spec = matrix_spec(arch, turn % 2 == 0 ? DType::bf16 : DType::fp16, 128, load, FixUp::ticket,
                                      load == LoadPath::vector || load == LoadPath::ldg ? 1 : 4);
        spec.features = features;
        if (features.batch_invariant) spec.tile = 2048;
        while (!validate(spec) && spec.warps > 1) spec.warps /= 2;
        if (!validate(spec)) continue;
        specs.push_back(spec);
        break;
      }
    }
    if (arch != Arch{9, 0, true}) ++arches_before;
    std::size_t dim_turn = run_seed() + (++arch_turn);
    for (const int head_dim : {16, 80, 192, 320, 512}) {
      if (combinations == Combinations::covering && dim_turn++ % 2 != 0) continue;
      KernelSpec spec = matrix_spec(arch, DType::bf16, head_dim, LoadPath::cp_async, FixUp::ticket, 3);
      while (!validate(spec) && spec.stages > 1) spec.stages -= 1;
      specs.push_back(spec);
    }
    KernelSpec latent = matrix_spec(arch, DType::bf16, 128, LoadPath::cp_async, FixUp::ticket, 16);
    latent.head_dim = 576, latent.features = {.page_size = 64, .v_head_dim = 512, .latent = true};
    latent.warps = 1, latent.stages = 1;
    specs.push_back(latent);
  }
  return specs;
}

}  // namespace leanattn
