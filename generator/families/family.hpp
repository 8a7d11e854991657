// family.hpp -- KernelFamily: one algorithm with all that is known of it, and the registry of families. Constants; any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "generator/kernel_layout.hpp"

namespace leanattn {
inline namespace v1 {

struct KernelSource;                      // kernel_source.hpp
enum class ConstantGroup : std::uint8_t;  // kernel_source.hpp

/// A load path of a family, with the tunables that the search combines on it.
struct SearchedLoad {
  LoadPath load;
  std::span<const int> warps, warp_tokens, stages, ctas_per_sm;
};

/// Tunables with which a default configuration may be safe.
struct DefaultDepth {
  int warps, ctas_per_sm, stages;
  int warp_tokens = 16;  ///< which leaves registers for the accumulators
};

/// One of two walks that share a CTA: a kernel of its own but for what the CTA has once.
struct KernelHalf {
  KernelSpec spec;
  KernelLayout layout;
};

struct KernelFamily {
  std::string_view name;         ///< such as "wgmma_rows", which is also the name of its file
  std::string_view description;  ///< one line
  std::span<const SearchedLoad> loads;

  /// Whether a spec of one of these load paths is of this family, unless one before it in families() takes it.
  bool (*takes)(const KernelSpec& spec) = [](const KernelSpec&) { return true; };
  /// Whether it has kernels for the spec's problem on the spec's architecture and load path. Errors: unsupported.
  Result<void> (*supports)(const KernelSpec& spec);
  /// Whether it has kernels with the spec's tunables. Errors: invalid_argument, unsupported.
  Result<void> (*fits)(const KernelSpec& spec, const KernelLayout& layout);

  /// The most query rows of an output tile.
  int (*most_rows)(const KernelSpec& spec);
  /// Fills in how KV travels, the producer, the shared memory and how results are written. The query rows are known.
  void (*lay_out)(const KernelSpec& spec, KernelLayout& layout);
  bool query_rows_lead = false;  ///< whether query rows, not tokens, take the rows of the matrix instructions
  bool rows_are_split = false;   ///< whether all warps take every step, each for query rows of its own
  bool counts_partials = false;  ///< whether partials are counted where contributors wait for each other
  /// Of kernels for prefill, about the microseconds that 128 tokens of 128 + 128 columns take an output tile. 0: none
  /// is.
  double prefill_us = 0;
  /// How dims follow each other in the columns that ranks of a group send (first_dim of templates/attend/). Families of
  /// the same number can be launched by the ranks of one group.
  int exchange_order = 0;

  /// Adds the modules between the line's and the merge's.
  void (*add_modules)(KernelSource& source);
  /// Adds the constants of its own that belong to a group of them.
  void (*add_constants)(KernelSource& source, ConstantGroup group);
  std::string_view result_columns = {};  ///< the module that says where held results lie; empty: it holds none
  std::string_view cta = {};             ///< the module with what a CTA's warps do; empty: the entry point says it
  std::string_view entry;                ///< the module with the entry point
  /// The walks of which its kernels consist, which have all modules but the entry point's. Null: one, its own.
  std::array<KernelHalf, 2> (*halves)(const KernelSpec& spec) = nullptr;

  /// The depths of default configurations for a spec's problem and load path, the best first.
  std::span<const DefaultDepth> (*default_depths)(const KernelSpec& spec);
  /// What NVRTC 13.0 gives most of its kernels if the launch bounds leave it enough.
  int (*typical_registers)(const KernelSpec& spec, const KernelLayout& layout);
  /// The registers below which a kernel surely spills.
  int (*least_registers)(const KernelSpec& spec, const KernelLayout& layout);
};

extern const KernelFamily kMma, kMmaPrefill, kVector, kWgmmaMixed, kWgmmaPrefill, kWgmmaRoles, kWgmmaRows, kWgmmaTokens;

/// All families. Of those that take a spec, the first one has it.
std::span<const KernelFamily* const> families();
/// The family of a spec. It is no field of the spec, because load path, warps and the problem say it, and a field could
/// contradict them.
const KernelFamily& family_of(const KernelSpec& spec);
/// Whether a family has a load path.
bool has_load(const KernelFamily& family, LoadPath load);

}  // namespace v1
}  // namespace leanattn
