#include "generator/kernel_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "generator/parse_enum.hpp"
#include "generator/row_format.hpp"
#include "generator/workspace.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

#include "templates/shared_layout.cuh"

constexpr std::array kMatrixArches{Arch{8, 0, false}, Arch{8, 6, false}, Arch{8, 9, false},
                                   Arch{9, 0, true},  Arch{10, 0, true}, Arch{12, 0, true}};

bool in(int value, std::initializer_list<int> allowed) {
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
}

int wider_dim(const KernelSpec& spec) { return std::max(spec.head_dim, value_dim(spec)); }

constexpr int kMatrixRows = 64;  // of a warpgroup's matrix instruction
constexpr int kTensorRun = 8;    // tokens of the smallest tensor copy, which starts at a swizzle atom

/// The most query rows of an output tile. mma.sync takes eight rows to a matrix tile, for which accumulator and query
/// fragments take 3/8 * head_dim registers. With wgmma the queries stay in shared memory, and the warpgroup's threads
/// share the accumulators. Two warpgroups hold 128 rows, at which a step takes about as long to compute as to read.
int most_rows(const KernelSpec& spec) {
  if (spec.load != LoadPath::tensor) return 8 * std::clamp(256 / wider_dim(spec), 1, 4);
  if (warpgroups_have_roles(spec)) return kMatrixRows;
  if (splits_columns(spec)) return kLeanFewRows;
  if (wider_dim(spec) > 128) return value_dim(spec) > 256 ? 16 : 32;
  return spec.warps == 8 ? 2 * kMatrixRows : kMatrixRows;
}

/// Dynamic shared memory of the tensor family.
int tensor_shared_bytes(const KernelSpec& spec) {
  const int rows = rows_per_block(spec), warpgroups = spec.warps / 4;
  const int stage = lean_warpgroup_stage_bytes(step_tokens(spec), cache_columns(spec));
  if (warpgroups_have_roles(spec)) {
    return lean_warpgroup_shared_bytes(0, 1, lean_role_operand_bytes(spec.head_dim, spec.stages), spec.stages, stage);
  }
  const bool rows_lead = query_rows_lead(spec);
  const int operands =
      rows_lead ? lean_row_operand_bytes(spec.head_dim)
                : lean_token_operand_bytes(rows, spec.head_dim, step_tokens(spec), splits_columns(spec) ? 2 : 1);
  const int merge = holds_results(spec) ? 0 : lean_merge_bytes(warpgroups, rows, value_dim(spec));
  return lean_warpgroup_shared_bytes(merge, splits_columns(spec) ? 1 : warpgroups, operands, spec.stages, stage) +
         row_buffer_bytes(spec);
}

}  // namespace

Result<Arch> parse_arch(std::string_view text) {
  const auto malformed = [&] {
    return fail(ErrorCode::invalid_argument, fmt::format("'{}' is not an architecture", text),
                "write it like sm_80 or sm_90a");
  };
  std::string_view digits = text;
  if (!digits.starts_with("sm_")) return malformed();
  digits.remove_prefix(3);
  Arch arch;
  if (digits.ends_with('a')) {
    arch.specific = true;
    digits.remove_suffix(1);
  }
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (number < 0 || error != std::errc{} || end != digits.data() + digits.size() || digits.size() < 2 ||
      digits.size() > 3)
    return malformed();
  arch.major = number / 10;
  arch.minor = number % 10;
  if (arch.major < 8) {
    return fail(ErrorCode::unsupported, fmt::format("{} is older than sm_80", text),
                "Ampere (sm_80) is the oldest supported architecture");
  }
  return arch;
}

std::string to_string(Arch arch) { return fmt::format("sm_{}{}{}", arch.major, arch.minor, arch.specific ? "a" : ""); }

Arch arch_for_compute_capability(int major, int minor) { return {major, minor, major >= 9}; }

std::span<const Arch> matrix_arches() { return kMatrixArches; }

int max_shared_bytes_per_cta(Arch arch) { return shared_bytes_per_sm(arch) - 1024; }

int shared_bytes_per_sm(Arch arch) {
  if (arch.major == 8) return (arch.minor == 0 || arch.minor == 7) ? 164 * 1024 : 100 * 1024;
  if (arch.major == 9 || arch.major == 10) return 228 * 1024;
  if (arch.major == 11) return 228 * 1024;
  return 100 * 1024;
}

