// random_plan.cpp -- draws kernels and shapes, and draws again what is not valid.
#include "tuner/verify/random_plan.hpp"

#include <algorithm>
#include <iterator>
#include <random>
#include <set>

#include "generator/kv_encoding.hpp"
#include "runtime/problem.hpp"
#include "tuner/verify/feature_plan.hpp"
#include "tuner/verify/rank_plan.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kTunableDraws = 20;  // of tunables for the same heads and features, some of which fit few tunables
constexpr std::size_t kDrawsPerKernel = 400;  // at most, because validate() refuses many
constexpr std::int64_t kMostCacheElements = 24 << 20;

/// Random numbers without a standard library's distributions, so that a seed gives the same kernels everywhere.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  /// A number from 0 to count - 1.
  int below(int count) { return static_cast<int>(random_() % static_cast<std::uint64_t>(count)); }
  int between(int least, int most) { return least + below(most - least + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T, std::size_t N>
  T of(const T (&values)[N]) {
    return values[static_cast<std::size_t>(below(static_cast<int>(N)))];
  }
  template <class T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<int>(values.size())))];
  }
  std::uint64_t word() { return random_(); }

 private:
  std::mt19937_64 random_;
};

Features draw_features(Draw& draw) {
  Features f;
  if (draw.chance(50)) f.page_size = draw.of({1, 2, 4, 8, 16, 16, 32, 64, 128, 256, 48, 100});
  if (draw.chance(45)) f.q_len = draw.between(2, 16);
  f.ragged_q = draw.chance(f.q_len > 1 ? 40 : 10);
  if (f.q_len > 1) f.mask = draw.of({QueryMask::causal, QueryMask::causal, QueryMask::tree, QueryMask::full});
  if (f.mask == QueryMask::full && draw.chance(30)) f.q_len = draw.between(17, 80);
  if (f.mask != QueryMask::tree && draw.chance(35)) {
    f.window = draw.chance(50) ? draw.of({1, 16, 64, 128, 500, 4096}) : draw.between(1, 300);
    if (draw.chance(50)) f.sink_tokens = draw.of({1, 4, 16, 65, 128});
  }
  f.spans = f.ragged_q && f.mask == QueryMask::causal && draw.chance(40);
  f.sink_logits = draw.chance(25);
  if (draw.chance(25)) f.soft_cap = draw.of({1.0, 15.0, 30.0, 50.0});
  f.alibi = draw.chance(20);
  if (draw.chance(20)) f.score = draw.of(verify_scores()).text;
  if (draw.chance(40)) {
    f.kv_format = draw.of({KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8});
    f.kv_scale = draw.of({KvScale::tensor, KvScale::head, KvScale::token});
  }
  if (draw.chance(20)) f.v_head_dim = 16 * draw.between(1, 32);
  f.latent = draw.chance(12);
  f.batch_invariant = draw.chance(12);
  f.append = draw.chance(20);
  if (f.append && f.kv_format != KvFormat::same && f.kv_scale == KvScale::token) f.kv_scale = KvScale::head;
  if (draw.chance(20)) {
    f.rope = draw.of({Rope::half_split, Rope::interleaved});
    if (draw.chance(30)) f.rope_dim = 16 * draw.between(1, 8);
  }
  if (f.page_size > 0 && draw.chance(25)) {
    f.selection_block = draw.of({1, 1, 16, 32, 64, 128});
    f.selection_in_pool = f.page_size % f.selection_block == 0 && draw.chance(50);
    // What does not go with a selection.
    f.window = f.sink_tokens = 0, f.ragged_q = f.spans = f.alibi = f.append = false;
    f.rope = Rope::none, f.rope_dim = 0;
    f.score.clear();
    if (f.mask == QueryMask::tree) f.mask = QueryMask::causal;
    f.second_cache = f.kv_format == KvFormat::same && !f.batch_invariant && draw.chance(40);
  }
  if (draw.chance(15)) {
    Features packed = f;
    packed.packed_kv = true;
    if (validate(packed)) f = packed;
  }
  // All q_len with prefill are one problem.
  const bool may_prefill = f.ragged_q && most_query_tokens(f) == kMostPrefillTokens;
  if (has_prefill(f) || (may_prefill && draw.chance(40))) f.q_len = kMostPrefillTokens;
  return f;
}

Tunables draw_tunables(Draw& draw) {
  if (draw.chance(50)) return draw.of(verify_tunables());
  return {.warps = draw.of({1, 2, 3, 4, 4, 6, 8, 8, 12, 16}),
          .warp_tokens = draw.of({16, 16, 32, 64}),
          .steps_per_tile = draw.between(1, 10),
          .stages = draw.between(1, 4),
          .ctas_per_sm = draw.of({1, 1, 1, 2, 3}),
          .pdl = draw.chance(50)};
}

