// validate_spec.cpp -- whether a kernel of a spec can exist: its problem, then its family, then its tunables, then what
// they take.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "generator/families/family.hpp"
#include "generator/families/shared.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

bool in(int value, std::initializer_list<int> allowed) {
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
}

Result<void> validate_problem(const KernelSpec& spec) {
  const Features& features = spec.features;
  if (spec.arch.major < 8)
    return unsupported_spec(fmt::format("architecture {} is older than sm_80", to_string(spec.arch)),
                            "use an Ampere or newer GPU");
  if (auto ok = validate(features); !ok) return ok;
  for (const auto& [dim, most] :
       {std::pair(spec.head_dim, largest_head_dim(features)), std::pair(value_dim(spec), 512)}) {
    if (dim < 16 || dim > most || dim % 16 != 0)
      return unsupported_spec(fmt::format("head_dim {} has no kernel", dim),
                              fmt::format("supported: multiples of 16 from 16 to {}", most));
  }
  if (spec.group < 1 || spec.group > 128)
    return unsupported_spec(fmt::format("group {} (query heads per KV head) has no kernel", spec.group),
                            "supported: 1 to 128");
  if (row_format(features) != nullptr) {
    if (auto ok = validate_row_format(features, spec.head_dim, spec.dtype); !ok) return ok;
    if (spec.arch != Arch{9, 0, true})
      return unsupported_spec(fmt::format("KV format {} on {}", to_string(features.kv_format), to_string(spec.arch)),
                              "Rows with a format of their own have kernels on sm_90a (H100, H200) only.");
  }
  const KvElement element = kv_encoding(features).element;
  if (features.append && spec.arch < Arch{8, 9, false} &&
      (element == KvElement::fp8_e4m3 || element == KvElement::fp8_e5m2))
    return unsupported_spec(
        fmt::format("append into a cache of {} on {}", to_string(features.kv_format), to_string(spec.arch)),
        "Conversions to fp8 exist from sm_89 on; int8 works everywhere.");
  if (auto ok = validate_for_head(features, spec.head_dim); !ok) return ok;
  if (auto ok = validate_nibbles(features, spec.head_dim); !ok) return ok;
  if (spec.pdl && spec.arch.major < 9)
    return unsupported_spec(fmt::format("programmatic dependent launch does not exist on {}", to_string(spec.arch)),
                            "it needs sm_90 or newer");
  return {};
}

/// Those whose ranges do not depend on each other.
Result<void> validate_ranges(const KernelSpec& spec) {
  const auto has_steps_of_its_own = [&](const SearchedLoad& searched) {
    return searched.load == spec.load &&
           std::ranges::find(searched.warp_tokens, spec.warp_tokens) != searched.warp_tokens.end();
  };
  if (!in(spec.warp_tokens, {16, 32, 64}) && !std::ranges::any_of(family_of(spec).loads, has_steps_of_its_own))
    return invalid_spec(
        fmt::format("warp_tokens is {}", spec.warp_tokens),
        "choose 16, 32 or 64; prefill kernels with 8 warps also take 20, and those with 12 take 20, 24 and 28");
  if (spec.warps < 1 || spec.warps > 16) return invalid_spec(fmt::format("warps is {}", spec.warps), "choose 1 to 16");
  if (spec.stages < 1 || spec.stages > 8)
    return invalid_spec(fmt::format("stages is {}", spec.stages), "choose 1 to 8");
  if (loads_to_registers(spec.load) && spec.stages != 1)
    return invalid_spec(fmt::format("stages is {} with load path {}", spec.stages, to_string(spec.load)),
                        "it keeps exactly one stage, in registers");
  if (spec.features.batch_invariant && spec.fixup != FixUp::ticket)
    return unsupported_spec(fmt::format("a batch-invariant kernel with fix-up {}", to_string(spec.fixup)),
                            "A CTA may hold many partials of one output tile there; use ticket.");
  return {};
}

Result<void> validate_tunables(const KernelSpec& spec, const KernelLayout& layout) {
  const int step = layout.step_tokens;
  if (spec.tile < step || spec.tile % step != 0 || spec.tile > 4096)
    return invalid_spec(fmt::format("tile is {} tokens", spec.tile),
                        fmt::format("choose a multiple of a step ({} tokens), at most 4096", step));
  if (spec.features.page_size > 0 && step / layout.page_run > 32 && !layout.gathers_rows)
    return unsupported_spec(fmt::format("steps of {} tokens over pages of {}", step, spec.features.page_size),
                            "a warp looks up at most 32 runs a step; use fewer tokens a step");
  return layout.family->fits(spec, layout);
}

Result<void> validate_resources(const KernelSpec& spec, const KernelLayout& layout) {
  if (spec.ctas_per_sm < 1 || spec.ctas_per_sm > 8 || spec.ctas_per_sm * layout.threads > 1024)
    return invalid_spec(fmt::format("ctas_per_sm is {} with {} warps", spec.ctas_per_sm, spec.warps),
                        "choose 1 to 8, with at most 32 warps per SM");
  // The warpgroups trade registers (templates/attend/wgmma.cuh), and ask for most of those of an SM. If a CTA had only
  // a share of them, setmaxnreg would wait forever.
  if (layout.consumer_registers > 0 && spec.ctas_per_sm > 1)
    return unsupported_spec(fmt::format("{} CTAs per SM whose warpgroups trade registers", spec.ctas_per_sm),
                            "choose 1, or 4 warps");
  const int bytes = layout.shared_bytes + layout.static_bytes, most = max_shared_bytes_per_cta(spec.arch),
            most_of_sm = shared_bytes_per_sm(spec.arch);
  if (bytes > most || spec.ctas_per_sm * (bytes + 1024) > most_of_sm)
    return unsupported_spec(
        fmt::format("{} CTAs per SM of {} bytes of shared memory each do not fit {} ({} per CTA, {} per SM)",
                    spec.ctas_per_sm, bytes, to_string(spec.arch), most, most_of_sm),
        "use fewer warps, stages or CTAs per SM");
  return {};
}

}  // namespace

Result<void> validate(const KernelSpec& spec) {
  if (auto ok = validate_problem(spec); !ok) return ok;
  const KernelFamily& family = family_of(spec);
  if (auto ok = family.supports(spec); !ok) return ok;
  if (auto ok = validate_ranges(spec); !ok) return ok;
  const KernelLayout layout = layout_of(spec, family);
  if (auto ok = validate_tunables(spec, layout); !ok) return ok;
  return validate_resources(spec, layout);
}

}  // namespace v1
}  // namespace leanattn
