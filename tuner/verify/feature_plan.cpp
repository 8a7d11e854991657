// feature_plan.cpp -- the table of features and their settings.
#include "tuner/verify/feature_plan.hpp"

#include <algorithm>
#include <cmath>

#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Setting = VerifyFeature::Setting;

/// A setting with one change, so that a table of settings is short.
template <class Change>
Setting with(Change change, int head_dim = 0) {
  Setting setting{.features = {}, .head_dim = head_dim};
  change(setting.features);
  return setting;
}

std::vector<Setting> one_byte_settings() {
  std::vector<Setting> settings;
  for (const KvFormat format : {KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8}) {
    for (const KvScale scale : {KvScale::tensor, KvScale::head, KvScale::token}) {
      settings.push_back(with([&](Features& f) {
        f.kv_format = format, f.kv_scale = scale;
        // Every second setting has pages, and every third one several query tokens.
        if (settings.size() % 2 == 1) f.page_size = 16;
        if (settings.size() % 3 == 2) f.q_len = 3;
      }));
    }
  }
  return settings;
}

Setting with_cache(KvFormat format, KvScale scale, int head_dim, void (*change)(Features&)) {
  return with(
      [&](Features& f) {
        f.kv_format = format, f.kv_scale = scale;
        change(f);
      },
      head_dim);
}

/// Scales of tokens that travel with the rows: those of four-bit elements, and those that lie among rows of bytes.
std::vector<Setting> staged_scale_settings() {
  using F = Features;
  constexpr auto cache = with_cache;
  constexpr KvFormat kInt4 = KvFormat::int4;
  constexpr KvScale kToken = KvScale::token, kInRow = KvScale::in_row;
  return {
      cache(kInt4, kToken, 128, [](F&) {}),
      cache(kInt4, kInRow, 128, [](F& f) { f.page_size = 16; }),
      cache(kInt4, kInRow, 64, [](F& f) { f.page_size = 16, f.q_len = 3, f.ragged_q = true; }),
      cache(kInt4, kInRow, 256, [](F& f) { f.page_size = 16, f.window = 100, f.sink_tokens = 5, f.q_len = 4; }),
      cache(kInt4, kInRow, 128, [](F& f) { f.page_size = 32, f.sink_logits = true; }),
      cache(kInt4, kToken, 64, [](F& f) { f.page_size = 1, f.q_len = 5, f.mask = QueryMask::tree; }),
      cache(kInt4, kInRow, 192, [](F& f) { f.v_head_dim = 128, f.window = 64; }),
      cache(kInt4, kInRow, 128, [](F& f) { f.page_size = 48, f.soft_cap = 30, f.alibi = true, f.q_len = 2; }),
      cache(kInt4, kToken, 128, [](F& f) { f.rope = Rope::interleaved, f.rope_dim = 64, f.page_size = 64; }),
      cache(kInt4, kInRow, 128, [](F& f) { f.batch_invariant = true, f.page_size = 16; }),
      cache(kInt4, kInRow, 128, [](F& f) { f.page_size = 16, f.selection_block = 16; }),
      cache(kInt4, kToken, 64, [](F& f) { f.page_size = 64, f.selection_block = 1, f.selection_in_pool = true; }),
      cache(kInt4, kInRow, 512, [](F& f) { f.q_len = 16, f.mask = QueryMask::full, f.page_size = 8; }),
      cache(KvFormat::fp8_e4m3, kInRow, 128, [](F& f) { f.page_size = 16; }),
      cache(KvFormat::fp8_e4m3, kInRow, 256, [](F& f) { f.page_size = 16, f.q_len = 3, f.window = 60; }),
      cache(KvFormat::fp8_e5m2, kInRow, 48, [](F& f) { f.q_len = 2, f.ragged_q = true; }),
      cache(KvFormat::int8, kInRow, 80, [](F& f) { f.page_size = 1, f.sink_logits = true; }),
      cache(KvFormat::int8, kInRow, 64, [](F& f) { f.page_size = 16, f.selection_block = 32, f.q_len = 2; }),
      cache(KvFormat::int8, kInRow, 576, [](F& f) { f.latent = true, f.v_head_dim = 512, f.page_size = 16; }),
      cache(kInt4, kInRow, 128, [](F& f) { f.append = true, f.page_size = 16; }),
      cache(kInt4, kToken, 64, [](F& f) { f.append = true, f.page_size = 1, f.q_len = 4, f.ragged_q = true; }),
      cache(kInt4, kInRow, 512, [](F& f) { f.append = true, f.v_head_dim = 64, f.q_len = 3, f.window = 60; }),
      cache(KvFormat::fp8_e4m3, kInRow, 128, [](F& f) { f.append = true, f.page_size = 16, f.q_len = 2; }),
      cache(KvFormat::fp8_e5m2, kInRow, 48, [](F& f) { f.append = true, f.rope = Rope::half_split; }),
      cache(KvFormat::int8, kInRow, 80, [](F& f) { f.append = true, f.page_size = 32, f.sink_logits = true; }),
      cache(KvFormat::int8, kInRow, 576,
            [](F& f) { f.append = f.latent = true, f.v_head_dim = 512, f.page_size = 64, f.q_len = 2; }),
  };
}

