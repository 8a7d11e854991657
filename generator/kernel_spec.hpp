// kernel_spec.hpp -- KernelSpec: everything one emitted kernel is specialised for. Plain data; any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "generator/features.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// A real (not virtual) GPU architecture; `sm_90a`, not `sm_90`, where arch-specific instructions may be used.
struct Arch {
  int major = 0;
  int minor = 0;
  bool specific = false;  ///< the trailing 'a'

  auto operator<=>(const Arch&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees a 0 in it
};

/// "sm_90a" <-> Arch. Errors: invalid_argument (not of the form sm_NN[a]), unsupported (below sm_80).
Result<Arch> parse_arch(std::string_view text);
std::string to_string(Arch arch);
/// The arch to generate for on a device of this compute capability: sm_NNa from sm_90 on, else sm_NN.
Arch arch_for_compute_capability(int major, int minor);
/// The arches the compile matrix covers: sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a.
std::span<const Arch> matrix_arches();
/// Most dynamic shared memory one CTA may ask for on this arch, in bytes (CUDA programming guide, compute
/// capabilities).
int max_shared_bytes_per_cta(Arch arch);
/// Shared memory of one SM in bytes, of which the driver reserves 1 KiB for each CTA.
int shared_bytes_per_sm(Arch arch);

enum class DType : std::uint8_t { bf16, fp16 };
/// The kernel family: how KV bytes travel, and with it what multiplies them.
///   ldg       straight to registers; mma.sync
///   cp_async  16-byte cp.async through shared memory (sm_80+); mma.sync
///   bulk      bulk copies completing on an mbarrier (sm_90+; PTX ISA, "cp.async.bulk"); mma.sync
///   tensor    a producer warp's tensor copies, 128-byte swizzled (sm_90a; PTX ISA, "cp.async.bulk.tensor"); wgmma
///   vector    straight to registers; fp32 FMAs, no matrix instructions (one or two query rows of a KV head)
enum class LoadPath : std::uint8_t { ldg, cp_async, bulk, tensor, vector };
/// Whether KV goes straight to registers. There is no ring then, and stages is 1.
constexpr bool loads_to_registers(LoadPath load) { return load == LoadPath::ldg || load == LoadPath::vector; }
/// Who reduces partials: the contributor that draws the last ticket, or all of them after waiting for each other, a
/// slice each.
enum class FixUp : std::uint8_t { ticket, wait };
/// contiguous: consecutive tokens of one KV head are adjacent (token stride == head_dim), as in
/// [batch, kv_heads, context, head_dim]. strided: any 16-byte multiple, as in [batch, context, kv_heads, head_dim].
enum class KvLayout : std::uint8_t { contiguous, strided };

/// Names as in JSON and on the command line. parse_* errors: invalid_argument, naming the choices.
std::string_view to_string(DType v);
std::string_view to_string(LoadPath v);
std::string_view to_string(FixUp v);
std::string_view to_string(KvLayout v);
Result<DType> parse_dtype(std::string_view text);
Result<LoadPath> parse_load_path(std::string_view text);
Result<FixUp> parse_fix_up(std::string_view text);
Result<KvLayout> parse_kv_layout(std::string_view text);

/// One kernel. The model fixes the first block of fields, and the tuner chooses the second.
struct KernelSpec {
  Arch arch{9, 0, true};
  int head_dim = 128;  ///< of q and K, and of V unless features say otherwise; a multiple of 16, 16..512 (latent: 640)
  int group = 4;       ///< query heads per KV head, 1..128
  DType dtype = DType::bf16;  ///< of q and o, and of k and v unless kv_format says otherwise
  KvLayout layout = KvLayout::contiguous;
  bool lse = false;        ///< also write LSE (natural log, fp32)
  Features features = {};  ///< what the problem asks for beside plain dense decode

