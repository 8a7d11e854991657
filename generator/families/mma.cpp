// mma.cpp -- the family whose warps multiply with mma.sync: tokens are on the rows of the matrix instructions, and
// eight query rows on their columns.
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/shared.hpp"
#include "generator/families/shared_layout.hpp"
#include "generator/families/warps.hpp"
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {
namespace mma {

constexpr int kTwoToSixteen[] = {2, 4, 8, 16}, kTwoToEight[] = {2, 4, 8}, kShortSteps[] = {16, 32},
              kAllSteps[] = {16, 32, 64}, kNoRing[] = {1}, kCopyRings[] = {2, 3, 4, 6}, kBulkRings[] = {1, 2, 3, 4, 6},
              kUpToFour[] = {1, 2, 3, 4};

constexpr SearchedLoad kLoads[] = {
    {LoadPath::ldg, kTwoToSixteen, kShortSteps, kNoRing, kUpToFour},
    {LoadPath::cp_async, kTwoToEight, kShortSteps, kCopyRings, kUpToFour},
    {LoadPath::bulk, kTwoToSixteen, kAllSteps, kBulkRings, kUpToFour},
    {LoadPath::tensor, kTwoToEight, kShortSteps, kCopyRings, kUpToFour},
};

bool takes(const KernelSpec& spec) { return spec.load != LoadPath::tensor || may_copy_boxes(spec.features); }

Result<void> supports(const KernelSpec& spec) {
  if (auto ok = refuse_row_format(spec); !ok) return ok;
  // Wider K rows are read in parts (templates/kv/fragments.cuh), which ldg cannot do.
  if (const int row_bytes = kv_encoding(spec.features).row_bytes(spec.head_dim);
      spec.load == LoadPath::ldg && row_bytes > 512)
    return unsupported_spec(fmt::format("load path ldg with K rows of {} bytes", row_bytes),
                            "it takes up to 512; use cp_async or bulk");
  // Copies of less than 16 bytes go by way of L1, which may keep a line from before the previous kernel wrote there.
  if (spec.pdl && stages_scales(spec.features) &&
      (spec.load == LoadPath::cp_async ||
       (spec.load == LoadPath::tensor && copies_boxes(spec.features) && !boxes_bring_all(spec.features, spec.layout))))
    return unsupported_spec(fmt::format("programmatic dependent launch with KV format {} and kv_scale {}",
                                        to_string(spec.features.kv_format), to_string(spec.features.kv_scale)),
                            "leave pdl out, or use tensor where boxes bring all scales");
  if (spec.load == LoadPath::tensor && !copies_boxes(spec.features))
    return unsupported_spec(
        fmt::format("load path tensor with scales {} and {}",
                    has_scales_in_rows(spec.features) ? "in rows" : "of blocks",
                    has_selection(spec.features)        ? "a selection"
                    : spec.features.page_size > 0       ? fmt::format("pages of {} tokens", spec.features.page_size)
                    : has_scales_in_rows(spec.features) ? "sink tokens without pages"
                                                        : "no pages"),
        "use cp_async, which copies row by row");
  if ((spec.load == LoadPath::bulk || spec.load == LoadPath::tensor) && spec.arch.major < 9)
    return unsupported_spec(fmt::format("bulk copies do not exist on {}", to_string(spec.arch)),
                            "use cp_async or ldg below sm_90");
  return {};
}

Result<void> fits(const KernelSpec& spec, const KernelLayout& layout) {
  if (spec.load != LoadPath::ldg) return {};
  // Accumulator and query fragments, and a step of K and V, are in registers. If they take up to 128, there is room for
  // everything else.
  const int row_tiles = (layout.rows + 7) / 8;
  const int fragments = (value_dim(spec) * 2 + spec.head_dim) * row_tiles / 8;
  const int step = kv_encoding(spec.features).row_bytes(spec.head_dim + value_dim(spec)) * spec.warp_tokens / 128;
  if (fragments + step <= 128) return {};
  return unsupported_spec(
      fmt::format(
          "load path ldg with head_dim {}, group {} and {} tokens a step needs more registers than a thread has",
          spec.head_dim, spec.group, spec.warp_tokens),
      "use cp_async or bulk");
}

void lay_out(const KernelSpec& spec, KernelLayout& layout) {
  lay_out_warps(spec, layout, lean_query_bytes(layout.rows, spec.head_dim));
}

void add_modules(KernelSource& source) {
  add_modules_of_warps(source);
  source.add({"kv/fragments.cuh"});
  const bool blocks = has_block_scales(source.spec.features);
  if (loads_to_registers(source.spec.load)) {
    source.add({"kv/ldg.cuh"});
  } else {
    source.add({"kv/stage.cuh"});
    if (blocks) source.add({"kv/block_scales.cuh"});
    source.add({"kv/warp_ring.cuh"});
  }
  switch (source.spec.load) {
    case LoadPath::cp_async: source.add({"kv/cp_async.cuh"}); break;
    case LoadPath::bulk: source.add({"kv/copied_stages.cuh", "kv/bulk.cuh"}); break;
    case LoadPath::tensor:
      source.add({"kv/copied_stages.cuh", blocks ? "kv/block_boxes.cuh" : "kv/row_boxes.cuh", "kv/boxes.cuh"});
      break;
    default: break;
  }
  source.add({"attend/mma.cuh"});
}

int typical_registers(const KernelSpec& spec, const KernelLayout& layout) {
  if (spec.features.latent) return 168;
  // Accumulators and queries of eight rows each.
  const bool many = (2 * value_dim(spec) + spec.head_dim) / 8 * ((layout.rows + 7) / 8) > 64;
  const bool narrow = spec.head_dim <= 64 || has_scales(spec.features);
  switch (spec.load) {
    case LoadPath::bulk: return many ? 204 : 150;
    case LoadPath::cp_async: return many ? 222 : narrow ? 158 : 174;
    default: return many ? 202 : narrow ? 160 : 198;
  }
}

int least_registers(const KernelSpec& spec, const KernelLayout& layout) {
  const int row_tiles = (layout.rows + 7) / 8;
  const int accumulators = value_dim(spec) / 4 * row_tiles,
            query = spec.head_dim > 256 ? 0 : spec.head_dim / 8 * row_tiles;
  const int dims = cache_token_bytes(spec) / 2;
  // One block of K and V, or a whole step.
  const int kv = spec.load == LoadPath::ldg ? spec.warp_tokens / 16 * dims / 4 : std::min(dims / 8, 64);
  return 24 + accumulators + query + kv;
}

}  // namespace mma
}  // namespace

constinit const KernelFamily kMma{
    .name = "mma",
    .description = "warps load KV for themselves; mma.sync with tokens on the matrix rows",
    .loads = mma::kLoads,
    .takes = mma::takes,
    .supports = mma::supports,
    .fits = mma::fits,
    .most_rows = most_rows_of_warps,
    .lay_out = mma::lay_out,
    .add_modules = mma::add_modules,
    .add_constants = add_constants_of_warps,
    .entry = "decode.cuh",
    .default_depths = default_depths_of_warps,
    .typical_registers = mma::typical_registers,
    .least_registers = mma::least_registers,
};

}  // namespace v1
}  // namespace leanattn
