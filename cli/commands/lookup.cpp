
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/device_flags.hpp"
#include "cli/flags/request_flags.hpp"
#include "cli/flags/shape_flags.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "cli/models/models_json.hpp"
#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/engine/plan.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tuner/report/names.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

const std::string kLookupBatch = "1";
const std::string kLookupContext = "8k";

struct LookupFlags {
  ShapeFlags shape;
  RequestFlags requests;
  DeviceFlags device;
  bool explain = false;
  std::string require, link;
};

/// The sizes of one launch of an answer.
struct Launch {
  std::int64_t output_tiles = 0, lean_tiles = 0, workspace_bytes = 0;
};

Launch launch_of(const DecodeStep& step, const Config& config) {
  return {output_tiles(step, config.spec), lean_tiles(step, config.spec),
          workspace_for(step.problem, plan_size(step.problem, step.shape), config).total_bytes};
}

/// Says so when an answer for dependent launches was measured with ordinary ones, or the other way round.
std::string launch_caveat(const Choice& choice) {
  if (choice.tuned_us <= 0 || choice.tuned_pdl == choice.config.spec.pdl) return "";
  return choice.tuned_pdl ? "; it was measured with dependent launches" : "; it was measured with ordinary launches";
}

/// The measured time on which an answer rests. Where it is of another shape the cell says of which.
std::string measured_us(const Shape& shape, const Choice& choice) {
  if (choice.tuned_us <= 0) return "-";
  const std::string us = fmt::format("{:.1f}", choice.tuned_us);
  const bool of_this = without_max_batch(choice.tuned_shape) == without_max_batch(shape);
  return of_this ? us : fmt::format("{} of {}", us, detail::shape_name(choice.tuned_shape));
}

std::string why(const Choice& choice) {
  switch (choice.provenance) {
    case Provenance::exact: return "this shape was measured";
    case Provenance::bucket:
      return fmt::format("{}, a shape of the same bucket, was measured; the cost model chose kernel and grid{}",
                         describe(choice.tuned_shape), launch_caveat(choice));
    case Provenance::nearest:
      if (choice.taken_over)
        return fmt::format("{} was measured for a problem that streams KV alike; kernel and grid are taken from there",
                           describe(choice.tuned_shape));
      return fmt::format("{}, the nearest tuned shape, was measured; the cost model chose kernel and grid{}",
                         describe(choice.tuned_shape), launch_caveat(choice));
    case Provenance::model: return "no tuned shape is near; the cost model ranks this configuration first";
    case Provenance::fallback:
      if (choice.config.spec.features.batch_invariant)
        return "this shape was not measured, and batch-invariant problems take no other shape's grid";
      if (has_prefill(choice.config.spec.features))
        return "this is a default configuration, because it is not known how many query tokens the requests have, or "
               "nothing is tuned on this GPU for steps with prefill";
      return "nothing is tuned on this GPU over a cache of this kind; of the usual kernels the cost model ranks this "
             "configuration first";
    case Provenance::without_pdl:
      return fmt::format("{} was measured with ordinary launches; the cost model chose kernel and grid{}",
                         describe(choice.tuned_shape),
                         choice.config.spec.pdl ? " for dependent ones"
                                                : ", and expects an ordinary launch to be faster than dependent ones");
  }
  return "";
}

/// Which database the answer is from.
std::string describe_layer(std::string_view layer) {
  if (layer == "user") return "user: tuned into the cache directory";
  if (layer == "site") return "site: the database that LEANATTN_SITE_DB names";
  if (layer == "shipped") return "shipped: a database that came with leanattn, or that LEANATTN_SHIPPED_DB names";
  return "none: no database has a winner that helps";
}

/// What the time of an answer for a group is that of.
std::string group_basis(const Choice& choice) {
  if (choice.tuned_us <= 0) return "nothing was measured, neither in a group nor for the part of one rank";
  if (!choice.tuned_group) return "measured for the part of one rank alone, without the exchange";
  return fmt::format("measured on all ranks together, with the exchange ({})",
                     choice.tuned_link == GroupLink::unknown ? "link unknown" : to_string(choice.tuned_link));
}

