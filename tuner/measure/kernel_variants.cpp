#include "tuner/measure/kernel_variants.hpp"
#include "generator/families/family.hpp"
#include "generator/kernel_layout.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace {

/// Puts `replacement` where `piece` stands. The source must have `piece` exactly once.
Result<void> replace_once(EmittedKernel& kernel, std::string_view piece, std::string_view replacement) {
  const std::size_t at = kernel.source.find(piece);
  if (at == std::string::npos || kernel.source.find(piece, at + 1) != std::string::npos)
    return fail(ErrorCode::internal, fmt::format("{} does not have this in one place: {}", kernel.entry, piece));
  kernel.source.replace(at, piece.size(), replacement);
  return {};
}

// The definition of kMoments is put before this.
constexpr std::string_view kStampFunction =
    R"(LEAN_DEVICE void stamp(const LeanDecodeArgs& args, u32 moment, u32 thread) {
  if (threadIdx.x != thread) return;
  u32* const to = (u32*)args.lse + 2 * (blockIdx.x * kMoments + moment);
  asm volatile("{ .reg .u32 c, t; mov.u32 c, %%clock; mov.u32 t, %%globaltimer_lo; st.global.v2.u32 [%0], {c, t}; }" ::"l"(to)
               : "memory");
}

)";

std::string stamp_at(Moment moment, std::string_view thread = "0") {
  return fmt::format("stamp(args, {}, {}); ", static_cast<int>(moment), thread);
}

}  // namespace

Result<EmittedKernel> without_merging(EmittedKernel kernel) {
  const Result<void> cut =
      kernel.spec.fixup == FixUp::wait
          ? replace_once(kernel, "  end_fix_up(args);\n", "")
          : replace_once(kernel, "  if (!is_last(args, share_ticket<0>(f.ticket), f.members)) return;\n",
                         "  return;\n");
  if (!cut) return tl::unexpected(cut.error());
  if (layout_of(kernel.spec)
          .counts_partials) {  // a count that nobody waits for would stay, and nobody may wait for one
    if (auto uncounted = replace_once(kernel, "  count_partial(args, f.c);\n", ""); !uncounted)
      return tl::unexpected(uncounted.error());
    if (auto alone = replace_once(kernel, "whole || completes_pair(args, fix, attention)", "whole"); !alone)
      return tl::unexpected(alone.error());
  }
  return kernel;
}

std::string_view to_string(Moment moment) {
  switch (moment) {
    case Moment::started: return "started";
    case Moment::placed: return "placed";
    case Moment::requested: return "requested";
    case Moment::streamed: return "streamed";
    case Moment::gathered: return "gathered";
    case Moment::finished: return "finished";
    case Moment::done: return "done";
  }
  return "?";
}

Result<EmittedKernel> with_stamps(EmittedKernel kernel) {
  if (kernel.spec.lse)
    return fail(ErrorCode::invalid_argument, "stamps go where the LSE would: emit the kernel without it");
  const std::string function = fmt::format("constexpr u32 kMoments = {};\n{}", kMoments, kStampFunction);
  struct Edit {
    std::string_view piece;
    std::string before, after;
  };
  // Kernels whose warpgroups have roles have a main loop of their own (templates/decode_roles.cuh).
  const bool roles = family_of(kernel.spec).entry == "decode_roles.cuh", tensor = kernel.spec.load == LoadPath::tensor;
  std::vector<Edit> edits = {
      {"extern \"C\" __global__ void", function, ""},
      {"const int length = first_length(args);", stamp_at(Moment::started), ""},
      {tensor ? "const bool any = start_walk(args, length, part_sums, walk);"
              : "if (!start_walk(args, length, part_sums, walk)) return;",
       "", fmt::format(" {}{}", tensor ? "if (any) " : "", stamp_at(Moment::placed))},
      {roles ? "if (!whole) begin_fix_up(args, walk, fix);" : "if (!whole) begin_fix_up(args, here, fix);",
       stamp_at(Moment::streamed), ""},
      {roles    ? "finish_segment(args, walk, complete, fix, attention);"
       : tensor ? "finish_segment(args, here, whole, fix, results_of(buffer, attention));"
                : "finish_segment(args, here, whole, fix, buffer);",
       roles ? "" : stamp_at(Moment::gathered), fmt::format(" {}", stamp_at(Moment::finished))},
  };
  if (roles)  // in front of waiting for another contributor
    edits.push_back({"const bool complete = whole", stamp_at(Moment::gathered), ""});
  if (tensor) {
    edits.push_back({"if (any && (kGathers ||", "if (any) " + stamp_at(Moment::requested, "kThreads"), ""});
  } else {
    const bool ahead = !loads_to_registers(kernel.spec.load);
    edits.push_back(
        {ahead ? "\n  issue_loads();" : "\n    issue_loads();", "", fmt::format(" {}", stamp_at(Moment::requested))});
  }
  for (const Edit& edit : edits) {
    const std::string text = edit.before + std::string(edit.piece) + edit.after;
    if (auto replaced = replace_once(kernel, edit.piece, text); !replaced) return tl::unexpected(replaced.error());
  }
  // The entry point is the last declaration.
  const std::size_t end = kernel.source.rfind("\n}");
  kernel.source.insert(end, fmt::format("\n  {}{}", roles ? "if (any) " : "", stamp_at(Moment::done)));
  return kernel;
}

}  // namespace v1
}  // namespace leanattn