/// Floats of four bits, whose blocks have scales.
std::vector<Setting> block_scale_settings() {
  using F = Features;
  const auto cache = [](KvScale scale, int head_dim, void (*change)(F&)) {
    return with_cache(KvFormat::nvfp4, scale, head_dim, change);
  };
  constexpr KvScale kTensor = KvScale::tensor, kHead = KvScale::head;
  return {
      cache(kTensor, 128, [](F&) {}),
      cache(kTensor, 128, [](F& f) { f.page_size = 16; }),
      cache(kHead, 64, [](F& f) { f.page_size = 16, f.q_len = 3, f.ragged_q = true; }),
      cache(kTensor, 256, [](F& f) { f.page_size = 16, f.window = 100, f.sink_tokens = 5, f.q_len = 4; }),
      cache(kTensor, 64, [](F& f) { f.page_size = 32, f.sink_logits = true; }),
      cache(kHead, 128, [](F& f) { f.page_size = 1, f.q_len = 5, f.mask = QueryMask::tree; }),
      cache(kTensor, 192, [](F& f) { f.window = 64, f.q_len = 2; }),
      cache(kTensor, 128, [](F& f) { f.page_size = 48, f.soft_cap = 30, f.alibi = true, f.q_len = 2; }),
      cache(kHead, 256, [](F& f) { f.rope = Rope::interleaved, f.rope_dim = 64, f.page_size = 64; }),
      cache(kTensor, 128, [](F& f) { f.batch_invariant = true, f.page_size = 16; }),
      cache(kTensor, 64, [](F& f) { f.page_size = 16, f.selection_block = 16; }),
      cache(kTensor, 128, [](F& f) { f.page_size = 64, f.selection_block = 1, f.selection_in_pool = true; }),
      cache(kTensor, 512, [](F& f) { f.q_len = 16, f.mask = QueryMask::full, f.page_size = 8; }),
      cache(kTensor, 128, [](F& f) { f.q_len = 6, f.ragged_q = f.spans = true, f.page_size = 16; }),
      cache(kTensor, 128, [](F& f) { f.append = true, f.page_size = 16; }),
      cache(kHead, 64, [](F& f) { f.append = true, f.page_size = 1, f.q_len = 4, f.ragged_q = true; }),
      cache(kTensor, 256, [](F& f) { f.append = true, f.rope = Rope::half_split, f.window = 60, f.q_len = 3; }),
      cache(kHead, 320, [](F& f) { f.append = true, f.page_size = 32, f.sink_logits = true; }),
  };
}

std::vector<Setting> head_size_settings() {
  std::vector<Setting> settings;
  for (int head_dim = 16; head_dim <= 512; head_dim += 16) settings.push_back({.features = {}, .head_dim = head_dim});
  return settings;
}

std::vector<Setting> v_head_size_settings() {
  std::vector<Setting> settings;
  const std::pair<int, int> kSizes[] = {{192, 128}, {64, 80}, {128, 16}, {16, 128}, {256, 512}, {512, 64}, {96, 48}};
  for (const auto& [head_dim, v_head_dim] : kSizes)
    settings.push_back(with([v = v_head_dim](Features& f) { f.v_head_dim = v; }, head_dim));
  return settings;
}

