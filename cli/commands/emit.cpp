#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/device_flags.hpp"
#include "cli/flags/files.hpp"
#include "cli/flags/request_flags.hpp"
#include "cli/flags/shape_flags.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "generator/generator.hpp"
#include "generator/parse_enum.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/winner_table.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

const std::string kEmitBatch = "1";
const std::string kEmitContext = "8k";

struct EmitFlags {
  ShapeFlags shape;
  RequestFlags requests;
  DeviceFlags device;
  std::string tile, warps, warp_tokens, stages, ctas_per_sm, load, fixup, out;
};

/// `spec` with the flags' tunables. `usual`: the problem's default, whose tunables suit every load path.
Result<KernelSpec> with_overrides(KernelSpec spec, const KernelSpec& usual, const EmitFlags& flags) {
  if (!flags.load.empty()) {
    const Result<LoadPath> load = parse_load_path(flags.load);
    if (!load) return tl::unexpected(load.error());
    // What was tuned for one load path need not suit another.
    if (*load != spec.load) spec = usual;
    spec.load = *load;
    // A load path without a ring has one stage.
    if (loads_to_registers(*load)) spec.stages = 1;
  }
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
  if (!flags.fixup.empty()) {
    const Result<FixUp> fixup = parse_fix_up(flags.fixup);
    if (!fixup) return tl::unexpected(fixup.error());
    spec.fixup = *fixup;
  }
  // A look-up may answer an ordinary launch all the same. With the flag, the kernel of a dependent launch is written,
  // or refused where the architecture has none.
  if (flags.shape.pdl) spec.pdl = true;
  // The number of CTAs per SM was chosen for the CTA of the look-up's answer, and need not hold for another.
  const bool other_cta = !flags.tile.empty() || !flags.warps.empty() || !flags.warp_tokens.empty() ||
                         !flags.stages.empty() || !flags.load.empty();
  if (other_cta && flags.ctas_per_sm.empty()) spec.ctas_per_sm = 1;
  if (const Result<void> valid = validate(spec); !valid) return tl::unexpected(valid.error());
  return spec;
}

int run(const Console& console, const EmitFlags& flags) {
  Result<Workload> workload = resolve(console, flags.shape, kEmitBatch, kEmitContext);
  if (!workload) return report_error(workload.error());
  if (const auto step = resolve_requests(flags.requests, *workload); !step) return report_error(step.error());
  if (workload->shapes.size() != 1) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("emit writes one kernel, but {} shapes were given", workload->shapes.size()),
                         "Give one --batch and one --context.",
                         {}});
  }
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const Result<Target> target = resolve_target(or_hopper(console, flags.device), *caches);
  if (!target) return report_error(target.error());
  const LayeredWinners layers = load_layered_winners(target->model, caches->directory, current_software(target->facts));
  for (const std::string& warning : layers.warnings) warn(warning);
  const Choice choice = WinnerTable::build(target->facts, layers).find(workload->problem, workload->shapes.front());

  const Result<KernelSpec> spec = with_overrides(
      choice.config.spec, default_config({target->facts, workload->problem, workload->shapes.front()}).spec, flags);
  if (!spec) return report_error(spec.error());
  const Result<EmittedKernel> kernel = emit(*spec);
  if (!kernel) return report_error(kernel.error());

  std::string text = kernel->source;
  if (console.json) {
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
  return put_kernel(console, flags.out, kernel_name(*spec), text);
}

}  // namespace

Command add_emit(CLI::App& program) {
  auto flags = std::make_shared<EmitFlags>();
  CLI::App* app = program.add_subcommand("emit", "Print the CUDA source of a kernel; no GPU is needed");
  add_shape_flags(*app, flags->shape, kEmitBatch, kEmitContext);
  add_request_flags(*app, flags->requests);
  add_device_flags(*app, flags->device);
  const auto option = [&](const char* name, std::string& value, const char* help, const std::string& type = "N") {
    app->add_option(name, value, help)->type_name(type)->group("Kernel");
  };
  option("--tile", flags->tile, "The LeanTile, in tokens");
  option("--warps", flags->warps, "The number of warps of a CTA");
  option("--warp-tokens", flags->warp_tokens,
         "How many tokens a warp takes in a step: 16, 32 or 64; with prefill also 20");
  option("--stages", flags->stages, "The number of stages of the ring");
  option("--ctas-per-sm", flags->ctas_per_sm, "How many CTAs one SM must be able to hold");
  option("--load", flags->load, "The load path", names_of(kLoadPaths, "|"));
  option(
      "--fixup", flags->fixup,
      "The fix-up. ticket: the contributor that arrives last merges; wait: all contributors wait, and each reduces a "
      "slice",
      "ticket|wait");
  app->add_option("-o,--out", flags->out, "Write to this file instead of stdout")->type_name("FILE");
  set_examples(*app, {{"Write the kernel that a look-up answers for an H100",
                       "leanattn emit --model llama-3-8b --arch h100 --out kernel.cu"},
                      {"Choose the kernel's parameters",
                       "leanattn emit --model llama-3-8b --arch sm_80 --load cp_async --tile 64"}});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