/// Gives the spec a cache whose rows have a format of their own.
void take_row_format(KernelSpec& spec, const KvEncoding& encoding) {
  const RowFormat& row = *encoding.row;
  spec.head_dim = key_columns(row), spec.dtype = row.rope_type, spec.load = LoadPath::tensor;
  Features& f = spec.features;
  f.v_head_dim = row.value_columns, f.kv_format = encoding.format, f.kv_scale = KvScale::tensor;
}

KernelSpec draw_heads(Draw& draw, Arch arch) {
  KernelSpec spec{.arch = arch};
  spec.head_dim = draw.chance(60) ? draw.of({64, 96, 128, 128, 256}) : 16 * draw.between(1, 32);
  spec.group = draw.chance(60)   ? draw.of({1, 2, 4, 5, 7, 8})
               : draw.chance(80) ? draw.of(verify_groups())
                                 : draw.between(1, 128);
  spec.dtype = draw.of({DType::bf16, DType::fp16});
  spec.layout = draw.of({KvLayout::contiguous, KvLayout::strided});
  spec.lse = draw.chance(75);
  spec.load = draw.of(load_paths_of(arch));
  spec.fixup = draw.of({FixUp::ticket, FixUp::wait});
  spec.features = draw_features(draw);
  if (spec.features.latent) {
    spec.features.v_head_dim = draw.of({512, 512, 256, 128, 64});
    spec.head_dim = spec.features.v_head_dim + draw.of({64, 64, 64, 16, 128});
    std::vector<KvEncoding> with_rows;
    std::ranges::copy_if(kv_encodings(), std::back_inserter(with_rows),
                         [](const KvEncoding& encoding) { return encoding.row != nullptr; });
    if (draw.chance(25)) take_row_format(spec, draw.of(with_rows));
  }
  if (spec.features.batch_invariant) spec.fixup = FixUp::ticket;
  return spec;
}

/// Gives the spec a group to share contexts in, without what groups and their cases do not have. False where its heads
/// cannot be dealt.
bool take_group(Draw& draw, KernelSpec& spec) {
  Features& f = spec.features;
  f.context_parallel = draw.of({2, 2, 2, 3, 4, 8});
  f.context_interleave = draw.of({0, 0, 0, 1, 2, 16, 64, 256});
  f.replicate_output = draw.chance(40);
  if (f.mask == QueryMask::tree) f.mask = QueryMask::causal;
  if (f.kv_scale == KvScale::token) f.kv_scale = KvScale::head;
  f.selection_block = 0, f.selection_in_pool = false, f.batch_invariant = f.spans = f.packed_kv = false;
  if (row_format(f) != nullptr || f.q_len > 32 || spec.head_dim * spec.group > 4096 ||
      spec.head_dim * f.context_parallel > 1024)
    return false;
  const int kv_heads = rank_kv_heads(spec);
  DecodeProblem problem{.q_heads = kv_heads * spec.group, .kv_heads = kv_heads, .head_dim = spec.head_dim};
  problem.dtype = spec.dtype, problem.features = f;
  return validate(problem).has_value();
}

/// Gives the spec a cache whose scales travel with its rows, without what does not go with that.
bool take_staged_scales(Draw& draw, KernelSpec& spec) {
  Features& f = spec.features;
  f.kv_format = draw.of({KvFormat::int4, KvFormat::nvfp4, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8});
  const bool nibbles = has_nibbles(f) && draw.chance(40);
  f.kv_scale = has_block_scales(f) ? nibbles ? KvScale::head : KvScale::tensor
               : nibbles           ? KvScale::token
                                   : KvScale::in_row;
  f.second_cache = f.packed_kv = false;
  if (has_nibbles(f)) {
    f.latent = false;
    for (int* const columns : {&spec.head_dim, &f.v_head_dim}) *columns = (*columns + 63) / 64 * 64;
    spec.head_dim = std::min(spec.head_dim, 512);
  }
  if (has_block_scales(f)) f.v_head_dim = 0;
  spec.load = LoadPath::cp_async;
  return true;
}

/// The FNV-1a hash. With it, a kernel's cases follow from its name and the seed alone.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

namespace {

/// change: what the specs get that are drawn, if anything; false where one cannot have it.
std::vector<VerifyKernel> draw_kernels(Arch arch, std::uint64_t seed, std::size_t count, const char* group,
                                       bool (*change)(Draw&, KernelSpec&)) {
  Draw draw(seed);
  std::vector<VerifyKernel> kernels;
  std::set<std::string> names;
  for (std::size_t i = 0; kernels.size() < count && i < count * kDrawsPerKernel; ++i) {
    KernelSpec heads = draw_heads(draw, arch);
    if (change != nullptr && !change(draw, heads)) continue;
    std::vector<KernelSpec> specs;
    for (int attempt = 0; attempt < kTunableDraws && specs.empty(); ++attempt) {
      const KernelSpec spec = with_tunables(heads, draw_tunables(draw));
      if (validate(spec)) specs.push_back(spec);
    }
    if (specs.empty() || !names.insert(kernel_name(specs.front())).second) continue;
    if (const KernelSpec modest = modest_variant(heads); validate(modest) && modest != specs.front())
      specs.push_back(modest);
    kernels.push_back({.group = group, .specs = std::move(specs), .required = false});
  }
  return kernels;
}

}  // namespace