std::string_view to_string(DType v) { return v == DType::bf16 ? "bf16" : "fp16"; }
std::string_view to_string(LoadPath v) {
  switch (v) {
    case LoadPath::ldg: return "ldg";
    case LoadPath::cp_async: return "cp_async";
    case LoadPath::bulk: return "bulk";
    case LoadPath::tensor: return "tensor";
    case LoadPath::vector: return "vector";
  }
  return "ldg";
}
std::string_view to_string(FixUp v) { return v == FixUp::ticket ? "ticket" : "wait"; }
std::string_view to_string(KvLayout v) { return v == KvLayout::contiguous ? "contiguous" : "strided"; }

Result<DType> parse_dtype(std::string_view text) {
  return parse_enum("dtype", text, std::array{DType::bf16, DType::fp16});
}
Result<LoadPath> parse_load_path(std::string_view text) {
  return parse_enum("load path", text,
                    std::array{LoadPath::ldg, LoadPath::cp_async, LoadPath::bulk, LoadPath::tensor, LoadPath::vector});
}
Result<FixUp> parse_fix_up(std::string_view text) {
  return parse_enum("fix-up", text, std::array{FixUp::ticket, FixUp::wait});
}
Result<KvLayout> parse_kv_layout(std::string_view text) {
  return parse_enum("KV layout", text, std::array{KvLayout::contiguous, KvLayout::strided});
}

int value_dim(const KernelSpec& spec) {
  return spec.features.v_head_dim > 0 ? spec.features.v_head_dim : spec.head_dim;
}

int largest_head_dim(const Features& features) { return features.latent ? 640 : 512; }

int cache_columns(const KernelSpec& spec) {
  return spec.features.latent ? spec.head_dim : spec.head_dim + value_dim(spec);
}

int cache_token_bytes(const KernelSpec& spec) {
  return row_elements(spec.features, cache_columns(spec)) * kv_element_bytes(spec.features);
}

int page_run(const KernelSpec& spec) {
  const int page = spec.features.page_size, block = spec.features.selection_block;
  if (page == 0 || converts_rows(spec)) return 1;
  const int in_page = std::min(page & -page, step_tokens(spec)), run = block > 0 ? std::min(in_page, block) : in_page;
  const bool copies_runs = run >= kTensorRun && !spec.features.second_cache;  // a tensor map reaches one cache
  return spec.load == LoadPath::tensor && !copies_runs ? 1 : run;
}

int row_blocks(const KernelSpec& spec) {
  const int rows = query_rows(spec.features, spec.group), most = most_rows(spec);
  return (rows + most - 1) / most;
}

int rows_per_block(const KernelSpec& spec) {
  const int rows = query_rows(spec.features, spec.group), blocks = row_blocks(spec);
  return (rows + blocks - 1) / blocks;
}

bool converts_rows(const KernelSpec& spec) {
  return spec.load == LoadPath::tensor &&
         (row_format(spec.features) != nullptr || has_one_byte_elements(spec.features));
}

bool gathers_rows(const KernelSpec& spec) {
  return converts_rows(spec) || (spec.load == LoadPath::tensor && spec.features.page_size > 0 && page_run(spec) == 1);
}

bool appends_to_stage(const KernelSpec& spec) {
  return spec.features.append && spec.load == LoadPath::tensor && !converts_rows(spec);
}

bool buffers_rows(const KernelSpec& spec) { return converts_rows(spec) && !warpgroups_have_roles(spec); }

int row_buffer_bytes(const KernelSpec& spec) {
  return buffers_rows(spec) ? lean_row_buffer_bytes(step_tokens(spec), cache_token_bytes(spec)) : 0;
}

int gathering_warps(const KernelSpec& spec) {
  if (!gathers_rows(spec)) return 0;
  return buffers_rows(spec) ? 8 : 4;
}

bool query_rows_lead(const KernelSpec& spec) {
  return spec.load == LoadPath::tensor && (rows_per_block(spec) > 32 || warpgroups_have_roles(spec));
}

bool warpgroups_have_roles(const KernelSpec& spec) {
  return spec.load == LoadPath::tensor && spec.features.latent && spec.warps == 8 &&
         query_rows(spec.features, spec.group) > kLeanFewRows;
}