  LoadPath load = LoadPath::cp_async;
  FixUp fixup = FixUp::ticket;
  int tile = 64;         ///< LeanTile: tokens; a multiple of a step (step_tokens), at most 4096
  int warp_tokens = 16;  ///< tokens one warp takes per step: 16, 32 or 64
  int warps = 4;         ///< 1..16; tensor: 4 per warpgroup, the producer warp not counted
  int stages = 2;        ///< ring depth per warp; 1 for ldg and vector; tensor: depth of the CTA's one ring
  int ctas_per_sm = 1;   ///< occupancy the register allocator must allow (__launch_bounds__)
  bool pdl = false;  ///< programmatic dependent launch (sm_90+): reads of q and of the query tokens' own K and V wait
                     ///< for the previous kernel; with a selection, everything does

  bool operator==(const KernelSpec&) const = default;
};

/// Whether CTAs wait for others, of their own launch or of another rank's, so that all of a launch must be resident at
/// once.
inline bool waits(const KernelSpec& spec) { return spec.fixup == FixUp::wait || in_group(spec.features); }

/// Columns of V and O.
int value_dim(const KernelSpec& spec);

/// The widest key that has a kernel: wider where V is a part of it.
int largest_head_dim(const Features& features);
/// Columns of the cache that a token takes: those of K, and of V unless it is a part of K.
int cache_columns(const KernelSpec& spec);
/// And its bytes, those of all KV heads apart.
int cache_token_bytes(const KernelSpec& spec);

/// Tokens of a run of a paged cache: the largest power of two that divides the page size, and at most a step and a
/// block of a selection; 1 where load path tensor has no copies of such runs, because they have fewer than 8 tokens (as
/// where the page size is no multiple of 8), lie in two caches, or are converted row by row. A run's tokens are
/// adjacent in memory whatever the page table and the selection say. 1 for a dense cache.
int page_run(const KernelSpec& spec);

/// The query rows that one CTA carries in a pass over the cache, and how many such row blocks a KV head needs.
int rows_per_block(const KernelSpec& spec);
int row_blocks(const KernelSpec& spec);

/// Whether the producer of load path tensor turns rows of bytes into operands of the matrix instructions
/// (templates/kv/produce_rows.cuh or produce_buffered_rows.cuh): rows with a format of their own, or with elements of
/// one byte.
bool converts_rows(const KernelSpec& spec);
/// Whether rows are gathered one by one: those that are converted, and all of load path tensor where it has no copies
/// of runs (templates/kv/produce_gathered.cuh).
bool gathers_rows(const KernelSpec& spec);
/// The warps that do: a warpgroup, or two where they convert rows and registers allow. 0 where rows are not gathered.
int gathering_warps(const KernelSpec& spec);

/// With append, whether load path tensor takes new rows from where they are given (templates/kv/append_to_stage.cuh).
/// Elsewhere they are written into the cache and read from there (templates/kv/append_to_cache.cuh).
bool appends_to_stage(const KernelSpec& spec);

/// Whether rows to convert wait in a buffer beside the ring (templates/kv/row_buffer.cuh), and not in the stages
/// (templates/kv/row_panels.cuh): where warpgroups have no roles, whose queries leave no room. And its bytes.
bool buffers_rows(const KernelSpec& spec);
int row_buffer_bytes(const KernelSpec& spec);

/// Whether query rows, not tokens, take the 64 rows of the matrix instructions: load path tensor with more than 32 rows
/// per block (templates/attend/wgmma_rows.cuh instead of wgmma_tokens.cuh), and where warpgroups have roles.
bool query_rows_lead(const KernelSpec& spec);

/// Whether two warpgroups have half of O's columns each, and one of them makes the weights of a step for both
/// (templates/attend/wgmma_roles.cuh): load path tensor, a latent cache, 8 warps, and more than 16 query rows.
bool warpgroups_have_roles(const KernelSpec& spec);
/// Whether two warpgroups have half of O's columns each and both compute all scores
/// (templates/attend/wgmma_tokens.cuh): load path tensor, a latent cache, 8 warps, and up to 16 query rows.
bool splits_columns(const KernelSpec& spec);

/// Whether CTAs that take the same range of the line carry a row block each, so that they read the same KV at about the
/// same time, and all but the first of them from L2 (templates/line/rows.cuh). Otherwise the line has the row blocks of
/// a KV head one after the other.
bool row_blocks_in_step(const KernelSpec& spec);

/// CTAs that convert the rows of a step together: two, which are a cluster, where row blocks in step need the same rows
/// of a format of their own (templates/kv/row_panels.cuh). Otherwise each CTA converts its rows alone.
int converting_ctas(const KernelSpec& spec);

/// Columns of four values in a partial, the unit in which partials are merged (templates/merge/partial.cuh).
int partial_columns(const KernelSpec& spec);
/// An even share of an SM's registers for each thread of a CTA; no thread has more than 255.
int registers_for_each(const KernelSpec& spec);
/// Columns of partials that a thread asks for at once where contributors wait and take strips of neighbouring columns
/// (templates/merge/share_strips.cuh): 4 or 8, as it has columns and registers for. 1 where a thread that merges has
/// fewer than four columns of a partial, or the columns are no multiple of 32; contributors then take single columns
/// (templates/merge/slice.cuh).
int strip_loads(const KernelSpec& spec);
/// Neighbouring columns of a partial that have one maximum and sum between them. A warp loads so many of them together.
/// Of counted partials, how far apart the places for states are; only the first one of a row is used.
int state_columns(const KernelSpec& spec);
/// Whether the contributors to an output tile count their partials (templates/merge/counted_partials.cuh). Elsewhere
/// partials announce themselves.
bool counts_partials(const KernelSpec& spec);
/// Whether partials stay in L2 by a hint with all that is written to them (templates/merge/l2_hint.cuh), as counted
/// ones and those of more than 32 KiB do. Other partials are prefetched (templates/merge/l2_prefetch.cuh), except those
/// of batch-invariant kernels, of which a CTA stores many: nothing keeps these in L2.
bool keeps_partials_by_hint(const KernelSpec& spec);
/// Whether the cache is latent, and a partial has so many columns that one CTA alone takes long to merge it.
bool has_large_partials(const KernelSpec& spec);

/// Whether the results of a segment stay in registers until they are written, because one warpgroup has a row's whole
/// softmax state (templates/merge/held_results.cuh). Elsewhere the states of a CTA's warps or warpgroups meet in shared
/// memory.
bool holds_results(const KernelSpec& spec);
/// Whether the warps write a whole output tile row by row, by way of shared memory (templates/merge/write_rows.cuh).
bool writes_rows(const KernelSpec& spec);

/// Parts of a stage of the ring that become full and empty one by one. 1, or where warpgroups have roles 2: the columns
/// of the first half of V, and all others (templates/kv/tensor.cuh).
int stage_parts(const KernelSpec& spec);

/// Dynamic shared memory of the kernel in bytes.
int shared_bytes(const KernelSpec& spec);

/// Warps beside `warps`, which hold no part of O. Load path tensor has one that requests KV. It has a warpgroup, which
/// can hand over its registers, where warpgroups have roles or split O's columns, where 8 warps hold more than 32 rows,
/// or where rows are gathered. It has two warpgroups where these convert rows beside a buffer. The other load paths
/// have none.
int producer_warps(const KernelSpec& spec);
/// Whether the producer's warpgroups hand registers to the others (templates/decode_wgmma.cuh). Such a CTA needs an SM
/// for itself.
bool trades_registers(const KernelSpec& spec);

/// Threads of one CTA, producer warps included.
int cta_threads(const KernelSpec& spec);

/// Tokens that one warp (tensor: one warpgroup) takes per step.
int step_tokens(const KernelSpec& spec);

/// Whether a kernel of this spec can exist. Errors: invalid_argument (a value makes no sense), unsupported (a limit,
/// which the message names).
Result<void> validate(const KernelSpec& spec);

/// Short, stable, filename-safe identity, e.g. "lean_sm90a_bf16_d128_g4_contig_bulk_ticket_t64_w4x16_s2_o1".
std::string kernel_name(const KernelSpec& spec);

/// Self-describing JSON object, {"arch":"sm_90a","head_dim":128,...}; keys sorted, one line. from_json ignores unknown
/// keys and fails with invalid_argument on a missing or ill-typed one.
std::string to_json(const KernelSpec& spec);
Result<KernelSpec> kernel_spec_from_json(std::string_view json);

}  // namespace v1
}  // namespace leanattn
