// wgmma_mixed.cpp -- the family for steps that mix prefill and decode: a CTA has two walks along two lines at a time.
// Of the requests, one walk has those with many query tokens, by the kernel of wgmma_prefill, and the other one those
// with few, by that of wgmma_tokens. The matrix unit limits the former and memory the latter, so that side by side they
// take less time than one after the other (POD-Attention).
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/shared.hpp"
#include "generator/families/shared_layout.hpp"
#include "generator/families/wgmma.hpp"
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {
namespace wgmma_mixed {

// Warps 0 to 7 have many rows, 8 to 10 request for them, 11 requests for warps 12 to 15, which have few.
constexpr int kWarps = 12, kThreads = 512, kWarpsForMany = 11, kFewStages = 4, kBarriersOfWalk = 8;
constexpr int kMixedWarps[] = {kWarps}, kWarpTokens[] = {kMixedWarpTokens}, kStages[] = {2, 3, 4}, kOnePerSm[] = {1};
constexpr SearchedLoad kLoads[] = {{LoadPath::tensor, kMixedWarps, kWarpTokens, kStages, kOnePerSm}};
constexpr DefaultDepth kDepths[] = {{kWarps, 1, 3}, {kWarps, 1, 2}};
// Registers of a thread with many rows, of one that requests KV, and of one with few rows.
constexpr int kManyRegisters = 168, kRequestRegisters = 56, kFewRegisters = 120;
static_assert(256 * kManyRegisters + 128 * (kRequestRegisters + kFewRegisters) <= 65536);

bool takes(const KernelSpec& spec) {
  return spec.warps == kWarps && spec.warp_tokens == kMixedWarpTokens && !spec.features.latent &&
         spec.features.ragged_q && query_rows(spec.features, spec.group) > kMatrixRows;
}

/// Up to so many query tokens are few: their rows take 16 columns of the matrix instructions, or those of one token.
int few_tokens(const KernelSpec& spec) { return std::max(1, kFewRows / spec.group); }

KernelSpec spec_of_many(const KernelSpec& spec) {
  KernelSpec many = spec;
  many.warps = 8;
  return many;
}

KernelSpec spec_of_few(const KernelSpec& spec) {
  KernelSpec few = spec;
  few.warps = 4, few.warp_tokens = kMixedWarpTokens, few.tile = 64, few.stages = kFewStages;
  few.features.q_len = few_tokens(spec);
  return few;
}

Result<void> supports(const KernelSpec& spec) {
  if (auto ok = kWgmmaPrefill.supports(spec); !ok) return ok;
  const Features& features = spec.features;
  const auto refuse = [](std::string_view what) {
    return unsupported_spec(fmt::format("12 warps of load path tensor with {}", what), "choose 8 or 4 warps");
  };
  if (spec.group > 2 * kFewRows) return refuse(fmt::format("{} query heads for a KV head", spec.group));
  if (has_one_byte_elements(features)) return refuse("one-byte elements");
  if (features.append) return refuse("append");
  if (features.batch_invariant) return refuse("batch invariance");
  if (has_selection(features)) return refuse("a selection");
  if (in_group(features) || has_part_of_context(features)) return refuse("context_parallel");
  return {};
}

std::array<KernelHalf, 2> halves(const KernelSpec& spec) {
  KernelHalf many{.spec = spec_of_many(spec), .layout = layout_of(spec_of_many(spec), kWgmmaPrefill)};
  KernelHalf few{.spec = spec_of_few(spec), .layout = {}};
  // The entry point trades registers for both.
  many.layout.producer_warps = kWarpsForMany - 8;
  many.layout.consumer_registers = many.layout.producer_registers = 0;
  many.layout.threads = 32 * kWarpsForMany;
  const auto lay_out_few = [&] {
    few.layout = layout_of(few.spec, kWgmmaTokens);
    few.layout.threads = kThreads - many.layout.threads;
    few.layout.registers = 96;  // of kFewRegisters, what is left for a fix-up beside what the main loop keeps across it
  };
  // The ring of the walk with few rows has what is left of shared memory.
  for (lay_out_few();
       few.spec.stages > 1 && few.layout.shared_bytes + many.layout.shared_bytes + 2 * many.layout.static_bytes >
                                  max_shared_bytes_per_cta(spec.arch);
       lay_out_few())
    --few.spec.stages;
  const int few_limit = few_tokens(spec);
  many.layout.share.few_tokens = few_limit;
  few.layout.share = {.few_tokens = few_limit,
                      .takes_few = true,
                      .first_barrier = kBarriersOfWalk,
                      .shared_before = many.layout.shared_bytes - kLeanAtomBytes,
                      .tickets_before = many.layout.most_passes,
                      .partials_before = 2 * many.layout.most_passes * many.layout.partial_floats};
  return {many, few};
}

Result<void> fits(const KernelSpec& spec, const KernelLayout&) {
  const auto [many, few] = halves(spec);
  if (many.layout.gathers_rows)
    return unsupported_spec("12 warps of load path tensor whose rows are gathered", "choose 8 or 4 warps");
  if (spec.fixup != FixUp::ticket)
    return unsupported_spec("12 warps of load path tensor with fix-up wait", "use ticket");
  KernelLayout layout = many.layout;
  layout.consumer_registers = kManyRegisters;
  if (auto ok = kWgmmaPrefill.fits(many.spec, layout); !ok) return ok;
  return kWgmmaTokens.fits(few.spec, few.layout);
}

void lay_out(const KernelSpec& spec, KernelLayout& layout) {
  const KernelFamily* const family = layout.family;
  const auto [many, few] = halves(spec);
  layout = many.layout;
  layout.family = family;
  layout.share = {};
  layout.producer_warps = kThreads / 32 - kWarps;
  layout.shared_bytes = many.layout.shared_bytes + few.layout.shared_bytes - kLeanAtomBytes;
  layout.static_bytes = many.layout.static_bytes + few.layout.static_bytes;
  layout.consumer_registers = kManyRegisters, layout.producer_registers = kRequestRegisters;
  layout.few_partial_floats = few.layout.partial_floats;
}

/// What stands in front of the entry point.
void add_modules(KernelSource& source) {
  source.number("kThreads", kThreads, "of both walks");
  source.number("kWarpsOfMany", kWarpsForMany, "of the walk with many rows, those that request KV for it included");
  source.number("kFirstFewWarp", kWarps, "with few rows; the warp in front of it requests their KV");
  source.number("kManyRegisters", kManyRegisters, "of a thread with many rows, once others handed theirs over");
  source.number("kRequestRegisters", kRequestRegisters, "of one that requests KV");
  source.number("kFewRegisters", kFewRegisters, "and of one with few rows");
  source.text += "\n";
}

}  // namespace wgmma_mixed
}  // namespace

constinit const KernelFamily kWgmmaMixed{
    .name = "wgmma_mixed",
    .description = "two walks in a CTA: wgmma_prefill for requests with many query tokens, wgmma_tokens for the others",
    .loads = wgmma_mixed::kLoads,
    .takes = wgmma_mixed::takes,
    .supports = wgmma_mixed::supports,
    .fits = wgmma_mixed::fits,
    .most_rows = [](const KernelSpec&) { return 2 * kMatrixRows; },
    .lay_out = wgmma_mixed::lay_out,
    .query_rows_lead = true,
    .prefill_us = 1.7,
    .add_modules = wgmma_mixed::add_modules,
    .add_constants = [](KernelSource&, ConstantGroup) {},
    .entry = "decode_mixed.cuh",
    .halves = wgmma_mixed::halves,
    .default_depths = [](const KernelSpec&) -> std::span<const DefaultDepth> { return wgmma_mixed::kDepths; },
    .typical_registers = [](const KernelSpec&, const KernelLayout&) { return 128; },
    .least_registers = [](const KernelSpec&, const KernelLayout&) { return 0; },
};

}  // namespace v1
}  // namespace leanattn
