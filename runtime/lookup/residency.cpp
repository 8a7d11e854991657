// residency.cpp -- guesses of registers, from what each family of kernels holds in them.
#include "runtime/lookup/residency.hpp"

#include <algorithm>

#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// What NVRTC 13.0 gives most kernels of a load path if the launch bounds leave it enough.
int typical_registers(const KernelSpec& spec) {
  if (spec.features.latent || query_rows_lead(spec)) return 168;
  const int rows = rows_per_block(spec);
  // Accumulators and queries of the mma family, of eight rows each.
  const bool many = (2 * value_dim(spec) + spec.head_dim) / 8 * ((rows + 7) / 8) > 64;
  const bool narrow = spec.head_dim <= 64 || has_one_byte_elements(spec.features);
  switch (spec.load) {
    case LoadPath::tensor: {
      int registers = rows <= 4 ? 120 : rows <= 8 ? 132 : 142;
      registers += std::max(value_dim(spec) / 64 - 1, 0) * 6 + (gathers_rows(spec) ? 6 : 0);
      if (value_dim(spec) > 128 && rows > 16) registers += rows > 24 ? 44 : 10;
      return registers;
    }
    case LoadPath::bulk: return many ? 204 : 150;
    case LoadPath::cp_async: return many ? 222 : narrow ? 158 : 174;
    case LoadPath::ldg: return many ? 202 : narrow ? 160 : 198;
    case LoadPath::vector: {
      const int step = spec.warp_tokens * spec.head_dim;  // elements of K, which are in registers with those of V
      return (step > 32 * 64 ? 255 : step > 16 * 64 ? 192 : 128) + (rows - 1) * 25;
    }
  }
  return 168;
}

}  // namespace

int register_limit(const KernelSpec& spec) {
  return std::min(255, 65536 / (cta_threads(spec) * spec.ctas_per_sm) / 8 * 8);
}

int least_registers(const KernelSpec& spec) {
  // This is as below, but P is in registers, too. A producer warpgroup hands its registers over.
  if (query_rows_lead(spec)) return producer_warps(spec) > 1 ? 0 : 64 + value_dim(spec) / 2 + step_tokens(spec) * 3 / 4;
  // The scores of a step and the accumulators are in registers; operands stay in shared memory.
  if (spec.load == LoadPath::tensor)
    return 40 + (rows_per_block(spec) + 7) / 8 * 4 * (step_tokens(spec) / 64 + value_dim(spec) / 64) +
           (gathers_rows(spec) ? 32 : 0);  // the addresses of rows
  // A step of K and V, accumulators, and the partial sums of the products are in registers.
  if (spec.load == LoadPath::vector) {
    const bool many_runs = spec.features.page_size > 0 && page_run(spec) < spec.warp_tokens;  // each with an address
    return 64 + spec.warp_tokens * spec.head_dim / 32 + 16 * spec.group + (many_runs ? 48 : 0);
  }
  const int row_tiles = (rows_per_block(spec) + 7) / 8;
  const int accumulators = value_dim(spec) / 4 * row_tiles,
            query = spec.head_dim > 256 ? 0 : spec.head_dim / 8 * row_tiles;
  const int dims = kv_token_bytes(spec) / 2;
  const int kv = spec.load == LoadPath::ldg ? spec.warp_tokens / 16 * dims / 4 : std::min(dims / 8, 64);
  return 24 + accumulators + query + kv;
}

int guess_resident(const DeviceFacts& device, const KernelSpec& spec) {
  const int registers = std::min(register_limit(spec), std::max(typical_registers(spec), least_registers(spec)));
  return std::max(resident_ctas_per_sm(device, registers, cta_threads(spec), shared_bytes(spec)), 1);
}

std::int64_t most_resident(const DeviceFacts& device, const KernelSpec& spec) {
  constexpr int kFewestRegisters = 24;  // ptxas gives no kernel of this kind less
  const int registers = std::max(kFewestRegisters, std::min(least_registers(spec), register_limit(spec)));
  return std::int64_t{std::max(device.sm_count, 1)} *
         std::max(resident_ctas_per_sm(device, registers, cta_threads(spec), shared_bytes(spec)), 1);
}

}  // namespace v1
}  // namespace leanattn
