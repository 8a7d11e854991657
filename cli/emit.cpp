#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/caches.hpp"
#include "cli/commands.hpp"
#include "cli/device_flags.hpp"
#include "cli/shape_flags.hpp"
#include "cli/sizes.hpp"
#include "generator/generator.hpp"
#include "runtime/lookup.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

const std::string kBatchDefault = "1";
const std::string kContextDefault = "8k";

struct EmitFlags {
  ShapeFlags shape;
  DeviceFlags device;
  std::string tile, warps, warp_tokens, stages, ctas_per_sm, load, fixup, out;
};

/// Without --arch and without a GPU there is still an arch to emit for: Hopper's, said aloud.
DeviceFlags with_arch(const Session& session, DeviceFlags flags) {
  if (flags.arch.empty() && flags.sms.empty() && !device_facts(flags.device)) {
    flags.arch = "sm_90a";
    note(session, "No GPU here: emitting for sm_90a; --arch names another.");
  }
  return flags;
}

Result<KernelSpec> with_overrides(KernelSpec spec, const EmitFlags& flags) {
  struct Field {
    const char* flag;
    const std::string& text;
    int& value;
  };
  for (const Field& field :
       {Field{"--tile", flags.tile, spec.tile}, Field{"--warps", flags.warps, spec.warps},
        Field{"--warp-tokens", flags.warp_tokens, spec.warp_tokens}, Field{"--stages", flags.stages, spec.stages},
        Field{"--ctas-per-sm", flags.ctas_per_sm, spec.ctas_per_sm}}) {
    if (field.text.empty()) continue;
    const Result<std::int64_t> value = parse_size(field.flag, field.text, 1, 1 << 20);
    if (!value) return tl::unexpected(value.error());
    field.value = static_cast<int>(*value);
  }
  if (!flags.load.empty()) {
    const Result<LoadPath> load = parse_load_path(flags.load);
    if (!load) return tl::unexpected(load.error());
    spec.load = *load;
    // Direct loads have no ring, so a depth that was chosen for another path must not stand in the way.
    if (loads_to_registers(*load) && flags.stages.empty()) spec.stages = 1;
  }
  if (!flags.fixup.empty()) {
    const Result<FixUp> fixup = parse_fix_up(flags.fixup);
    if (!fixup) return tl::unexpected(fixup.error());
    spec.fixup = *fixup;
  }
  // lookup answers an arch without dependent launch all the same; a kernel for it cannot be written.
  if (flags.shape.pdl) spec.pdl = true;
  // An occupancy that was chosen for another CTA must not stand in the way either.
  const bool other_cta = !flags.tile.empty() || !flags.warps.empty() || !flags.warp_tokens.empty() ||
                         !flags.stages.empty() || !flags.load.empty();
  if (other_cta && flags.ctas_per_sm.empty()) spec.ctas_per_sm = 1;
  if (const Result<void> valid = validate(spec); !valid) return tl::unexpected(valid.error());
  return spec;
}

int run(const Session& session, const EmitFlags& flags) {
  const Result<Workload> workload = resolve(flags.shape, kBatchDefault, kContextDefault);
  if (!workload) return report_error(workload.error());
  if (workload->shapes.size() != 1) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("{} shapes: emit writes one kernel", workload->shapes.size()),
                         "Give one --batch and one --context.",
                         {}});
  }
  const Result<Caches> caches = open_caches(session, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const Result<Target> target = resolve_target(with_arch(session, flags.device), *caches);
  if (!target) return report_error(target.error());
  const LayeredWinners layers = load_layered_winners(target->model, caches->directory, current_software(target->facts));
  for (const std::string& warning : layers.warnings) warn(warning);
  const Choice choice = WinnerTable::build(target->facts, layers).find(workload->problem, workload->shapes.front());

  const Result<KernelSpec> spec = with_overrides(choice.config.spec, flags);
  if (!spec) return report_error(spec.error());
  const Result<EmittedKernel> kernel = emit(*spec);
  if (!kernel) return report_error(kernel.error());

  std::string text = kernel->source;
  if (session.json) {
    const nlohmann::ordered_json document{
        {"schema_version", 1},
        {"kernel", kernel_name(*spec)},
        {"spec", nlohmann::ordered_json::parse(to_json(*spec))},
        {"entry", kernel->entry},
        {"threads", kernel->threads},
        {"shared_bytes", kernel->shared_bytes},
        {"provenance", *spec == choice.config.spec ? to_string(choice.provenance) : "flags"},
        {"source", kernel->source}};
    text = document.dump(2) + "\n";
  }
  if (flags.out.empty()) {
    print(text);
    return kExitOk;
  }
  std::ofstream file(flags.out, std::ios::binary);
  file << text << std::flush;
  if (!file) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("--out {}: cannot be written: {}", flags.out, std::strerror(errno)),
                         {},
                         {}});
  }
  note(session, fmt::format("{}: {} ({} bytes)", flags.out, kernel_name(*spec), text.size()));
  return kExitOk;
}

}  // namespace

Command add_emit(CLI::App& program) {
  auto flags = std::make_shared<EmitFlags>();
  CLI::App* app = program.add_subcommand("emit", "Print the CUDA source of a kernel; needs no GPU");
  add_shape_flags(*app, flags->shape, kBatchDefault, kContextDefault);
  add_device_flags(*app, flags->device);
  const auto option = [&](const char* name, std::string& value, const char* help) {
    app->add_option(name, value, help)->group("Kernel");
  };
  option("--tile", flags->tile, "LeanTile in tokens");
  option("--warps", flags->warps, "Warps a CTA");
  option("--warp-tokens", flags->warp_tokens, "Tokens a warp takes per step: 16, 32 or 64");
  option("--stages", flags->stages, "Ring depth");
  option("--ctas-per-sm", flags->ctas_per_sm, "CTAs that one SM must be able to hold");
  option("--load", flags->load, "Kernel family: ldg, cp_async, bulk, tensor or vector");
  option("--fixup", flags->fixup,
         "ticket: the last arriver merges; wait: all contributors wait and reduce a slice each");
  app->add_option("-o,--out", flags->out, "Write to a file instead of stdout")->type_name("FILE");
  return {app, [flags](const Session& session) { return run(session, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
