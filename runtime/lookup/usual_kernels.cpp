// usual_kernels.cpp -- the table of usual kernels, made to fit a problem.
#include "runtime/lookup/usual_kernels.hpp"

#include <algorithm>
#include <span>

#include "generator/kernel_layout.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

struct Tunables {
  LoadPath load;
  FixUp fixup;
  int tile, warps, warp_tokens, stages, ctas_per_sm;
};

// Kernels that won for several shapes on an H200 (bench/results/h200/tuning_report.json.gz), and those of two warps for
// random problems on an H100. Deep rings of load path tensor stream long contexts. Kernels that wait merge sooner when
// many CTAs share an output tile. Several CTAs on an SM, and registers instead of a ring, suit many short contexts,
// because one CTA streams while another one starts or ends a segment.
constexpr Tunables kDense[] = {
    {LoadPath::tensor, FixUp::ticket, 128, 8, 16, 4, 1}, {LoadPath::tensor, FixUp::wait, 128, 8, 16, 4, 1},
    {LoadPath::tensor, FixUp::ticket, 64, 4, 16, 3, 1},  {LoadPath::tensor, FixUp::ticket, 64, 4, 16, 2, 3},
    {LoadPath::bulk, FixUp::wait, 64, 4, 32, 2, 1},      {LoadPath::bulk, FixUp::ticket, 64, 8, 16, 2, 1},
    {LoadPath::bulk, FixUp::ticket, 64, 4, 16, 2, 2},    {LoadPath::cp_async, FixUp::ticket, 64, 4, 16, 3, 2},
    {LoadPath::ldg, FixUp::ticket, 32, 2, 16, 1, 3},     {LoadPath::bulk, FixUp::ticket, 16, 2, 16, 1, 4},
    {LoadPath::bulk, FixUp::ticket, 32, 2, 16, 3, 4},    {LoadPath::cp_async, FixUp::ticket, 32, 2, 16, 3, 4},
};
constexpr Tunables kFewRows[] = {
    {LoadPath::vector, FixUp::ticket, 16, 2, 16, 1, 4},
    {LoadPath::vector, FixUp::ticket, 32, 8, 32, 1, 1},
    {LoadPath::vector, FixUp::ticket, 64, 4, 16, 1, 2},
};
// Two row blocks of up to 64 rows each, in long steps, instead of one of more rows.
constexpr Tunables kManyRows[] = {
    {LoadPath::tensor, FixUp::wait, 128, 4, 32, 2, 1},
    {LoadPath::tensor, FixUp::wait, 128, 4, 32, 3, 2},
};
// Three warpgroups with 64 query rows each, whose steps are as long as registers allow.
constexpr Tunables kPrefill[] = {
    {LoadPath::tensor, FixUp::ticket, 112, 12, 28, 4, 1},
    {LoadPath::tensor, FixUp::ticket, 80, 12, 20, 4, 1},
};
constexpr Tunables kLatent[] = {
    {LoadPath::tensor, FixUp::ticket, 128, 4, 16, 2, 1}, {LoadPath::tensor, FixUp::ticket, 64, 8, 16, 2, 1},
    {LoadPath::tensor, FixUp::wait, 128, 4, 16, 2, 1},   {LoadPath::tensor, FixUp::wait, 64, 4, 16, 2, 1},
    {LoadPath::tensor, FixUp::wait, 64, 4, 16, 1, 1},    {LoadPath::tensor, FixUp::wait, 64, 8, 16, 2, 1},
};

/// Whether contributors that wait take a strip of the columns each.
bool has_wide_partials(const KernelSpec& spec) {
  const KernelLayout layout = layout_of(spec);
  return layout.has_large_partials || layout.strip_loads > 1;
}

}  // namespace

std::vector<KernelSpec> usual_kernels(const DeviceFacts& device, const DecodeProblem& problem) {
  const KernelSpec base = base_spec(device.arch, problem);
  std::vector<KernelSpec> kernels;
  const auto add = [&](const KernelSpec& spec) {
    if (std::find(kernels.begin(), kernels.end(), spec) == kernels.end()) kernels.push_back(spec);
  };
  /// Whether there is one.
  const auto add_made = [&](const Tunables& tunables) {
    KernelSpec from = base;
    from.head_dim = 128;  // for which they proved fast; rows of some other heads do not suit load path vector
    from.load = tunables.load, from.fixup = tunables.fixup, from.tile = tunables.tile;
    from.warps = tunables.warps, from.warp_tokens = tunables.warp_tokens, from.stages = tunables.stages;
    from.ctas_per_sm = tunables.ctas_per_sm;
    const auto spec = with_tunables_of(base, from);
    const bool made = spec && !surely_spills(*spec);
    if (made) add(*spec);
    return made;
  };
  // Those for decode are slower.
  if (has_prefill(problem.features)) {
    add(default_config({device, problem, {}}).spec);
    static_cast<void>(std::ranges::any_of(kPrefill, add_made));  // the first
    return kernels;
  }
  for (const Config& config : default_configs({device, problem, {}})) {
    // default_config() chooses the fix-up by the shape. Where nothing is shared, both are as fast, and the first one
    // counts. Where partials are wide, merging one takes so long that contributors which wait merge sooner.
    for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
      KernelSpec spec = config.spec;
      spec.fixup = fixup;
      if (fixup == config.spec.fixup || (has_wide_partials(spec) && validate(spec))) add(spec);
    }
    if (problem.features.batch_invariant) return {config.spec};
  }
  const auto add_all = [&](std::span<const Tunables> table) { std::ranges::for_each(table, add_made); };
  if (base.features.latent) {
    add_all(kLatent);
  } else {
    add_all(kDense);
    const int rows = query_rows(base.features, base.group);
    if (rows <= 2) add_all(kFewRows);
    if (rows > 32) add_all(kManyRows);
  }
  return kernels;
}

}  // namespace v1
}  // namespace leanattn
