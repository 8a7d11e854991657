#include "tuner/verify/prefill_plan.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "generator/families/family.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Requests = std::vector<std::pair<int, int>>;

/// So many requests with the same query tokens and context.
Requests times(int count, int query_tokens, int context) {
  return Requests(static_cast<std::size_t>(count), {query_tokens, context});
}

Requests joined(std::initializer_list<Requests> parts) {
  Requests all;
  for (const Requests& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

PlannedCase step_of(const Requests& requests, std::vector<std::int64_t> grids) {
  PlannedCase planned{.shape = {}, .grids = std::move(grids)};
  for (const auto& [query_tokens, context] : requests) {
    planned.shape.query_tokens.push_back(query_tokens);
    planned.shape.context_lengths.push_back(context);
  }
  return planned;
}

/// Decode beside chunks, with numbers of query tokens around those of row blocks, without any, and with more than the
/// context has.
const Requests kMixed{{1, 300}, {127, 500}, {0, 40}, {128, 128}, {1, 0},  {129, 1000}, {255, 300}, {0, 0},
                      {1, 1},   {256, 256}, {5, 0},  {257, 900}, {40, 7}, {1, 2000},   {2, 65},    {17, 640}};

struct PrefillHeads {
  int head_dim, group;
  DType dtype;
  KvLayout layout;
};
constexpr PrefillHeads kPrefillHeads[] = {
    {128, 4, DType::bf16, KvLayout::contiguous}, {64, 8, DType::fp16, KvLayout::strided},
    {256, 1, DType::bf16, KvLayout::strided},    {128, 7, DType::fp16, KvLayout::contiguous},
    {64, 1, DType::bf16, KvLayout::contiguous},  {128, 8, DType::bf16, KvLayout::strided},
    {256, 4, DType::fp16, KvLayout::contiguous}};

/// What a step of prefill may have. Some have heads of their own.
struct PrefillSetting {
  Features features;
  int head_dim = 0, group = 0;
};
std::vector<PrefillSetting> prefill_settings() {
  std::vector<PrefillSetting> settings;
  const auto add = [&](auto change, int head_dim = 0, int group = 0) {
    PrefillSetting setting{
        .features = {.q_len = kMostPrefillTokens, .ragged_q = true}, .head_dim = head_dim, .group = group};
    change(setting.features);
    settings.push_back(std::move(setting));
  };
  using F = Features;
  for (const int page_size : {0, 1, 16, 64, 128}) {
    for (const QueryMask mask : {QueryMask::causal, QueryMask::full})
      add([&](F& f) { f.page_size = page_size, f.mask = mask; });
  }
  add([](F&) {}, 128, 7);
  add([](F& f) { f.page_size = 16; }, 64, 4);
  add([](F& f) { f.page_size = 16, f.window = 100, f.sink_tokens = 4; });
  add([](F& f) { f.window = 300; });
  add([](F& f) { f.page_size = 64, f.window = 1, f.sink_tokens = 70; });
  add([](F& f) { f.page_size = 16, f.soft_cap = 15; });
  add([](F& f) { f.soft_cap = 30, f.sink_logits = true, f.mask = QueryMask::full; });
  add([](F& f) { f.alibi = true; });
  add([](F& f) { f.page_size = 1, f.alibi = true, f.sink_logits = true; });
  add([](F& f) { f.page_size = 64, f.sink_logits = true; });
  add([](F& f) { f.page_size = 16, f.append = true; });
  add([](F& f) { f.append = true, f.rope = Rope::half_split; });
  add([](F& f) { f.page_size = 16, f.kv_format = KvFormat::fp8_e4m3; }, 128, 4);
  add([](F& f) { f.kv_format = KvFormat::int8, f.kv_scale = KvScale::head; }, 64, 8);
  add([](F& f) { f.page_size = 1, f.kv_format = KvFormat::fp8_e5m2, f.soft_cap = 20; }, 256, 2);
  add([](F& f) { f.page_size = 64, f.kv_format = KvFormat::fp8_e4m3, f.window = 150, f.sink_logits = true; }, 64, 4);
  add([](F& f) { f.v_head_dim = 128, f.kv_format = KvFormat::fp8_e4m3; }, 192, 1);
  add([](F& f) { f.v_head_dim = 128; }, 192, 1);
  add([](F& f) { f.page_size = 64, f.latent = true, f.v_head_dim = 512; }, 576, 16);
  for (const QueryMask mask : {QueryMask::causal, QueryMask::full})
    add([&](F& f) { f.packed_kv = true, f.mask = mask; });
  add([](F& f) { f.packed_kv = true, f.window = 200, f.mask = QueryMask::full; });
  add([](F& f) { f.packed_kv = f.spans = true, f.soft_cap = 30; });
  add([](F& f) { f.packed_kv = true, f.v_head_dim = 128; }, 192, 1);
  add([](F& f) { f.packed_kv = true, f.kv_format = KvFormat::fp8_e4m3; });
  add([](F& f) { f.spans = true; });
  add([](F& f) { f.page_size = 16, f.spans = true, f.window = 100; });
  add([](F& f) { f.page_size = 1, f.spans = true, f.window = 300, f.sink_tokens = 4, f.soft_cap = 30; });
  add([](F& f) { f.page_size = 64, f.spans = f.append = true; });
  add([](F& f) { f.window = 65, f.mask = QueryMask::full; });
  add([](F& f) { f.page_size = 16, f.window = 300, f.sink_tokens = 4, f.mask = QueryMask::full; });
  // Scales that travel with the rows.
  const auto staged = [&](KvFormat format, KvScale scale, int head_dim, int group, auto change) {
    add(
        [&](F& f) {
          f.kv_format = format, f.kv_scale = scale;
          change(f);
        },
        head_dim, group);
  };
  staged(KvFormat::int4, KvScale::in_row, 128, 4, [](F& f) { f.page_size = 16; });
  staged(KvFormat::int4, KvScale::in_row, 64, 8, [](F& f) { f.page_size = 16, f.window = 100, f.sink_logits = true; });
  staged(KvFormat::int4, KvScale::token, 256, 1, [](F& f) { f.mask = QueryMask::full; });
  staged(KvFormat::fp8_e4m3, KvScale::in_row, 128, 4, [](F& f) { f.page_size = 16; });
  staged(KvFormat::int8, KvScale::in_row, 64, 7, [](F& f) { f.soft_cap = 30; });
  staged(KvFormat::int4, KvScale::in_row, 64, 4, [](F& f) { f.page_size = 16, f.append = true; });
  staged(KvFormat::nvfp4, KvScale::tensor, 128, 4, [](F& f) { f.page_size = 16, f.append = true; });
  staged(KvFormat::nvfp4, KvScale::head, 64, 8, [](F& f) { f.page_size = 16, f.window = 100, f.sink_logits = true; });
  return settings;
}

}  // namespace

const std::vector<PrefillStep>& prefill_lists() {
  static const std::vector<PrefillStep> lists{
      {"FlashAttention-3, dense",
       {{1, 1},
        {64, 128},
        {128, 192},
        {256, 256},
        {239, 1},
        {799, 3},
        {113, 203},
        {113, 128},
        {128, 217},
        {113, 211},
        {108, 256},
        {256, 512},
        {384, 256},
        {640, 128},
        {512, 256},
        {1, 3},
        {2, 1}}},
      {"FlashAttention-3, 1024", {{1024, 1024}, {1023, 1024}, {1024, 1023}, {511, 1}, {3, 513}, {307, 256}}},
      {"FlashAttention-3, cache", {{64, 800}, {64, 2048}, {2048, 3577}, {2048, 2048}}},
      {"FlashInfer, decode and two chunks", joined({times(77, 1, 2048), times(2, 129, 4099)})},
      {"FlashInfer, decode and short chunks", joined({times(50, 1, 1024), times(8, 17, 8192)})},
      {"FlashInfer, two tokens and a chunk", joined({times(99, 2, 766), {{512, 1024}}})},
      {"FlashInfer, as long as the context", {{146, 146}, {67, 67}, {11, 11}, {99, 99}, {1763, 1763}}},
      {"FlashInfer, 12 requests", times(12, 577, 2048)},
      {"FlashInfer, 17 requests", joined({times(17, 127, 512), times(17, 37, 97)})},
      {"FlashInfer, 128 requests", joined({times(64, 37, 54), times(64, 17, 97)})},
      {"vLLM, small", {{1, 32}, {1, 40}, {5, 48}, {5, 56}}},
      {"vLLM, medium", {{1, 512}, {1, 1024}, {1, 2048}, {7, 512}, {7, 1024}, {7, 2048}}},
      {"vLLM, large", {{1, 1024}, {1, 2048}, {1, 4096}, {32, 1024}, {32, 2048}, {32, 4096}}},
      {"vLLM, eight chunks", times(8, 32, 4096)},
  };
  return lists;
}

const std::vector<PrefillStep>& long_prefill_lists() {
  static const std::vector<PrefillStep> lists{
      {"FlashAttention-3, 4096", {{4096, 4096}, {4224, 4224}}},
      {"FlashAttention-3, long cache", {{16, 20000}}},
      {"FlashInfer, 8190", {{7939, 8190}}},
      {"FlashInfer, decode and three tokens", joined({times(264, 1, 600), times(128, 3, 5000)})},
      {"FlashInfer, more query tokens than context", {{235, 2}, {13353, 1}}},
      {"FlashInfer, 9999", {{9999, 9999}}},
      {"FlashInfer, 32767", {{32767, 32767}}},
      {"a chunk of a long context beside decode", {{16384, 65536}, {1, 131072}, {1, 3}}},
      {"a chunk at the end of the longest context", {{300, 131072}, {0, 131072}, {1, 131072}}},
  };
  return lists;
}

std::vector<VerifyKernel> prefill_kernels(Arch arch) {
  constexpr std::size_t kOtherEvery = 4;  // load paths other than tensor are slow with so many rows
  std::vector<VerifyKernel> kernels;
  std::vector<LoadPath> loads = load_paths_of(arch);
  std::ranges::reverse(loads);  // tensor comes first
  std::size_t rotation = 0;
  for (const PrefillSetting& setting : prefill_settings()) {
    const PrefillHeads& heads = kPrefillHeads[rotation % std::size(kPrefillHeads)];
    KernelSpec base{.arch = arch,
                    .head_dim = setting.head_dim > 0 ? setting.head_dim : heads.head_dim,
                    .group = setting.group > 0 ? setting.group : heads.group,
                    .dtype = heads.dtype,
                    .layout = heads.layout,
                    .lse = rotation % 3 != 2,
                    .features = setting.features,
                    .fixup = rotation % 2 == 0 ? FixUp::ticket : FixUp::wait};
    bool met = false;
    for (const LoadPath load : loads) {
      const bool turn = (rotation + static_cast<std::size_t>(load)) % kOtherEvery == 0;
      if (met && !turn) continue;
      base.load = load;
      std::vector<KernelSpec> specs = kernel_variants(base, rotation);
      // Two warpgroups have the family that is for prefill (generator/families/wgmma_prefill.cpp).
      if (load == LoadPath::tensor && rotation % kOtherEvery != 0)
        std::stable_partition(specs.begin(), specs.end(), [](const KernelSpec& spec) { return spec.warps == 8; });
      if (specs.size() > 2) specs.resize(2);
      if (const KernelSpec modest = modest_variant(base); validate(modest)) specs.push_back(modest);
      if (specs.empty()) continue;
      met = true;
      kernels.push_back({.group = "prefill", .specs = std::move(specs), .required = false});
      // Two walks in a CTA (generator/families/wgmma_mixed.cpp).
      KernelSpec mixed = base;
      mixed.warps = 12, mixed.ctas_per_sm = 1, mixed.fixup = FixUp::ticket, mixed.pdl = rotation % 3 == 0;
      mixed.stages = 2 + static_cast<int>(rotation % 2), mixed.tile = 64 << rotation % 2;
      if (load == LoadPath::tensor && validate(mixed))
        kernels.push_back({.group = "prefill", .specs = {mixed}, .required = false});
      // Three warpgroups, with the longest steps of each head size and with shorter ones.
      KernelSpec three = base;
      three.warps = 12, three.ctas_per_sm = 1, three.pdl = rotation % 3 == 1;
      three.warp_tokens = three.head_dim == 64 ? 20 + 4 * static_cast<int>(rotation % 3) : 20;
      three.stages = 2 + static_cast<int>(rotation % 2), three.tile = 4 * three.warp_tokens << rotation / 2 % 2;
      if (load == LoadPath::tensor && validate(three))
        kernels.push_back({.group = "prefill", .specs = {three}, .required = false});
      // Steps of 80 tokens, as wide heads have.
      KernelSpec wide = base;
      wide.warps = 8, wide.ctas_per_sm = 1, wide.warp_tokens = 20, wide.stages = 2;
      wide.tile = 80 << rotation % 2;
      if (load == LoadPath::tensor && validate(wide))
        kernels.push_back({.group = "prefill", .specs = {wide}, .required = false});
    }
    // Warps with query rows of their own, on every architecture (generator/families/mma_prefill.cpp).
    KernelSpec split = base;
    split.load = LoadPath::cp_async, split.fixup = rotation / 2 % 2 == 0 ? FixUp::ticket : FixUp::wait;
    split.warps = rotation % 2 == 0 ? 4 : 8, split.warp_tokens = rotation % 3 == 0 ? 64 : 32;
    split.stages = 2 + static_cast<int>(rotation / 3 % 2), split.tile = 64 << rotation % 2;
    KernelSpec smaller = split;
    smaller.warps = 4, smaller.warp_tokens = 32, smaller.stages = 2;
    std::vector<KernelSpec> splits{split, smaller};
    std::erase_if(splits, [](const KernelSpec& spec) { return &family_of(spec) != &kMmaPrefill || !validate(spec); });
    if (!splits.empty()) kernels.push_back({.group = "prefill", .specs = std::move(splits), .required = true});
    ++rotation;
  }
  return kernels;
}

std::vector<PlannedCase> prefill_cases(const KernelSpec& spec) {
  constexpr std::size_t kLists = 3;  // of a kernel
  const Features& features = spec.features;
  std::vector<PlannedCase> cases{step_of(kMixed, {7, 132}), step_of(kMixed, {200})};
  cases[0].shape.kv_heads = 2;
  cases[1].shape.padded = true, cases[1].shape.data = DataKind::peaked, cases[1].launches = 2;
  if (features.page_size > 0) cases[1].shape.hole_every = 5;
  std::size_t turn = 0;
  for (const char c : kernel_name(spec)) turn = turn * 31 + static_cast<unsigned char>(c);
  for (std::size_t i = 0; i < kLists; ++i)
    cases.push_back(step_of(prefill_lists()[(turn + 5 * i) % prefill_lists().size()].requests, {132}));
  // The long ones are for kernels of few rows, whose oracle is fast, and usual steps.
  const bool plain = features == Features{.page_size = features.page_size, .q_len = features.q_len, .ragged_q = true} &&
                     layout_of(spec).step_tokens % 64 == 0;
  if (plain && spec.load == LoadPath::tensor && spec.group <= 4) {
    for (std::size_t i = 0; i < long_prefill_lists().size(); ++i) {
      const bool first = features.page_size == 0 || features.page_size == 16;
      if (first && (i % 2 == 0) == (features.page_size == 0))
        cases.push_back(step_of(long_prefill_lists()[i].requests, {132}));
    }
  }
  return cases;
}

}  // namespace v1
}  // namespace leanattn