bool splits_columns(const KernelSpec& spec) {
  return spec.load == LoadPath::tensor && spec.features.latent && spec.warps == 8 && !warpgroups_have_roles(spec);
}

bool row_blocks_in_step(const KernelSpec& spec) {
  // Every row block needs a CTA of its own. In a batch-invariant kernel a slot of the workspace is a tile position.
  constexpr int kMostInStep = 8;
  return warpgroups_have_roles(spec) && !spec.features.batch_invariant && row_blocks(spec) > 1 &&
         row_blocks(spec) <= kMostInStep;
}

int converting_ctas(const KernelSpec& spec) {
  // With elements of one byte and one scale, the exchange takes as long as the conversion that it saves.
  const bool worth_it = row_format(spec.features) != nullptr;
  const bool whole_pairs = value_dim(spec) % 256 == 0;  // of panels in either part of a stage
  const bool in_pairs = row_blocks_in_step(spec) && row_blocks(spec) % 2 == 0;
  return converts_rows(spec) && worth_it && whole_pairs && in_pairs ? 2 : 1;
}

int partial_columns(const KernelSpec& spec) { return rows_per_block(spec) * value_dim(spec) / 4; }

bool has_large_partials(const KernelSpec& spec) {
  constexpr int kManyColumns = 2048;
  return spec.features.latent && partial_columns(spec) >= kManyColumns;
}

int registers_for_each(const KernelSpec& spec) { return 65536 / (cta_threads(spec) * spec.ctas_per_sm); }

int strip_loads(const KernelSpec& spec) {
  // Both fix-ups have one layout of states. Where columns share one, a warp that merges by tickets votes on whether all
  // of its columns have come, so none of its lanes may be without a column.
  const int threads = 32 * spec.warps, columns = partial_columns(spec);
  if (columns / threads < 4 || columns % 32 != 0) return 1;
  // n of them take about 8 n registers.
  const int registers = registers_for_each(spec);
  return columns / threads < 8 || registers < 112 ? 4 : 8;
}

int state_columns(const KernelSpec& spec) { return counts_partials(spec) ? 4 : std::max(strip_loads(spec) / 4, 1); }

bool holds_results(const KernelSpec& spec) {
  if (spec.load != LoadPath::tensor) return false;
  return spec.warps == 4 || warpgroups_have_roles(spec) || splits_columns(spec) || rows_per_block(spec) > kMatrixRows;
}

bool counts_partials(const KernelSpec& spec) { return spec.fixup == FixUp::wait && warpgroups_have_roles(spec); }

bool keeps_partials_by_hint(const KernelSpec& spec) {
  constexpr int kManyBytes = 32768;
  return !spec.features.batch_invariant && (counts_partials(spec) || 4 * partial_floats(spec) > kManyBytes);
}

bool writes_rows(const KernelSpec& spec) {
  const int warps_of_row = warpgroups_have_roles(spec) ? 2 : 1;  // warps that hold a part of a row each
  // Where warpgroups share more than 64 rows, this spills.
  return holds_results(spec) && query_rows_lead(spec) && rows_per_block(spec) <= kMatrixRows &&
         !in_group(spec.features) && value_dim(spec) % (64 * warps_of_row) == 0 && value_dim(spec) <= spec.head_dim;
}

int stage_parts(const KernelSpec& spec) { return warpgroups_have_roles(spec) ? 2 : 1; }

int shared_bytes(const KernelSpec& spec) {
  if (spec.load == LoadPath::tensor) return tensor_shared_bytes(spec);
  const int rows = rows_per_block(spec), element = kv_element_bytes(spec.features);
  const int merge = lean_merge_bytes(spec.warps, rows, value_dim(spec));
  const bool ring = !loads_to_registers(spec.load), query = spec.load != LoadPath::vector;
  return lean_warp_shared_bytes(
      merge, spec.warps, spec.stages,
      ring ? lean_warp_stage(spec.warp_tokens, spec.head_dim * element, value_dim(spec) * element).bytes : 0,
      query ? lean_query_bytes(rows, spec.head_dim) : 0);
}

int step_tokens(const KernelSpec& spec) { return spec.warp_tokens * (spec.load == LoadPath::tensor ? 4 : 1); }

