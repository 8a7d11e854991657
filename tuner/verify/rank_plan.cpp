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

std::vector<RankHeads> rank_heads() {
  return {
      {128, 4, {.context_parallel = 2}},
      {128, 8, {.page_size = 16, .q_len = 4, .context_parallel = 2, .context_interleave = 16}, DType::fp16},
      {64, 1, {.context_parallel = 2, .replicate_output = true}, DType::bf16, false},
      {128, 4, {.q_len = 4, .ragged_q = true, .context_parallel = 2}},
      {128, 4, {.context_parallel = 3, .context_interleave = 1, .replicate_output = true}},
      {64, 8, {.page_size = 64, .context_parallel = 4, .context_interleave = 256}, DType::fp16},
      {128, 1, {.context_parallel = 4, .context_interleave = 64}, DType::bf16, false},
      {128, 4, {.page_size = 16, .q_len = 4, .context_parallel = 4, .replicate_output = true}},
      {128, 8, {.q_len = 2, .mask = QueryMask::full, .context_parallel = 8, .context_interleave = 2}},
      {128, 4, {.sink_logits = true, .soft_cap = 30, .kv_format = KvFormat::int8, .context_parallel = 2}},
      {576, 16, {.v_head_dim = 512, .latent = true, .context_parallel = 2}},
  };
}

/// What depends on positions in the whole contexts, over contiguous parts and over units in turn.
struct PositionTheme {
  std::vector<RankHeads> contiguous, in_turn;
};

template <class Change>
RankHeads heads_with(int head_dim, int group, int ranks, int unit, Change change) {
  RankHeads heads{head_dim, group, {.context_parallel = ranks, .context_interleave = unit}};
  heads.features.replicate_output = ranks == 3;  // which do not divide KV heads
  change(heads.features);
  return heads;
}

std::vector<PositionTheme> position_themes() {
  using F = Features;
  constexpr const char* kDistance = "score - 0.03125f * (float)(q_index - kv_index) * (float)(1 + head % 4)";
  constexpr auto with = [](int head_dim, int group, int ranks, int unit, auto change) {
    return heads_with(head_dim, group, ranks, unit, change);
  };
  const PositionTheme windows{
      {with(128, 4, 2, 0, [](F& f) { f.page_size = 16, f.window = 300, f.sink_tokens = 5; }),
       with(128, 1, 4, 0, [](F& f) { f.window = 1, f.replicate_output = true; }),
       with(128, 4, 3, 0, [](F& f) { f.q_len = 4, f.ragged_q = true, f.window = 200, f.sink_tokens = 4; }),
       with(128, 4, 2, 0, [](F& f) { f.page_size = 4, f.window = 250, f.sink_tokens = 3; }),
       with(128, 2, 2, 0, [](F& f) { f.window = 5000, f.sink_tokens = 1, f.kv_format = KvFormat::fp8_e4m3; })},
      {with(64, 2, 2, 1, [](F& f) { f.q_len = 3, f.window = 100, f.sink_tokens = 70; }),
       with(128, 1, 2, 16, [](F& f) { f.window = 700, f.sink_tokens = 3; }),
       with(64, 8, 4, 16, [](F& f) { f.page_size = 64, f.window = 1000, f.sink_tokens = 130; }),
       with(128, 4, 8, 256,
            [](F& f) { f.page_size = 48, f.q_len = 2, f.window = 64, f.sink_logits = true, f.soft_cap = 30; })}};
  const PositionTheme scores{
      {with(128, 1, 3, 0, [](F& f) { f.alibi = true; }),
       with(128, 1, 2, 0,
            [](F& f) {
              f.soft_cap = 30;
              f.score = kDistance;
            }),
       with(64, 4, 4, 0, [](F& f) { f.page_size = 16, f.q_len = 4, f.ragged_q = true, f.alibi = true; })},
      {with(64, 2, 2, 16, [](F& f) { f.q_len = 2, f.alibi = true; }),
       with(128, 1, 2, 1, [](F& f) { f.score = "kv_index % 3 == 0 ? score - 1.0f : score"; }),
       with(128, 8, 2, 64, [](F& f) {
         f.q_len = 2, f.window = 900, f.sink_tokens = 9, f.alibi = true;
         f.score = "kv_index % 3 == 0 ? score - 1.0f : score";
       })}};
  const PositionTheme new_tokens{
      {with(128, 4, 2, 0, [](F& f) { f.page_size = 16, f.append = true, f.rope = Rope::half_split; }),
       with(128, 1, 3, 0, [](F& f) { f.append = true; }),
       with(128, 4, 3, 0,
            [](F& f) {
              f.page_size = 64, f.q_len = 4, f.window = 150, f.sink_tokens = 3, f.kv_format = KvFormat::int8;
              f.append = true, f.rope = Rope::half_split;
            }),
       with(
           320, 8, 2, 0,
           [](F& f) { f.page_size = 16, f.v_head_dim = 256, f.latent = f.append = true, f.rope = Rope::interleaved; })},
      {with(64, 1, 2, 1, [](F& f) { f.q_len = 2, f.append = true; }),
       with(64, 1, 2, 64, [](F& f) { f.append = true, f.rope = Rope::interleaved; }),
       with(64, 4, 2, 16, [](F& f) { f.page_size = 1, f.q_len = 2, f.append = true; }),
       with(64, 4, 4, 2,
            [](F& f) { f.q_len = 4, f.ragged_q = f.append = true, f.rope = Rope::half_split, f.rope_dim = 32; }),
       with(128, 8, 8, 16, [](F& f) { f.q_len = 3, f.mask = QueryMask::full, f.append = true; })}};
  return {windows, scores, new_tokens};
}

