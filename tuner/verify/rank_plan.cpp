#include "tuner/verify/rank_plan.hpp"

#include <algorithm>

namespace leanattn {
inline namespace v1 {
namespace {

/// What a kernel is specialised for beside its load path and fix-up.
struct RankHeads {
  int head_dim, group;
  Features features;
  DType dtype = DType::bf16;
  bool lse = true;
};

std::vector<RankHeads> rank_heads(bool quick) {
  std::vector<RankHeads> heads{
      {128, 4, {.context_parallel = 2}},
      {128, 8, {.page_size = 16, .q_len = 4, .context_parallel = 2, .context_interleave = 16}, DType::fp16},
      {64, 1, {.context_parallel = 2, .replicate_output = true}, DType::bf16, false},
      {128, 4, {.q_len = 4, .ragged_q = true, .context_parallel = 2}},
      {128, 4, {.page_size = 16, .window = 300, .sink_tokens = 5, .context_parallel = 2}},
      {64, 2, {.q_len = 3, .window = 100, .sink_tokens = 70, .context_parallel = 2, .context_interleave = 1}},
      {64, 2, {.q_len = 2, .alibi = true, .context_parallel = 2, .context_interleave = 16}},
      {128, 4, {.page_size = 16, .append = true, .rope = Rope::half_split, .context_parallel = 2}},
      {64, 1, {.q_len = 2, .append = true, .context_parallel = 2, .context_interleave = 1}},
  };
  if (quick) return heads;
  const std::vector<RankHeads> more{
      {128, 4, {.context_parallel = 3, .context_interleave = 1, .replicate_output = true}},
      {64, 8, {.page_size = 64, .context_parallel = 4, .context_interleave = 256}, DType::fp16},
      {128, 1, {.context_parallel = 4, .context_interleave = 64}, DType::bf16, false},
      {128, 4, {.page_size = 16, .q_len = 4, .context_parallel = 4, .replicate_output = true}},
      {128, 8, {.q_len = 2, .mask = QueryMask::full, .context_parallel = 8, .context_interleave = 2}},
      {128, 4, {.sink_logits = true, .soft_cap = 30, .kv_format = KvFormat::int8, .context_parallel = 2}},
      {576, 16, {.v_head_dim = 512, .latent = true, .context_parallel = 2}},
      {64, 1, {.append = true, .rope = Rope::interleaved, .context_parallel = 2, .context_interleave = 64}},
      {128, 1, {.append = true, .context_parallel = 3, .replicate_output = true}},
      {64,
       4,
       {.q_len = 4,
        .ragged_q = true,
        .append = true,
        .rope = Rope::half_split,
        .rope_dim = 32,
        .context_parallel = 4,
        .context_interleave = 2}},
      {128,
       4,
       {.page_size = 64,
        .q_len = 4,
        .window = 150,
        .sink_tokens = 3,
        .kv_format = KvFormat::int8,
        .append = true,
        .rope = Rope::half_split,
        .context_parallel = 3,
        .replicate_output = true}},
      {128, 8, {.q_len = 3, .mask = QueryMask::full, .append = true, .context_parallel = 8, .context_interleave = 16}},
      {576,
       16,
       {.page_size = 16,
        .v_head_dim = 512,
        .latent = true,
        .append = true,
        .rope = Rope::interleaved,
        .context_parallel = 2}},
      {128, 1, {.alibi = true, .context_parallel = 3, .replicate_output = true}},
      {128,
       1,
       {.soft_cap = 30,
        .score = "score - 0.03125f * (float)(q_index - kv_index) * (float)(1 + head % 4)",
        .context_parallel = 2}},
      {64, 4, {.page_size = 16, .q_len = 4, .ragged_q = true, .alibi = true, .context_parallel = 4}},
      {128,
       8,
       {.q_len = 2,
        .window = 900,
        .sink_tokens = 9,
        .alibi = true,
        .score = "kv_index % 3 == 0 ? score - 1.0f : score",
        .context_parallel = 2,
        .context_interleave = 64},
       DType::fp16},
      {128, 1, {.window = 700, .sink_tokens = 3, .context_parallel = 2, .context_interleave = 16}},
      {128, 1, {.window = 1, .context_parallel = 4, .replicate_output = true}},
      {128,
       4,
       {.q_len = 4,
        .ragged_q = true,
        .window = 200,
        .sink_tokens = 4,
        .context_parallel = 3,
        .replicate_output = true}},
      {64,
       8,
       {.page_size = 64, .window = 1000, .sink_tokens = 130, .context_parallel = 4, .context_interleave = 16},
       DType::fp16},
      {128,
       4,
       {.page_size = 48,
        .q_len = 2,
        .window = 64,
        .sink_logits = true,
        .soft_cap = 30,
        .context_parallel = 8,
        .context_interleave = 256}},
      {128, 2, {.window = 5000, .sink_tokens = 1, .kv_format = KvFormat::fp8_e4m3, .context_parallel = 2}},
  };
  heads.insert(heads.end(), more.begin(), more.end());
  return heads;
}

}  // namespace

std::vector<VerifyKernel> rank_kernels(Arch arch, bool quick) {
  std::vector<VerifyKernel> kernels;
  std::size_t turn = 0;
  for (const LoadPath load : load_paths_of(arch)) {
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      for (const RankHeads& heads : rank_heads(quick)) {
        KernelSpec base{.arch = arch, .head_dim = heads.head_dim, .group = heads.group, .dtype = heads.dtype};
        base.lse = heads.lse, base.features = heads.features;
        base.load = load, base.fixup = fixup;
        VerifyKernel kernel{.group = "groups: " + std::string(to_string(load)) + " " + std::string(to_string(fixup)),
                            .specs = kernel_variants(base, turn++),
                            .required = load == LoadPath::cp_async};
        // Several ranks must fit the GPU beside each other: the smallest comes first.
        if (const KernelSpec modest = modest_variant(base); validate(modest)) {
          std::erase(kernel.specs, modest);
          kernel.specs.insert(
              kernel.specs.begin() + (turn % 2 == 0 ? 0 : static_cast<std::ptrdiff_t>(kernel.specs.size())), modest);
        }
        if (!kernel.specs.empty()) kernels.push_back(std::move(kernel));
      }
    }
  }
  return kernels;
}

std::vector<std::vector<int>> rank_lengths(const KernelSpec&) {
  return {{2000, 1234, 0, 77, 1, 2311}, {0, 3, 0, 0, kRankCapacity, 640}};
}

KernelSpec whole_spec(KernelSpec spec) {
  spec.features.context_parallel = 1, spec.features.context_interleave = 0;
  spec.features.replicate_output = false, spec.features.page_size = 0;
  return spec;
}

int rank_kv_heads(const KernelSpec& spec) {
  if (spec.features.latent) return 1;
  return std::max(spec.features.context_parallel, 2);
}

}  // namespace v1
}  // namespace leanattn