std::vector<Setting> latent_settings() {
  const auto latent = [](int head_dim, int v_head_dim, auto change) {
    return with(
        [&](Features& f) {
          f.latent = true, f.v_head_dim = v_head_dim;
          change(f);
        },
        head_dim);
  };
  return {
      latent(576, 512, [](Features&) {}),
      latent(576, 512, [](Features& f) { f.page_size = 64; }),
      latent(576, 512, [](Features& f) { f.page_size = 16, f.q_len = 4; }),
      latent(576, 512, [](Features& f) { f.q_len = 16, f.mask = QueryMask::full; }),
      latent(576, 512, [](Features& f) { f.q_len = 9, f.ragged_q = true, f.page_size = 1; }),
      latent(576, 512, [](Features& f) { f.append = true, f.rope = Rope::interleaved, f.page_size = 64, f.q_len = 2; }),
      latent(576, 512, [](Features& f) { f.kv_format = KvFormat::fp8_e4m3; }),
      latent(576, 512,
             [](Features& f) { f.kv_format = KvFormat::int8, f.kv_scale = KvScale::token, f.page_size = 16; }),
      latent(576, 512,
             [](Features& f) { f.kv_format = KvFormat::fp8_e4m3, f.page_size = 64, f.q_len = 4, f.ragged_q = true; }),
      latent(576, 512,
             [](Features& f) { f.kv_format = KvFormat::fp8_e5m2, f.page_size = 1, f.q_len = 3, f.soft_cap = 30; }),
      latent(576, 512,
             [](Features& f) {
               f.kv_format = KvFormat::fp8_e4m3, f.kv_scale = KvScale::head, f.window = 100, f.sink_tokens = 5,
               f.q_len = 8;
             }),
      latent(576, 512,
             [](Features& f) {
               f.kv_format = KvFormat::int8, f.append = true, f.rope = Rope::interleaved, f.page_size = 16, f.q_len = 2;
             }),
      latent(576, 512,
             [](Features& f) {
               f.kv_format = KvFormat::fp8_e4m3, f.append = true, f.page_size = 48, f.q_len = 16, f.ragged_q = true;
             }),
      latent(576, 512, [](Features& f) { f.kv_format = KvFormat::fp8_e4m3, f.batch_invariant = true, f.q_len = 12; }),
      latent(576, 512, [](Features& f) { f.window = 100, f.sink_tokens = 5, f.sink_logits = true, f.q_len = 8; }),
      latent(576, 512, [](Features& f) { f.batch_invariant = true, f.q_len = 12; }),
      latent(512, 512, [](Features& f) { f.page_size = 64, f.q_len = 2; }),
      latent(512, 512, [](Features& f) { f.kv_format = KvFormat::fp8_e4m3, f.page_size = 64, f.q_len = 16; }),
      latent(512, 512, [](Features& f) { f.append = true, f.q_len = 5, f.ragged_q = true, f.page_size = 16; }),
      latent(320, 256, [](Features& f) { f.q_len = 16; }),
      latent(320, 256, [](Features& f) { f.rope = Rope::half_split, f.rope_dim = 32, f.append = true; }),
      latent(320, 256, [](Features& f) { f.kv_format = KvFormat::int8, f.q_len = 16, f.mask = QueryMask::full; }),
      latent(128, 128, [](Features& f) { f.q_len = 7; }),
      latent(128, 128, [](Features& f) { f.kv_format = KvFormat::fp8_e5m2, f.q_len = 7; }),
      latent(208, 144, [](Features&) {}),
  };
}

std::vector<Setting> row_format_settings() {
  std::vector<Setting> settings;
  for (const KvEncoding& encoding : kv_encodings()) {
    if (encoding.row == nullptr) continue;
    const RowFormat& row = *encoding.row;
    const auto add = [&](auto change) {
      settings.push_back(with(
          [&](Features& f) {
            f.latent = true, f.v_head_dim = row.value_columns, f.kv_format = encoding.format;
            change(f);
            // A plane lies behind an even number of rows, and columns turn behind those of V.
            if (row.plane_bytes > 0) f.page_size = f.page_size == 0 ? 32 : std::max(2, f.page_size);
            if (row.value_columns == key_columns(row)) f.rope = Rope::none, f.rope_dim = 0;
          },
          key_columns(row)));
    };
    add([](Features&) {});
    add([](Features& f) { f.page_size = 64; });
    add([](Features& f) { f.page_size = 1, f.q_len = 4; });
    add([](Features& f) { f.page_size = 256, f.q_len = 2, f.sink_logits = true; });
    add([](Features& f) { f.page_size = 48, f.q_len = 3, f.ragged_q = true; });
    add([](Features& f) { f.q_len = 16, f.mask = QueryMask::full; });
    add([](Features& f) { f.page_size = 8, f.q_len = 9, f.mask = QueryMask::tree; });
    add([](Features& f) { f.page_size = 16, f.window = 100, f.sink_tokens = 5, f.q_len = 8; });
    add([](Features& f) { f.window = 64, f.sink_tokens = 70; });
    add([](Features& f) { f.batch_invariant = true, f.page_size = 64, f.q_len = 2; });
    add([](Features& f) { f.rope = Rope::interleaved, f.soft_cap = 30, f.alibi = true; });
    add([](Features& f) { f.append = true; });
    add([](Features& f) { f.append = true, f.rope = Rope::interleaved, f.page_size = 64; });
    add([](Features& f) { f.append = true, f.rope = Rope::half_split, f.page_size = 1, f.q_len = 4; });
    add([](Features& f) { f.append = true, f.page_size = 48, f.q_len = 7, f.ragged_q = true, f.window = 60; });
    add([](Features& f) {
      f.append = true, f.q_len = 2, f.batch_invariant = true, f.rope = Rope::half_split, f.rope_dim = 32;
    });
    // Selected tokens, for which engines keep such rows.
    add([](Features& f) { f.page_size = 64, f.selection_block = 1; });
    add([](Features& f) { f.page_size = 64, f.selection_block = 1, f.selection_in_pool = true; });
    add([](Features& f) { f.page_size = 1, f.selection_block = 1, f.selection_in_pool = true, f.q_len = 2; });
    add([](Features& f) { f.page_size = 64, f.selection_block = 64, f.q_len = 3, f.sink_logits = true; });
    add([](Features& f) { f.page_size = 24, f.selection_block = 32; });
    add([](Features& f) { f.page_size = 64, f.selection_block = 1, f.batch_invariant = true, f.q_len = 4; });
    add([](Features& f) { f.page_size = 64, f.selection_block = 1, f.second_cache = true; });
    add([](Features& f) {
      f.page_size = 16, f.selection_block = 1, f.selection_in_pool = f.second_cache = true, f.q_len = 3;
    });
    add([](Features& f) { f.page_size = 64, f.selection_block = 64, f.second_cache = f.sink_logits = true; });
  }
  return settings;
}