int producer_warps(const KernelSpec& spec) {
  if (spec.load != LoadPath::tensor) return 0;
  if (warpgroups_have_roles(spec)) return 4;
  if (gathers_rows(spec)) return gathering_warps(spec);
  return splits_columns(spec) || (query_rows_lead(spec) && spec.warps == 8) ? 4 : 1;
}

bool trades_registers(const KernelSpec& spec) {
  const bool keeps_its_own = gathering_warps(spec) == 4 && spec.warps != 8;  // templates/decode_wgmma.cuh
  return producer_warps(spec) > 1 && !keeps_its_own;
}

int cta_threads(const KernelSpec& spec) { return 32 * (spec.warps + producer_warps(spec)); }

Result<void> validate(const KernelSpec& spec) {
  const auto invalid = [](std::string message, std::string hint) {
    return fail(ErrorCode::invalid_argument, std::move(message), std::move(hint));
  };
  const auto unsupported = [](std::string message, std::string hint) {
    return fail(ErrorCode::unsupported, std::move(message), std::move(hint));
  };
  if (spec.arch.major < 8)
    return unsupported(fmt::format("architecture {} is older than sm_80", to_string(spec.arch)),
                       "use an Ampere or newer GPU");
  if (auto ok = validate(spec.features); !ok) return ok;
  for (const auto& [dim, most] :
       {std::pair(spec.head_dim, largest_head_dim(spec.features)), std::pair(value_dim(spec), 512)}) {
    if (dim < 16 || dim > most || dim % 16 != 0)
      return unsupported(fmt::format("head_dim {} has no kernel", dim),
                         fmt::format("supported: multiples of 16 from 16 to {}", most));
  }
  if (spec.group < 1 || spec.group > 128)
    return unsupported(fmt::format("group {} (query heads per KV head) has no kernel", spec.group),
                       "supported: 1 to 128");
  if (!in(spec.warp_tokens, {16, 32, 64}))
    return invalid(fmt::format("warp_tokens is {}", spec.warp_tokens), "choose 16, 32 or 64");
  if (const int step = step_tokens(spec); spec.tile < step || spec.tile % step != 0 || spec.tile > 4096)
    return invalid(fmt::format("tile is {} tokens", spec.tile),
                   fmt::format("choose a multiple of a step ({} tokens), at most 4096", step));
  if (spec.warps < 1 || spec.warps > 16) return invalid(fmt::format("warps is {}", spec.warps), "choose 1 to 16");
  if (spec.stages < 1 || spec.stages > 8) return invalid(fmt::format("stages is {}", spec.stages), "choose 1 to 8");
  if (loads_to_registers(spec.load) && spec.stages != 1)
    return invalid(fmt::format("stages is {} with load path {}", spec.stages, to_string(spec.load)),
                   "it keeps exactly one stage, in registers");
  if (spec.load == LoadPath::vector) {
    if (query_rows(spec.features, spec.group) > 2)
      return unsupported(
          fmt::format("load path vector with {} query rows per KV head", query_rows(spec.features, spec.group)),
          "it takes 1 or 2; use a path with matrix instructions");
    if (value_dim(spec) != spec.head_dim || spec.head_dim % 32 != 0)
      return unsupported(fmt::format("load path vector with head sizes {} and {}", spec.head_dim, value_dim(spec)),
                         "it takes equal multiples of 32; use a path with matrix instructions");
    if (spec.warp_tokens > 32 || spec.head_dim * spec.warp_tokens > 4096)
      return unsupported(fmt::format("load path vector with head_dim {} and {} tokens a step needs more registers than "
                                     "a thread has",
                                     spec.head_dim, spec.warp_tokens),
                         "use fewer tokens a step");
  }
  if (auto ok = validate_row_format(spec.features, spec.head_dim, spec.dtype); !ok) return ok;
  if (row_format(spec.features) != nullptr && spec.arch != Arch{9, 0, true})
    return unsupported(fmt::format("KV format {} on {}", to_string(spec.features.kv_format), to_string(spec.arch)),
                       "Rows with a format of their own have kernels on sm_90a (H100, H200) only.");
  if (row_format(spec.features) != nullptr && spec.load != LoadPath::tensor)
    return unsupported(
        fmt::format("load path {} with KV format {}", to_string(spec.load), to_string(spec.features.kv_format)),
        "use tensor, whose producer converts rows with a format of their own");
  if (has_one_byte_elements(spec.features)) {
    const auto refuse = [&](std::string_view with) {
      return unsupported(fmt::format("load path {} with KV format {}{}", to_string(spec.load),
                                     to_string(spec.features.kv_format), with),
                         "use bulk, cp_async or ldg, which convert in registers");
    };
    if (spec.load == LoadPath::vector) return refuse("");
    if (spec.load == LoadPath::tensor) {
      if (!spec.features.latent) return refuse(" and V apart from K");
      if (spec.features.kv_scale == KvScale::token) return refuse(" and a scale per token");
      if (has_part_of_context(spec.features)) return refuse(" and context_parallel");
      // Of other widths no kernel has been verified.
      if (value_dim(spec) % 128 != 0) return refuse(fmt::format(" and {} columns of V", value_dim(spec)));
    }
  }
  if (spec.features.append && spec.arch < Arch{8, 9, false} &&
      (spec.features.kv_format == KvFormat::fp8_e4m3 || spec.features.kv_format == KvFormat::fp8_e5m2))
    return unsupported(
        fmt::format("append into a cache of {} on {}", to_string(spec.features.kv_format), to_string(spec.arch)),
        "Conversions to fp8 exist from sm_89 on; int8 works everywhere.");
  if (auto ok = validate_for_head(spec.features, spec.head_dim); !ok) return ok;
  if (spec.features.batch_invariant && spec.fixup != FixUp::ticket)
    return unsupported(fmt::format("a batch-invariant kernel with fix-up {}", to_string(spec.fixup)),
                       "A CTA may hold many partials of one output tile there; use ticket.");
  if (spec.features.page_size > 0 && step_tokens(spec) / page_run(spec) > 32 && !gathers_rows(spec))
    return unsupported(fmt::format("steps of {} tokens over pages of {}", step_tokens(spec), spec.features.page_size),
                       "a warp looks up at most 32 runs a step; use fewer tokens a step");
  // Wider K rows are read in parts (templates/kv/fragments.cuh), which ldg cannot do.
  if (spec.load == LoadPath::ldg && spec.head_dim * kv_element_bytes(spec.features) > 512)
    return unsupported(
        fmt::format("load path ldg with K rows of {} bytes", spec.head_dim * kv_element_bytes(spec.features)),
        "it takes up to 512; use cp_async or bulk");
  // Accumulator and query fragments, and with ldg a step of K and V, are in registers. If they take up to 128, there is
  // room for everything else.
  if (const int row_tiles = (rows_per_block(spec) + 7) / 8;
      spec.load == LoadPath::ldg &&
      (value_dim(spec) * 2 + spec.head_dim) * row_tiles / 8 +
              (spec.head_dim + value_dim(spec)) * kv_element_bytes(spec.features) * spec.warp_tokens / 128 >
          128) {
    return unsupported(
        fmt::format(
            "load path ldg with head_dim {}, group {} and {} tokens a step needs more registers than a thread has",
            spec.head_dim, spec.group, spec.warp_tokens),
        "use cp_async or bulk");
  }
  if (spec.load == LoadPath::bulk && spec.arch.major < 9)
    return unsupported(fmt::format("bulk copies do not exist on {}", to_string(spec.arch)),
                       "use cp_async or ldg below sm_90");
  if (spec.load == LoadPath::tensor) {
    if (spec.arch != Arch{9, 0, true})
      return unsupported(fmt::format("load path tensor needs wgmma, which {} has not", to_string(spec.arch)),
                         "use bulk, cp_async or ldg on other architectures than sm_90a");
    if (spec.head_dim % 64 != 0 || value_dim(spec) % 64 != 0)
      return unsupported(fmt::format("load path tensor with head sizes {} and {}", spec.head_dim, value_dim(spec)),
                         "it takes multiples of 64; use bulk, cp_async or ldg");
    if (spec.warps % 4 != 0)
      return invalid(fmt::format("warps is {} with load path tensor", spec.warps), "choose 4, 8, 12 or 16");
    if (spec.features.latent && spec.warps > 8)
      return unsupported(fmt::format("{} warps over a latent cache", spec.warps), "choose 4 or 8");
    // Each half of V is a whole number of panels, and a matrix instruction takes no more than 256 columns. The weights
    // take the place of 64 columns behind V.
    if (warpgroups_have_roles(spec) && (value_dim(spec) % 256 != 0 || spec.head_dim < value_dim(spec) + 64))
      return unsupported(
          fmt::format("8 warps over a latent cache of {} columns, {} of them V", spec.head_dim, value_dim(spec)),
          "V takes a multiple of 256, and 64 more are left; choose 4 warps");
    if (splits_columns(spec) && value_dim(spec) % 128 != 0)
      return unsupported(fmt::format("8 warps over a latent cache with {} columns of V", value_dim(spec)),
                         "each half has a multiple of 64; choose 4 warps");
    // O fills the registers of both warpgroups, and the addresses of other ranks' memory would be spilled.
    if (warpgroups_have_roles(spec) && in_group(spec.features))
      return unsupported("context_parallel over a latent cache with 8 warps and more than 16 query rows",
                         "choose 4 warps");
    if (warpgroups_have_roles(spec) && step_tokens(spec) != 64)
      return unsupported(fmt::format("steps of {} tokens over a latent cache with 8 warps", step_tokens(spec)),
                         "choose warp_tokens 16");
    if (gathers_rows(spec) && step_tokens(spec) != 64)
      return unsupported(fmt::format("steps of {} tokens, whose rows are gathered", step_tokens(spec)),
                         "choose warp_tokens 16");
    // If two warpgroups took a stage in turn, one of them could wait for it a round too early.
    if (!warpgroups_have_roles(spec) && !splits_columns(spec) && rows_per_block(spec) <= kMatrixRows &&
        spec.stages % (spec.warps / 4) != 0)
      return invalid(fmt::format("stages is {} with {} warpgroups", spec.stages, spec.warps / 4),
                     "choose a multiple of the warpgroups");
  }
  if (spec.pdl && spec.arch.major < 9)
    return unsupported(fmt::format("programmatic dependent launch does not exist on {}", to_string(spec.arch)),
                       "it needs sm_90 or newer");
  if (spec.ctas_per_sm < 1 || spec.ctas_per_sm > 8 || spec.ctas_per_sm * cta_threads(spec) > 1024)
    return invalid(fmt::format("ctas_per_sm is {} with {} warps", spec.ctas_per_sm, spec.warps),
                   "choose 1 to 8, with at most 32 warps per SM");
  // The warpgroups trade registers (templates/decode_wgmma.cuh), and ask for most of those of an SM. If a CTA had only
  // a share of them, setmaxnreg would wait forever.
  if (trades_registers(spec) && spec.ctas_per_sm > 1)
    return unsupported(fmt::format("{} CTAs per SM whose warpgroups trade registers", spec.ctas_per_sm),
                       "choose 1, or 4 warps");
  // Beside the dynamic part there are tickets, barriers and what the search in a large batch needs.
  constexpr int kStaticBytes = 1024;
  const RowFormat* const row = row_format(spec.features);
  const int scales = row != nullptr && !buffers_rows(spec) ? spec.stages * step_tokens(spec) * scale_bytes(*row) : 0;
  if (const int bytes = shared_bytes(spec) + kStaticBytes + scales;
      bytes > max_shared_bytes_per_cta(spec.arch) ||
      spec.ctas_per_sm * (bytes + 1024) > shared_bytes_per_sm(spec.arch)) {
    return unsupported(
        fmt::format("{} CTAs per SM of {} bytes of shared memory each do not fit {} ({} per CTA, {} per SM)",
                    spec.ctas_per_sm, bytes, to_string(spec.arch), max_shared_bytes_per_cta(spec.arch),
                    shared_bytes_per_sm(spec.arch)),
        "use fewer warps, stages or CTAs per SM");
  }
  return {};
}

std::string kernel_name(const KernelSpec& spec) {
  return fmt::format("lean_{}{}{}_{}_d{}_g{}_{}{}{}_{}_{}{}_t{}_w{}x{}_s{}_o{}", "sm",
                     spec.arch.major * 10 + spec.arch.minor, spec.arch.specific ? "a" : "", to_string(spec.dtype),
                     spec.head_dim, spec.group, spec.layout == KvLayout::contiguous ? "contig" : "strided",
                     spec.lse ? "_lse" : "", features_name(spec.features), to_string(spec.load), to_string(spec.fixup),
                     spec.pdl ? "_pdl" : "", spec.tile, spec.warps, spec.warp_tokens, spec.stages, spec.ctas_per_sm);
}

}  // namespace v1
}  // namespace leanattn
