// vector.cpp -- the family that multiplies with fp32 FMAs, for one or two query rows of a KV head.
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/shared.hpp"
#include "generator/families/warps.hpp"
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {
namespace vector {

constexpr int kWarps[] = {2, 4, 8, 16}, kWarpTokens[] = {16, 32}, kStages[] = {1}, kCtasPerSm[] = {1, 2, 3, 4};
constexpr SearchedLoad kLoads[] = {{LoadPath::vector, kWarps, kWarpTokens, kStages, kCtasPerSm}};

Result<void> supports(const KernelSpec& spec) {
  if (const int rows = query_rows(spec.features, spec.group); rows > 2)
    return unsupported_spec(fmt::format("load path vector with {} query rows per KV head", rows),
                            "it takes 1 or 2; use a path with matrix instructions");
  if (value_dim(spec) != spec.head_dim || spec.head_dim % 32 != 0)
    return unsupported_spec(fmt::format("load path vector with head sizes {} and {}", spec.head_dim, value_dim(spec)),
                            "it takes equal multiples of 32; use a path with matrix instructions");
  if (auto ok = refuse_row_format(spec); !ok) return ok;
  if (has_one_byte_elements(spec.features))
    return unsupported_spec(fmt::format("load path vector with KV format {}", to_string(spec.features.kv_format)),
                            "use bulk, cp_async or ldg, which convert in registers");
  return {};
}

Result<void> fits(const KernelSpec& spec, const KernelLayout&) {
  if (spec.warp_tokens <= 32 && spec.head_dim * spec.warp_tokens <= 4096) return {};
  return unsupported_spec(
      fmt::format("load path vector with head_dim {} and {} tokens a step needs more registers than a thread has",
                  spec.head_dim, spec.warp_tokens),
      "use fewer tokens a step");
}

void lay_out(const KernelSpec& spec, KernelLayout& layout) { lay_out_warps(spec, layout, 0); }

void add_modules(KernelSource& source) {
  add_modules_of_warps(source);
  source.add({"attend/vector.cuh"});
}

int typical_registers(const KernelSpec& spec, const KernelLayout& layout) {
  if (spec.features.latent) return 168;
  const int step = spec.warp_tokens * spec.head_dim;  // elements of K, which are in registers with those of V
  return (step > 32 * 64 ? 255 : step > 16 * 64 ? 192 : 128) + (layout.rows - 1) * 25;
}

/// A step of K and V, accumulators, and the partial sums of the products are in registers.
int least_registers(const KernelSpec& spec, const KernelLayout& layout) {
  const bool many_runs = spec.features.page_size > 0 && layout.page_run < spec.warp_tokens;  // each with an address
  return 64 + spec.warp_tokens * spec.head_dim / 32 + 16 * spec.group + (many_runs ? 48 : 0);
}

}  // namespace vector
}  // namespace

constinit const KernelFamily kVector{
    .name = "vector",
    .description = "warps load KV for themselves; fp32 FMAs, for one or two query rows of a KV head",
    .loads = vector::kLoads,
    .supports = vector::supports,
    .fits = vector::fits,
    .most_rows = most_rows_of_warps,
    .lay_out = vector::lay_out,
    .exchange_order = 2,
    .add_modules = vector::add_modules,
    .add_constants = add_constants_of_warps,
    .entry = "decode.cuh",
    .default_depths = default_depths_of_warps,
    .typical_registers = vector::typical_registers,
    .least_registers = vector::least_registers,
};

}  // namespace v1
}  // namespace leanattn
