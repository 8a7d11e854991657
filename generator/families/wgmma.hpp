// wgmma.hpp -- what the families of load path tensor have in common: a producer fills one ring of the CTA, from which
// warpgroups take steps and multiply with wgmma. Any thread. Internal to this folder.
#pragma once

#include <string>

#include "generator/families/family.hpp"

namespace leanattn {
inline namespace v1 {

/// Of 12 warps, those with steps of 64 tokens have two walks, and those with longer ones three warpgroups of prefill.
inline constexpr int kMixedWarpTokens = 16;
inline constexpr int kMatrixRows = 64;  // of a warpgroup's matrix instruction
inline constexpr int kFewRows = 16;     // the most query rows of a latent cache that two warpgroups take without roles

/// What the search combines. Which of the families a spec is of follows from the problem, the warps and, of 12, the
/// steps.
inline constexpr int kTensorWarps[] = {4, 8}, kTensorWarpTokens[] = {16, 32}, kTensorStages[] = {1, 2, 3, 4, 6, 8},
                     kTensorCtasPerSm[] = {1, 2, 3};
inline constexpr SearchedLoad kTensorLoads[] = {
    {LoadPath::tensor, kTensorWarps, kTensorWarpTokens, kTensorStages, kTensorCtasPerSm}};

/// With one stage, producer and warpgroups would only wait for each other.
inline constexpr DefaultDepth kEightWarps[] = {{8, 1, 4}, {8, 1, 3}, {8, 1, 2}},
                              kFourWarps[] = {{4, 2, 3}, {4, 2, 2}, {4, 1, 3}, {4, 1, 2}},
                              kEightOrFourWarps[] = {{8, 1, 4}, {8, 1, 3}, {8, 1, 2}, {4, 2, 3},
                                                     {4, 2, 2}, {4, 1, 3}, {4, 1, 2}};

/// What a family can have of a cache whose elements are one byte: rows of a latent cache alone, or K and V too.
enum class ByteRows : std::uint8_t { latent, all };

/// Errors: unsupported (architecture, head sizes, elements).
Result<void> supports_wgmma(const KernelSpec& spec, ByteRows bytes = ByteRows::latent);
/// gathered_step: the longest step, in tokens, whose rows are copied one by one. Errors: invalid_argument, unsupported.
Result<void> fits_wgmma(const KernelSpec& spec, const KernelLayout& layout, int gathered_step = 64);

/// The producer: how KV travels. `buffers`: whether rows to convert wait beside the ring, which takes two warpgroups.
/// `warpgroup`: whether the producer is one anyway.
void lay_out_producer(const KernelSpec& spec, KernelLayout& layout, bool buffers, bool warpgroup);
/// Whether the warps can write an output tile row by row, of which each has a part of `warps_of_row`.
bool writes_rows_whole(const KernelSpec& spec, const KernelLayout& layout, int warps_of_row);

/// The producer's modules, with the matrix instructions of this kernel.
void add_producer(KernelSource& source, const std::string& instructions);
void add_constants_of_warpgroups(KernelSource& source, ConstantGroup group);
/// The function `name` for D[64 x columns] = A[64 x 16] B[16 x columns] (+ D), with A from shared memory or registers.
std::string matrix_instruction(const KernelSource& source, std::string_view name, int columns, bool a_in_registers);

}  // namespace v1
}  // namespace leanattn
