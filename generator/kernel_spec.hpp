// kernel_spec.hpp -- KernelSpec: everything one emitted kernel is specialised for. Plain data; any thread.
#pragma once

#include <array>
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
/// How KV bytes travel, which decides what can multiply them.
///   ldg       straight to registers; mma.sync
///   cp_async  cp.async of 16 bytes, or of 4 where rows are aligned to no more, through shared memory; mma.sync
///   bulk      bulk copies completing on an mbarrier (sm_90+; PTX ISA, "cp.async.bulk"); mma.sync
///   tensor    a producer warp's tensor copies, 128-byte swizzled (sm_90a; PTX ISA, "cp.async.bulk.tensor"); wgmma
///   vector    straight to registers; fp32 FMAs, no matrix instructions (one or two query rows of a KV head)
enum class LoadPath : std::uint8_t { ldg, cp_async, bulk, tensor, vector };
inline constexpr std::array kLoadPaths{LoadPath::ldg, LoadPath::cp_async, LoadPath::bulk, LoadPath::tensor,
                                       LoadPath::vector};
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

/// One kernel: a problem and tunables, from which its family follows (families/family.hpp). The model fixes the first
/// block of fields, and the tuner chooses the second.
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