std::vector<Setting> selection_settings() {
  const auto latent = [](auto change) {
    return with(
        [&](Features& f) {
          f.latent = true, f.v_head_dim = 512, f.selection_block = 1, f.page_size = 64;
          change(f);
        },
        576);
  };
  return {
      with([](Features& f) { f.page_size = 16, f.selection_block = 64; }),
      with([](Features& f) { f.page_size = 64, f.selection_block = 64, f.selection_in_pool = true; }),
      with([](Features& f) { f.page_size = 64, f.selection_block = 16, f.q_len = 3; }),
      with([](Features& f) { f.page_size = 1, f.selection_block = 1, f.q_len = 2, f.sink_logits = true; }),
      with([](Features& f) { f.page_size = 24, f.selection_block = 32, f.soft_cap = 30; }),
      with([](Features& f) {
        f.page_size = 256, f.selection_block = 128, f.selection_in_pool = true, f.q_len = 2, f.mask = QueryMask::full;
      }),
      with([](Features& f) {
        f.page_size = 16, f.selection_block = 16, f.kv_format = KvFormat::int8, f.kv_scale = KvScale::token;
      }),
      with([](Features& f) {
        f.page_size = 64, f.selection_block = 64, f.kv_format = KvFormat::fp8_e4m3, f.kv_scale = KvScale::head;
      }),
      with([](Features& f) { f.page_size = 32, f.selection_block = 16, f.batch_invariant = true, f.q_len = 2; }),
      with([](Features& f) { f.page_size = 4, f.selection_block = 16; }),
      latent([](Features&) {}),
      latent([](Features& f) { f.selection_in_pool = true; }),
      latent([](Features& f) { f.selection_in_pool = true, f.q_len = 2, f.page_size = 1; }),
      latent([](Features& f) { f.selection_block = 64, f.q_len = 3; }),
      latent([](Features& f) { f.selection_block = 16, f.page_size = 16, f.batch_invariant = true; }),
      latent([](Features& f) { f.kv_format = KvFormat::fp8_e4m3, f.selection_block = 1; }),
      with([](Features& f) { f.latent = f.selection_in_pool = true, f.selection_block = 1, f.page_size = 64; }, 512),
  };
}

std::vector<Setting> second_cache_settings() {
  std::vector<Setting> settings{
      with([](Features& f) { f.page_size = 64, f.selection_block = 64; }),
      with([](Features& f) { f.page_size = 16, f.selection_block = 64, f.q_len = 3; }),
      with([](Features& f) { f.page_size = 64, f.selection_block = 16, f.selection_in_pool = true, f.soft_cap = 30; }),
      with([](Features& f) { f.page_size = 24, f.selection_block = 32, f.q_len = 2, f.sink_logits = true; }),
      with([](Features& f) { f.page_size = 1, f.selection_block = 1, f.q_len = 2, f.mask = QueryMask::full; }),
      with([](Features& f) { f.page_size = 64, f.selection_block = 1, f.latent = true, f.v_head_dim = 512; }, 576),
      with(
          [](Features& f) {
            f.page_size = 64, f.selection_block = 1, f.selection_in_pool = true, f.latent = true, f.v_head_dim = 512,
            f.q_len = 2, f.sink_logits = true;
          },
          576),
  };
  for (Setting& setting : settings) setting.features.second_cache = true;
  return settings;
}

std::vector<Setting> score_settings() {
  std::vector<Setting> settings;
  for (const VerifyScore& score : verify_scores()) {
    settings.push_back(with([&](Features& f) {
      f.score = score.text;
      if (settings.size() % 2 == 1) f.q_len = 2;
    }));
  }
  return settings;
}

struct Heads {
  int head_dim, group;
  DType dtype;
  KvLayout layout;
};
constexpr Heads kFeatureHeads[] = {
    {128, 4, DType::bf16, KvLayout::contiguous}, {64, 7, DType::fp16, KvLayout::strided},
    {128, 8, DType::fp16, KvLayout::contiguous}, {256, 2, DType::bf16, KvLayout::strided},
    {64, 1, DType::bf16, KvLayout::contiguous},  {96, 3, DType::fp16, KvLayout::strided},
    {80, 16, DType::bf16, KvLayout::contiguous},
};