KernelSpec spec_of(Arch arch, const RankHeads& heads, LoadPath load, FixUp fixup) {
  KernelSpec spec{.arch = arch, .head_dim = heads.head_dim, .group = heads.group, .dtype = heads.dtype};
  spec.lse = heads.lse, spec.features = heads.features;
  spec.load = load, spec.fixup = fixup;
  return spec;
}

/// Those that a load path has.
std::vector<RankHeads> those_of(std::vector<RankHeads> some, Arch arch, LoadPath load, FixUp fixup) {
  std::erase_if(some,
                [&](const RankHeads& heads) { return kernel_variants(spec_of(arch, heads, load, fixup), 0).empty(); });
  return some;
}

}  // namespace

std::vector<VerifyKernel> rank_kernels(Arch arch) {
  std::vector<VerifyKernel> kernels;
  std::size_t turn = 0, family = 0;
  const std::vector<PositionTheme> themes = position_themes();
  for (const LoadPath load : load_paths_of(arch)) {
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      std::vector<RankHeads> all = rank_heads();
      // Of each theme, the next ones in turn that the load path has, over both ways of dealing.
      for (const PositionTheme& theme : themes) {
        for (const std::vector<RankHeads>& dealt : {theme.contiguous, theme.in_turn}) {
          const std::vector<RankHeads> some = those_of(dealt, arch, load, fixup);
          if (!some.empty()) all.push_back(some[family % some.size()]);
        }
      }
      ++family;
      for (const RankHeads& heads : all) {
        const KernelSpec base = spec_of(arch, heads, load, fixup);
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

std::vector<VerifyKernel> rank_part_kernels(Arch arch) {
  std::vector<VerifyKernel> kernels;
  std::vector<PositionTheme> themes = position_themes();
  themes.push_back({{heads_with(128, 4, 2, 0, [](Features& f) { f.q_len = 4; })},
                    {heads_with(64, 1, 4, 16, [](Features& f) { f.q_len = 2, f.page_size = 16; })}});
  std::size_t turn = 0;
  for (const LoadPath load : load_paths_of(arch)) {
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      for (const PositionTheme& theme : themes) {
        const std::vector<RankHeads> some =
            those_of(turn % 2 == 0 ? theme.contiguous : theme.in_turn, arch, load, fixup);
        if (some.empty()) continue;
        RankHeads heads = some[turn / 2 % some.size()];
        Features& f = heads.features;
        f.context_ranks = f.context_parallel, f.context_parallel = 1;
        f.replicate_output = f.sink_logits = false;  // the merge counts sink logits
        const KernelSpec base = spec_of(arch, heads, load, fixup);
        VerifyKernel kernel{.group = "groups: parts over NCCL",
                            .specs = kernel_variants(base, turn++),
                            .required = load == LoadPath::cp_async};
        if (const KernelSpec modest = modest_variant(base); validate(modest)) {
          std::erase(kernel.specs, modest);
          kernel.specs.push_back(modest);
        }
        if (!kernel.specs.empty()) kernels.push_back(std::move(kernel));
      }
      ++turn;
    }
  }
  return kernels;
}

Features group_of(const Features& features) {
  Features group = features;
  if (in_group(features)) return group;
  group.context_parallel = features.context_ranks, group.context_ranks = 0;
  group.replicate_output = true;
  return group;
}

std::vector<std::vector<int>> rank_lengths(const KernelSpec&) {
  return {{2000, 1234, 0, 77, 1, 2311}, {0, 3, 0, 0, kRankCapacity, 640}};
}

KernelSpec whole_spec(KernelSpec spec) {
  spec.features.context_parallel = 1, spec.features.context_interleave = 0;
  spec.features.context_ranks = 0, spec.features.replicate_output = false, spec.features.page_size = 0;
  spec.layout = KvLayout::contiguous;
  return spec;
}

int rank_kv_heads(const KernelSpec& spec) {
  if (spec.features.latent) return 1;
  return std::max(spec.features.context_parallel, 2);
}

}  // namespace v1
}  // namespace leanattn