void print_explanation(const DecodeStep& step, const Choice& choice) {
  const KernelSpec& spec = choice.config.spec;
  const Features& features = step.problem.features;
  const Launch launch = launch_of(step, choice.config);
  print_text(fmt::format("{}\n", describe(step.shape)));
  print_text(fmt::format("  why         {}: {}\n", to_string(choice.provenance), why(choice)));
  if (choice.tuned_us > 0) {
    print_text(fmt::format("  measured    {:.1f} us for {}{}{}\n", choice.tuned_us, describe(choice.tuned_shape),
                           choice.tuned_nvrtc.empty() ? "" : ", compiled by NVRTC " + choice.tuned_nvrtc,
                           choice.stale ? ", stale because driver, NVRTC or kernel have changed since" : ""));
  }
  if (in_group(features))
    print_text(fmt::format("  group       {} ranks: {}\n", features.context_parallel, group_basis(choice)));
  print_text(fmt::format("  layer       {}\n", describe_layer(choice.layer)));
  if (choice.predicted_us > 0 && !choice.taken_over)
    print_text(fmt::format("  expected    {:.1f} us by the cost model\n", choice.predicted_us));
  if (!is_plain(features)) print_text(fmt::format("  features    {}\n", to_json(features)));
  if (const std::int64_t visible = total_tokens(step.visible), all = total_tokens(step.shape); visible < all)
    print_text(fmt::format("  window      {} of {} tokens are read\n", visible, all));
  print_text(fmt::format("  kernel      {}\n", kernel_name(spec)));
  print_text(fmt::format("  CTA         {} warps, {} LeanTile tokens, {} stages by {}, {} B shared memory\n",
                         spec.warps, spec.tile, spec.stages, to_string(spec.load), layout_of(spec).shared_bytes));
  print_text(fmt::format("  fix-up      {}\n", to_string(spec.fixup)));
  print_text(fmt::format("  launch      {}\n",
                         spec.pdl ? "may overlap the kernel in front of it (programmatic dependent launch)"
                                  : "starts when the kernel in front of it has ended"));
  print_text(fmt::format(
      "  grid        {} CTAs over {} LeanTiles of {} output tiles: {:.2f} LeanTiles per CTA, {:.2f} CTAs per "
      "output tile\n",
      choice.config.grid, launch.lean_tiles, launch.output_tiles,
      static_cast<double>(launch.lean_tiles) / static_cast<double>(choice.config.grid),
      static_cast<double>(choice.config.grid) / static_cast<double>(launch.output_tiles)));
  if (choice.config.segment_cost > 0) {
    print_text(fmt::format("  schedule    {} LeanTile{} charged for each output tile, beside its own\n",
                           choice.config.segment_cost, choice.config.segment_cost == 1 ? " is" : "s are"));
  }
  if (spec.load == LoadPath::tensor) {
    print_text(
        fmt::format("  L2          fetches {} bytes for a tensor copy that misses\n", choice.config.l2_promotion));
  }
  print_text(fmt::format("  workspace   {}\n", format_bytes(launch.workspace_bytes)));
}

Json json_of(const DecodeStep& step, const Choice& choice) {
  const Launch launch = launch_of(step, choice.config);
  const bool measured = choice.tuned_us > 0;
  return {{"shape", Json::parse(to_json(step.shape))},
          {"provenance", to_string(choice.provenance)},
          {"why", why(choice)},
          {"kernel", kernel_name(choice.config.spec)},
          {"config", Json::parse(to_json(choice.config))},
          {"output_tiles", launch.output_tiles},
          {"lean_tiles", launch.lean_tiles},
          {"visible_tokens", total_tokens(step.visible)},
          {"workspace_bytes", launch.workspace_bytes},
          {"tuned_us", measured ? Json(choice.tuned_us) : Json(nullptr)},
          {"tuned_shape", measured ? Json::parse(to_json(choice.tuned_shape)) : Json(nullptr)},
          {"predicted_us", choice.predicted_us > 0 ? Json(choice.predicted_us) : Json(nullptr)},
          {"layer", choice.layer},
          {"stale", choice.stale},
          {"tuned_nvrtc", measured && !choice.tuned_nvrtc.empty() ? Json(choice.tuned_nvrtc) : Json(nullptr)},
          {"pdl", choice.config.spec.pdl},
          {"tuned_pdl", measured ? Json(choice.tuned_pdl) : Json(nullptr)},
          {"tuned_link", measured && choice.tuned_group ? Json(to_string(choice.tuned_link)) : Json(nullptr)}};
}

Result<Provenance> parse_provenance(const std::string& text) {
  for (const Provenance p : {Provenance::exact, Provenance::bucket, Provenance::without_pdl, Provenance::nearest,
                             Provenance::model, Provenance::fallback}) {
    if (to_string(p) == text) return p;
  }
  return fail(ErrorCode::invalid_argument, fmt::format("--require '{}' is not a provenance", text),
              "Give exact, bucket, without_pdl, nearest, model or fallback.");
}

/// Gives every problem the link that --link names.
Result<void> set_link(const std::string& text, std::vector<Workload>& workloads) {
  if (text.empty()) return {};
  if (!in_group(workloads.front().problem.features))
    return fail(ErrorCode::invalid_argument,
                fmt::format("--link {} is about a group, and --context-parallel is not given", text),
                "Give --context-parallel, the number of ranks, or leave --link out.");
  const Result<GroupLink> link = parse_group_link(text);
  if (!link) return tl::unexpected(link.error());
  for (Workload& workload : workloads) workload.problem.group_link = *link;
  return {};
}