/// Kernels for rows of a format of their own, which one load path of one architecture has: up to 16 query rows in a
/// block on one warpgroup, and up to 64 with roles for three of them.
void add_row_format_kernels(std::vector<VerifyKernel>& kernels, Arch arch, const std::string& name,
                            const Setting& setting, std::size_t& rotation) {
  if (arch != Arch{9, 0, true}) return;
  constexpr int kGroups[2][4] = {{16, 5, 1, 8}, {128, 64, 17, 40}};
  constexpr int kWarps[] = {4, 8};
  for (const int with_roles : {0, 1}) {
    const std::size_t turn = rotation / 2;
    KernelSpec spec{.arch = arch,
                    .head_dim = setting.head_dim,
                    .group = kGroups[with_roles][turn % 4],
                    .layout = turn % 3 == 2 ? KvLayout::strided : KvLayout::contiguous,
                    .lse = true,
                    .features = setting.features,
                    .load = LoadPath::tensor,
                    .fixup = turn % 2 == 0 || setting.features.batch_invariant ? FixUp::ticket : FixUp::wait};
    spec = with_tunables(spec, {.warps = kWarps[with_roles],
                                .warp_tokens = 16,
                                .steps_per_tile = turn % 3 == 0 ? 1 : 2,
                                .stages = turn % 5 == 4 && with_roles == 0 ? 1 : 2,
                                .ctas_per_sm = 1,
                                .pdl = turn % 2 == 1});
    std::vector<KernelSpec> specs{spec};
    specs.push_back(with_tunables(
        spec, {.warps = 4, .warp_tokens = 16, .steps_per_tile = 2, .stages = 2, .ctas_per_sm = 1, .pdl = false}));
    std::erase_if(specs, [](const KernelSpec& each) { return !validate(each); });
    if (!specs.empty()) kernels.push_back({.group = name, .specs = std::move(specs), .required = false});
  }
  rotation += 2;
}

/// Kernels that append to the stage: one warpgroup, two that take steps in turn, two that share rows or columns, and
/// with roles; for each way in which a producer brings KV, with one new token and with several.
void add_appending_kernels(std::vector<VerifyKernel>& kernels, Arch arch) {
  struct Warpgroups {
    int head_dim, v_head_dim, group, warps, warp_tokens, stages;
  };
  constexpr Warpgroups kKinds[] = {{128, 0, 4, 4, 16, 3},    {128, 0, 8, 8, 16, 4},     {64, 0, 128, 8, 16, 2},
                                   {256, 0, 40, 4, 16, 2},   {576, 512, 16, 4, 16, 2},  {576, 512, 16, 8, 16, 2},
                                   {576, 512, 64, 8, 16, 2}, {576, 512, 128, 8, 16, 2}, {576, 512, 24, 8, 16, 2}};
  constexpr int kPages[] = {0, 1, 16, 64};
  int turn = 0;
  for (const Warpgroups& kind : kKinds) {
    for (const int page_size : kPages) {
      for (const int q_len : {1, 3}) {
        const int number = turn++;
        KernelSpec spec{.arch = arch,
                        .head_dim = kind.head_dim,
                        .group = kind.group,
                        .dtype = number % 3 == 1 ? DType::fp16 : DType::bf16,
                        .layout = number % 4 < 2 ? KvLayout::contiguous : KvLayout::strided,
                        .lse = true,
                        .load = LoadPath::tensor,
                        .fixup = number % 4 == 1 || number % 4 == 2 ? FixUp::wait : FixUp::ticket};
        Features& f = spec.features;
        f.append = true, f.page_size = page_size, f.q_len = q_len, f.ragged_q = q_len > 1 && page_size == 16;
        f.latent = kind.v_head_dim > 0, f.v_head_dim = kind.v_head_dim;
        f.rope = number % 5 == 0 ? Rope::half_split : number % 5 == 3 ? Rope::interleaved : Rope::none;
        if (number % 7 == 6) f.window = 90, f.sink_tokens = 3;
        kernels.push_back({.group = "feature: append",
                           .specs = {with_tunables(spec, {.warps = kind.warps,
                                                          .warp_tokens = kind.warp_tokens,
                                                          .steps_per_tile = number % 2 + 1,
                                                          .stages = kind.stages,
                                                          .ctas_per_sm = 1,
                                                          .pdl = number % 3 == 2})},
                           .required = false});
      }
    }
  }
}