std::vector<VerifyKernel> random_kernels(Arch arch, std::uint64_t seed, std::size_t count) {
  constexpr const char* kGroup = "random features";
  const std::size_t staged = count / 8;
  std::vector<VerifyKernel> kernels = draw_kernels(arch, seed, count - staged, kGroup, nullptr);
  std::ranges::move(draw_kernels(arch, seed, staged, kGroup, take_staged_scales), std::back_inserter(kernels));
  return kernels;
}

std::vector<VerifyKernel> random_rank_kernels(Arch arch, std::uint64_t seed, std::size_t count) {
  return draw_kernels(arch, seed, count, "groups: random features", take_group);
}

std::vector<std::vector<int>> random_rank_lengths(const KernelSpec& spec, std::uint64_t seed) {
  Draw draw(seed ^ hash_of(kernel_name(spec)));
  const int batch = draw.chance(15) ? draw.between(33, 80) : draw.between(1, 8);
  std::vector<std::vector<int>> lengths(2);
  for (std::vector<int>& of_step : lengths) {
    const int longest = batch > 8 ? draw.of({4, 40, 200}) : draw.of({4, 40, 700, kRankCapacity, kRankCapacity});
    for (int request = 0; request < batch; ++request)
      of_step.push_back(draw.chance(8) ? 0 : draw.chance(10) ? longest : draw.between(1, longest));
  }
  return lengths;
}

std::vector<PlannedCase> random_cases(const KernelSpec& spec, std::uint64_t seed) {
  const Features& features = spec.features;
  Draw draw(seed ^ hash_of(kernel_name(spec)));
  std::vector<PlannedCase> cases;
  while (cases.size() < kRandomCasesPerKernel) {
    CaseShape shape;
    shape.kv_heads = draw.of({1, 1, 2, 2, 3, 4, 8});
    const int batch = draw.chance(12) ? draw.between(20, draw.of({60, 250, 500})) : draw.between(1, 8);
    const int longest = batch > 60 ? draw.of({4, 40, 200}) : draw.of({4, 40, 200, 200, 700, 700, 3000, 12000});
    for (int request = 0; request < batch; ++request)
      shape.context_lengths.push_back(draw.chance(8) ? 0 : draw.chance(10) ? longest : draw.between(1, longest));
    if (draw.chance(10)) shape.context_lengths[0] = -3;
    if (draw.chance(30)) shape.context_capacity = draw.between(1, longest + 100);  // Some lengths are above it.
    shape.padded = draw.chance(50);
    shape.data =
        draw.of({DataKind::uniform, DataKind::uniform, DataKind::peaked, DataKind::coverage, DataKind::extreme});
    // Scores of +-1e4 are exact only when nothing is added to them.
    if (shape.data == DataKind::extreme && (features.alibi || !features.score.empty())) shape.data = DataKind::peaked;
    // The oracle takes each row by itself, so that chunks of long contexts are short.
    const int most_tokens = !has_prefill(features) ? features.q_len : longest > 700 ? 40 : draw.of({16, 70, 130, 300});
    for (int request = 0; features.ragged_q && request < batch; ++request)
      shape.query_tokens.push_back(draw.chance(15)                            ? 0
                                   : has_prefill(features) && draw.chance(60) ? 1
                                                                              : draw.between(1, most_tokens));
    // Requests must not append into pages that they share.
    if (features.page_size > 0 && !features.append && draw.chance(40)) shape.shared_prefix = draw.between(1, longest);
    if (features.page_size > 0 && draw.chance(25)) shape.hole_every = draw.of({1, 2, 3, 10, 50});
    const std::int64_t row = cache_columns(spec);
    const auto grid =
        draw.chance(50)
            ? draw.of({std::int64_t{1}, std::int64_t{7}, std::int64_t{131}, std::int64_t{132}, std::int64_t{200}})
            : std::int64_t{draw.between(1, 600)};
    if (std::int64_t{batch} * longest * shape.kv_heads * row > kMostCacheElements) continue;
    cases.push_back({.shape = std::move(shape), .grids = {grid}, .launches = draw.chance(25) ? 2 : 1});
  }
  return cases;
}

}  // namespace v1
}  // namespace leanattn