/// Prints the answers for one problem, or gives them as JSON. `missing` counts those that are worse than allowed.
Json answer(const Console& console, const LookupFlags& flags, const Target& target, const WinnerTable& winners,
            const Workload& workload, Provenance worst_allowed, int& missing) {
  Json answers = Json::array();
  Table table{.headings = {"batch", "context", "from", "layer", "measured us", "grid", "workspace", "kernel"},
              .rows = {},
              .right_aligned = "rrllrrrl"};
  for (const Shape& shape : workload.shapes) {
    const Choice choice = winners.find(workload.problem, shape);
    const DecodeStep step(target.facts, workload.problem, shape);
    if (rank(choice.provenance) > rank(worst_allowed)) ++missing;
    if (console.json) {
      answers.push_back(json_of(step, choice));
    } else if (flags.explain) {
      print_explanation(step, choice);
    } else {
      table.rows.push_back(
          {std::to_string(shape.batch), contexts_name(shape),
           std::string(to_string(choice.provenance)) + (choice.stale ? " (stale)" : ""),
           choice.layer.empty() ? "-" : choice.layer, measured_us(shape, choice), std::to_string(choice.config.grid),
           format_bytes(launch_of(step, choice.config).workspace_bytes), kernel_name(choice.config.spec)});
    }
  }
  if (!console.json && !flags.explain) print_table(table);
  return answers;
}

int run(const Console& console, const LookupFlags& flags) {
  Result<ModelWorkloads> model = resolve_all(console, flags.shape, kLookupBatch, kLookupContext);
  if (!model) return report_error(model.error());
  if (const auto linked = set_link(flags.link, model->workloads); !linked) return report_error(linked.error());
  Provenance worst_allowed = Provenance::fallback;
  if (!flags.require.empty()) {
    const Result<Provenance> required = parse_provenance(flags.require);
    if (!required) return report_error(required.error());
    worst_allowed = *required;
  }
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const Result<Target> target = resolve_target(flags.device, *caches);
  if (!target) return report_error(target.error());
  for (Workload& workload : model->workloads) {
    if (const auto step = resolve_requests(flags.requests, workload); !step) return report_error(step.error());
    if (const auto valid = validate_on(target->facts, workload.problem); !valid) return report_error(valid.error());
  }
  const LayeredWinners layers = load_layered_winners(target->model, caches->directory, current_software(target->facts));
  for (const std::string& warning : layers.warnings) warn(warning);
  const WinnerTable winners = WinnerTable::build(target->facts, layers);
  if (winners.skipped() > 0)
    warn(fmt::format("{} winners were written by another version and are left out", winners.skipped()));

  Json document{{"schema_version", 1},
                {"device", target->facts.name},
                {"arch", to_string(target->facts.arch)},
                {"sms", target->facts.sm_count}};
  if (model->model) document["model"] = to_json(*model->model);
  const bool several = model->workloads.size() > 1;
  if (several) document["problems"] = Json::array();
  int missing = 0;
  std::size_t shapes = 0;
  for (const Workload& workload : model->workloads) {
    shapes += workload.shapes.size();
    if (several && !console.json)
      print_text(fmt::format("{}{}{}\n", shapes > workload.shapes.size() ? "\n" : "", describe(workload.problem),
                             workload.layers.empty() ? "" : fmt::format(" ({})", workload.layers)));
    Json answers = answer(console, flags, *target, winners, workload, worst_allowed, missing);
    Json problem = Json::parse(to_json(workload.problem));
    if (several) {
      document["problems"].push_back(
          {{"layers", workload.layers}, {"problem", std::move(problem)}, {"answers", std::move(answers)}});
    } else {
      document["problem"] = std::move(problem);
      document["answers"] = std::move(answers);
    }
  }
  if (console.json) print_json(document);
  if (missing == 0) return kExitOk;
  return report_error({ErrorCode::not_found,
                       fmt::format("{} of {} shapes have no answer as good as '{}'", missing, shapes, flags.require),
                       "Run `leanattn tune` with these shapes, or import a database that has them.",
                       {}});
}

}  // namespace

Command add_lookup(CLI::App& program) {
  auto flags = std::make_shared<LookupFlags>();
  CLI::App* app = program.add_subcommand("lookup", "Say what would be launched for a shape, and why");
  add_shape_flags(*app, flags->shape, kLookupBatch, kLookupContext);
  add_request_flags(*app, flags->requests);
  add_device_flags(*app, flags->device);
  app->add_flag("--explain", flags->explain,
                "Print the reason, the kernel, the grid and the workspace of every answer");
  app->add_option("--require", flags->require, "Exit with 4 when an answer is worse than this")
      ->type_name("exact|bucket|without_pdl|nearest|model");
  app->add_option("--link", flags->link,
                  "What joins the GPUs of --context-parallel; default: the first of these that was tuned")
      ->type_name("nvlink|pcie|same_gpu");
  set_examples(*app,
               {{"Say what would be launched on this GPU, and why",
                 "leanattn lookup --model llama-3-8b --batch 4 --context 64k --explain"},
                {"Say it of a GPU that is not here", "leanattn lookup --model qwen3-8b --context 8k --arch a100"}});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