/// Kernels of load path tensor that the rotation of heads and tunables does not reach: latent groups whose query rows
/// fill no block, or several, with roles for the warpgroups and each fix-up, also with several query tokens in pages,
/// two CTAs on an SM that gather rows, and new rows for every kind of warpgroups.
void add_tensor_kernels(std::vector<VerifyKernel>& kernels, Arch arch) {
  if (arch != Arch{9, 0, true}) return;
  KernelSpec latent{.arch = arch, .head_dim = 576, .lse = true, .load = LoadPath::tensor};
  latent.features.latent = true, latent.features.v_head_dim = 512;
  const auto add_with_roles = [&] {
    kernels.push_back({.group = "feature: latent cache",
                       .specs = {with_tunables(latent, {.warps = 8,
                                                        .warp_tokens = 16,
                                                        .steps_per_tile = 1,
                                                        .stages = 2,
                                                        .ctas_per_sm = 1,
                                                        .pdl = latent.group == 64})},
                       .required = false});
  };
  for (const KvFormat format : {KvFormat::same, KvFormat::fp8_e4m3}) {
    for (const int group : {17, 33, 64, 95, 128}) {
      for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
        latent.group = group, latent.fixup = fixup;
        latent.features.page_size = (fixup == FixUp::wait) == (format == KvFormat::same) ? 0 : 64;
        latent.features.kv_format = format;
        add_with_roles();
      }
    }
  }
  latent.features.kv_format = KvFormat::same;
  for (const auto& [group, q_len] : {std::pair{128, 2}, std::pair{64, 4}, std::pair{24, 3}}) {
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      for (const int page_size : {0, 16}) {
        latent.group = group, latent.fixup = fixup;
        latent.features.q_len = q_len, latent.features.page_size = page_size;
        add_with_roles();
      }
    }
  }
  KernelSpec gathering{.arch = arch, .group = 4, .lse = true, .load = LoadPath::tensor};
  for (const int page_size : {1, 4, 100}) {
    gathering.features.page_size = page_size;
    gathering.fixup = page_size == 4 ? FixUp::wait : FixUp::ticket;
    kernels.push_back(
        {.group = "feature: paged cache",
         .specs = {with_tunables(
             gathering,
             {.warps = 4, .warp_tokens = 16, .steps_per_tile = 1, .stages = 2, .ctas_per_sm = 2, .pdl = true})},
         .required = false});
  }
  add_appending_kernels(kernels, arch);
}

}  // namespace

const std::vector<VerifyScore>& verify_scores() {
  // All are continuous in the score, so that its rounding cannot change a branch's result by much.
  static const std::vector<VerifyScore> scores{
      {"score * 0.5f", [](double score, int, int, int) { return score * 0.5; }},
      {"fminf(score, 2.0f)", [](double score, int, int, int) { return std::min(score, 2.0); }},
      {"kv_index % 3 == 0 ? score - 1.0f : score",
       [](double score, int, int kv_index, int) { return kv_index % 3 == 0 ? score - 1 : score; }},
      {"head % 2 == 0 ? score : -score",
       [](double score, int, int, int head) { return head % 2 == 0 ? score : -score; }},
      {"score - 0.03125f * (float)(q_index - kv_index) * (float)(1 + head % 4)",
       [](double score, int q_index, int kv_index, int head) {
         return score - 0.03125 * (q_index - kv_index) * (1 + head % 4);
       }},
      {"score > 0.0f ? log1pf(score) : score",
       [](double score, int, int, int) { return score > 0 ? std::log1p(score) : score; }},
      {"score + 0.5f * sinf(0.125f * (float)(q_index - kv_index))",
       [](double score, int q_index, int kv_index, int) {
         return score + 0.5 * std::sin(0.125 * (q_index - kv_index));
       }},
  };
  return scores;
}

ScoreFunction score_function(const std::string& text) {
  for (const VerifyScore& score : verify_scores()) {
    if (score.text == text) return score.function;
  }
  return {};
}

const std::vector<VerifyFeature>& verify_features() {
  using F = Features;
  static const std::vector<VerifyFeature> features{
      {"paged cache",
       {with([](F& f) { f.page_size = 1; }), with([](F& f) { f.page_size = 4; }), with([](F& f) { f.page_size = 16; }),
        with([](F& f) { f.page_size = 64; }), with([](F& f) { f.page_size = 100; }),
        with([](F& f) { f.page_size = 256; })}},
      {"several query tokens",
       {with([](F& f) { f.q_len = 2; }), with([](F& f) { f.q_len = 5; }), with([](F& f) { f.q_len = 16; }),
        with([](F& f) { f.q_len = 4, f.page_size = 16; })}},
      {"ragged query tokens",
       {with([](F& f) { f.q_len = 4, f.ragged_q = true; }), with([](F& f) { f.ragged_q = true; }),
        with([](F& f) { f.q_len = 7, f.ragged_q = true, f.page_size = 32; })}},
      {"spans",
       {with([](F& f) { f.q_len = 6, f.ragged_q = f.spans = true; }),
        with([](F& f) { f.q_len = 16, f.ragged_q = f.spans = true, f.page_size = 16, f.window = 40; }),
        with([](F& f) { f.q_len = 9, f.ragged_q = f.spans = f.append = true, f.window = 30, f.sink_tokens = 3; }),
        with([](F& f) { f.q_len = 5, f.ragged_q = f.spans = f.batch_invariant = true, f.alibi = true; })}},
      {"packed K and V",
       {with([](F& f) { f.packed_kv = true; }), with([](F& f) { f.packed_kv = f.ragged_q = true, f.q_len = 5; }),
        with(
            [](F& f) { f.packed_kv = true, f.q_len = 20, f.mask = QueryMask::full, f.kv_format = KvFormat::fp8_e4m3; }),
        with([](F& f) {
          f.packed_kv = true, f.q_len = 4, f.window = 60, f.sink_tokens = 3, f.kv_format = KvFormat::int8;
        })}},
      {"tree mask", {with([](F& f) { f.q_len = 4, f.mask = QueryMask::tree; }), with([](F& f) {
                       f.q_len = 16, f.mask = QueryMask::tree, f.ragged_q = true;
                     })}},
      {"full mask", {with([](F& f) { f.q_len = 3, f.mask = QueryMask::full; }), with([](F& f) {
                       f.q_len = 8, f.mask = QueryMask::full, f.page_size = 16;
                     })}},
      {"many query rows",
       {with([](F& f) { f.q_len = 12, f.mask = QueryMask::full; }),
        with([](F& f) { f.q_len = 40, f.mask = QueryMask::full; }),
        with([](F& f) { f.q_len = 16, f.alibi = true, f.soft_cap = 20; }),
        with([](F& f) { f.q_len = 100, f.mask = QueryMask::full, f.page_size = 16; }),
        with([](F& f) { f.q_len = 16, f.mask = QueryMask::tree, f.ragged_q = true, f.page_size = 8; })}},
      {"window",
       {with([](F& f) { f.window = 1; }), with([](F& f) { f.window = 100; }),
        with([](F& f) { f.window = 129, f.q_len = 4; }), with([](F& f) { f.window = 200, f.page_size = 16; }),
        with([](F& f) { f.window = 50, f.page_size = 64, f.q_len = 6, f.ragged_q = true; }),
        with([](F& f) { f.window = 90, f.page_size = 16, f.q_len = 20, f.mask = QueryMask::full; }), with([](F& f) {
          f.window = 2, f.sink_tokens = 70, f.q_len = 9, f.ragged_q = true, f.mask = QueryMask::full;
        })}},
      {"window and sink tokens",
       {with([](F& f) { f.window = 100, f.sink_tokens = 4; }),
        with([](F& f) { f.window = 64, f.sink_tokens = 70, f.page_size = 16; }),
        with([](F& f) { f.window = 300, f.sink_tokens = 5, f.page_size = 2; }),
        with([](F& f) { f.window = 33, f.sink_tokens = 1, f.q_len = 3; })}},
      {"sink logits",
       {with([](F& f) { f.sink_logits = true; }), with([](F& f) { f.sink_logits = true, f.q_len = 4; }),
        with([](F& f) { f.sink_logits = true, f.page_size = 16, f.q_len = 6, f.ragged_q = true; })}},
      {"soft cap",
       {with([](F& f) { f.soft_cap = 1; }), with([](F& f) { f.soft_cap = 30; }), with([](F& f) { f.soft_cap = 50; })}},
      {"ALiBi", {with([](F& f) { f.alibi = true; }), with([](F& f) { f.alibi = true, f.q_len = 3; })}},
      {"score expression", score_settings()},
      {"one-byte KV cache", one_byte_settings()},
      {"four-bit KV cache, and scales among rows", staged_scale_settings()},
      {"four-bit floats with scales of blocks", block_scale_settings()},
      {"append",
       {with([](F& f) { f.append = true; }), with([](F& f) { f.append = true, f.page_size = 16, f.q_len = 3; }),
        with([](F& f) { f.append = true, f.page_size = 1, f.q_len = 4, f.ragged_q = true, f.window = 60; }),
        with([](F& f) { f.append = true, f.kv_format = KvFormat::fp8_e4m3; }), with([](F& f) {
          f.append = true, f.kv_format = KvFormat::int8, f.kv_scale = KvScale::head, f.page_size = 32, f.q_len = 2;
        }),
        with([](F& f) { f.append = true, f.kv_format = KvFormat::fp8_e5m2, f.kv_scale = KvScale::head; })}},
      {"rotary embedding",
       {with([](F& f) { f.rope = Rope::half_split; }), with([](F& f) { f.rope = Rope::interleaved, f.q_len = 5; }),
        with([](F& f) { f.rope = Rope::half_split, f.rope_dim = 32, f.append = true, f.page_size = 16; }),
        with([](F& f) { f.rope = Rope::interleaved, f.append = true, f.q_len = 16, f.ragged_q = true; }),
        with([](F& f) { f.rope = Rope::half_split, f.append = true, f.kv_format = KvFormat::fp8_e4m3; })}},
      {"batch invariance",
       {with([](F& f) { f.batch_invariant = true; }), with([](F& f) { f.batch_invariant = true, f.page_size = 16; }),
        with([](F& f) { f.batch_invariant = true, f.q_len = 3, f.window = 90, f.sink_tokens = 5; })}},
      {"head sizes", head_size_settings()},
      {"V of another size than K", v_head_size_settings()},
      {"latent cache", latent_settings()},
      {"selection", selection_settings()},
      {"latent rows of a format of their own", row_format_settings()},
      {"second cache", second_cache_settings()},
  };
  return features;
}

std::vector<VerifyKernel> feature_kernels(Arch arch) {
  std::vector<VerifyKernel> kernels;
  std::size_t rotation = 0;
  for (const VerifyFeature& feature : verify_features()) {
    for (const Setting& setting : feature.settings) {
      if (row_format(setting.features) != nullptr) {
        add_row_format_kernels(kernels, arch, "feature: " + feature.name, setting, rotation);
        continue;
      }
      for (const LoadPath load : load_paths_of(arch)) {
        const Heads& heads = kFeatureHeads[rotation % std::size(kFeatureHeads)];
        KernelSpec base{.arch = arch,
                        .head_dim = setting.head_dim > 0 ? setting.head_dim : heads.head_dim,
                        .group = heads.group,
                        .dtype = heads.dtype,
                        .layout = heads.layout,
                        .lse = true,
                        .features = setting.features,
                        .load = load,
                        .fixup = rotation % 2 == 0 || setting.features.batch_invariant ? FixUp::ticket : FixUp::wait};
        std::vector<KernelSpec> specs;
        // A load path may have the feature only with fewer or other heads.
        const std::pair<int, int> kOthers[] = {
            {base.head_dim, base.group}, {base.head_dim, 2}, {base.head_dim, 1}, {128, base.group}, {64, 2}, {64, 1}};
        for (const auto& [head_dim, group] : kOthers) {
          if (setting.head_dim > 0 && head_dim != setting.head_dim) continue;
          base.head_dim = head_dim, base.group = group;
          specs = kernel_variants(base, rotation);
          if (specs.size() > 2) specs.resize(2);
          const KernelSpec modest = modest_variant(base);
          if (validate(modest) && std::find(specs.begin(), specs.end(), modest) == specs.end()) specs.push_back(modest);
          if (!specs.empty()) break;
        }
        ++rotation;
        if (specs.empty()) continue;
        kernels.push_back({.group = "feature: " + feature.name, .specs = std::move(specs), .required = false});
      }
    }
  }
  add_tensor_kernels(kernels, arch);
  return kernels;
}

std::vector<PlannedCase> feature_cases(const KernelSpec& spec) {
  const Features& features = spec.features;
  // Some requests have fewer tokens than query tokens, or no tokens. The shared prefix ends inside a page.
  std::vector<PlannedCase> cases{
      {.shape = {.kv_heads = 2, .context_lengths = {83, 0, 200, 2, 130}}, .grids = {7, 200}},
      {.shape = {.kv_heads = 3,
                 .context_lengths = {513, 1, 290},
                 .context_capacity = 600,
                 .padded = true,
                 .data = DataKind::peaked,
                 .shared_prefix = 270},
       .grids = {1, 132},
       .launches = 2},
      {.shape = {.kv_heads = 1, .context_lengths = {3000}, .padded = true}, .grids = {131}},
      {.shape = {.kv_heads = 1, .context_lengths = {2000, 40}, .data = DataKind::coverage}, .grids = {64}},
  };
  // Requests must not append into pages that they share.
  if (features.append) cases[1].shape.shared_prefix = 0;
  // Scores of +-1e4 are exact only when nothing is added to them.
  if (!features.alibi && features.score.empty())
    cases.push_back(
        {.shape = {.kv_heads = 2, .context_lengths = {1, 64, 777}, .data = DataKind::extreme}, .grids = {33}});
  if (features.page_size > 0) {
    // Nothing but holes, every second or every fifth page: whole requests see nothing, and runs end anywhere.
    cases.push_back({.shape = {.kv_heads = 2, .context_lengths = {83, 300, 1}, .hole_every = 1}, .grids = {9}});
    cases.push_back({.shape = {.kv_heads = 2, .context_lengths = {700, 83, 0, 1290}, .padded = true, .hole_every = 2},
                     .grids = {1, 132},
                     .launches = 2});
    cases.push_back({.shape = {.kv_heads = 1, .context_lengths = {3000}, .data = DataKind::peaked, .hole_every = 5},
                     .grids = {131}});
  }
  if (features.ragged_q) {
    for (PlannedCase& planned : cases) {
      if (planned.shape.context_lengths.size() == 5)
        planned.shape.query_tokens = {features.q_len, 1, 0, features.q_len, 0};
    }
  }
  return cases;
}

}  // namespace v1
}  // namespace leanattn
