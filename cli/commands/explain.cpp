#include "tuner/report/explain.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>

#include "cli/commands/commands.hpp"
#include "cli/flags/device_flags.hpp"
#include "cli/flags/files.hpp"
#include "cli/flags/request_flags.hpp"
#include "cli/flags/shape_flags.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "generator/integers.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

#include "templates/line/schedule.cuh"

const std::string kExplainBatch = "1";
const std::string kExplainContext = "8k";

struct ExplainFlags {
  ShapeFlags shape;
  RequestFlags requests;
  std::string grid, sms, tile, mode = "all", format, out;
};

Result<StepRequests> requests_of(const ExplainFlags& flags, const Workload& workload) {
  constexpr int kMostRequests = 1 << 20;
  if (!flags.requests.lengths.empty()) return parse_requests(workload.problem, flags.requests);
  if (workload.shapes.size() != 1) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("explain draws one shape, but {} were given", workload.shapes.size()),
                "Give one --batch and one --context, or --lengths.");
  }
  const Shape& one = workload.shapes.front();
  if (one.batch > kMostRequests) {
    return fail(ErrorCode::unsupported, fmt::format("--batch {} has too many requests to draw", one.batch));
  }
  return StepRequests{.context_lengths =
                          std::vector<int>(static_cast<std::size_t>(one.batch), static_cast<int>(one.longest_context))};
}

/// What requests with their own query tokens have on the line of this configuration.
RaggedRows ragged_rows(const DecodeProblem& problem, const Config& config) {
  const KernelSpec& spec = config.spec;
  const KernelLayout layout = layout_of(spec);
  const Features& features = problem.features;
  RaggedRows ragged{.rows = layout.rows,
                    .group = spec.group,
                    .causal = features.mask == QueryMask::causal,
                    .tile_positions = layout.tile_positions,
                    .light_tile_positions = layout.light_tile_positions,
                    .segment_cost = config.segment_cost};
  if (features.window == 0 || !ragged.causal) return ragged;
  ragged.window_tiles = static_cast<int>(
      lean_window_tiles(features.window, (layout.rows - 1) / spec.group + 2, spec.tile, layout.page_run));
  ragged.sink_tiles = divide_up(features.sink_tokens, spec.tile);
  return ragged;
}

const char* title(std::string_view mode) {
  if (mode == "fa2") return "FlashAttention-2";
  if (mode == "fd") return "FlashDecoding";
  return "LeanAttention";
}

Result<std::vector<Schedule>> draw(const ExplainFlags& flags, const Workload& workload) {
  const DecodeProblem& problem = workload.problem;
  Result<StepRequests> requests = requests_of(flags, workload);
  if (!requests) return tl::unexpected(requests.error());
  std::vector<int>& lengths = requests->context_lengths;
  KernelSpec spec = base_spec(Arch{9, 0, true}, problem);
  const auto sms =
      flags.sms.empty() ? Result<std::int64_t>(usual_sm_count(spec.arch)) : parse_size("--sms", flags.sms, 1, 65536);
  if (!sms) return tl::unexpected(sms.error());
  Config config{.spec = spec};
  // The kernel decides which output tiles requests with query tokens of their own have.
  const bool ragged = !requests->query_tokens.empty();
  if (ragged) {
    const Result<DeviceFacts> device = facts_for_arch(spec.arch, static_cast<int>(*sms));
    if (!device) return tl::unexpected(device.error());
    config = default_config({*device, problem, shape_of(problem, {lengths, requests->query_tokens})});
  }
  const auto tile =
      flags.tile.empty() ? Result<std::int64_t>(config.spec.tile) : parse_size("--tile", flags.tile, 1, 1 << 20);
  if (!tile) return tl::unexpected(tile.error());
  config.spec.tile = static_cast<int>(*tile);
  // Only visible tokens are laid on the line.
  for (int& length : lengths) {
    if (length > 0 && !ragged)
      length = static_cast<int>(visible_shape(problem, {.longest_context = length}).longest_context);
  }

  ScheduleInput input{.title = {},
                      .context_lengths = lengths,
                      .kv_heads = problem.kv_heads,
                      .row_blocks = ragged ? 1 : layout_of(spec).row_blocks,
                      .tile = config.spec.tile,
                      .grid = 1,
                      .sm_count = static_cast<int>(*sms),
                      .query_tokens = requests->query_tokens,
                      .ragged = ragged ? ragged_rows(problem, config) : RaggedRows{}};
  const std::int64_t output_tiles = output_tiles_on_line(input);
  std::vector<std::string> modes = {flags.mode};
  if (flags.mode == "all") modes = {"fa2", "fd", "lean"};
  // A grid that --grid gives is drawn once, whatever the modes.
  if (!flags.grid.empty() && flags.mode == "all") modes = {"lean"};

  if (!flags.grid.empty() && modes.front() != "lean") {
    return fail(ErrorCode::invalid_argument,
                fmt::format("--grid {} cannot be given with --mode {}, whose grid follows from the shape", flags.grid,
                            flags.mode),
                "Leave one of them out, or give --mode lean.");
  }

  std::vector<Schedule> schedules;
  for (const std::string& mode : modes) {
    Result<std::int64_t> grid = grid_for_mode(mode, output_tiles, lean_tiles_on_line(input), input.sm_count);
    if (!grid) return tl::unexpected(grid.error());
    if (!flags.grid.empty()) {
      grid = parse_size("--grid", flags.grid, 1, std::numeric_limits<int>::max());
      if (!grid) return tl::unexpected(grid.error());
    }
    input.grid = *grid;
    input.ctas_per_output_tile = mode == "lean" ? 0 : static_cast<int>(*grid / output_tiles);
    input.title = title(mode);
    Result<Schedule> schedule = make_schedule(input);
    if (!schedule) return tl::unexpected(schedule.error());
    schedules.push_back(std::move(*schedule));
  }
  return schedules;
}

int run(const Console& console, const ExplainFlags& flags) {
  const Result<Workload> workload = resolve(console, flags.shape, kExplainBatch, kExplainContext);
  if (!workload) return report_error(workload.error());
  std::string format = flags.format.empty() ? "text" : flags.format;
  if (format != "text" && format != "svg" && format != "json") {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("--format '{}' is not a format", format),
                         "Give text, svg or json.",
                         {}});
  }
  if (console.json) {
    if (!flags.format.empty() && format != "json") {
      return report_error({ErrorCode::invalid_argument,
                           fmt::format("--json and --format {} cannot be given together", format),
                           "Leave one of them out.",
                           {}});
    }
    format = "json";
  }
  const Result<std::vector<Schedule>> schedules = draw(flags, *workload);
  if (!schedules) return report_error(schedules.error());
  const Result<std::string> text = format == "svg"    ? to_svg(*schedules)
                                   : format == "json" ? Result<std::string>(to_json(*schedules))
                                                      : Result<std::string>(to_text(*schedules));
  if (!text) return report_error(text.error());
  if (flags.out.empty()) {
    print(*text);
    return kExitOk;
  }
  const Result<void> written = write_out(flags.out, *text);
  return written ? kExitOk : report_error(written.error());
}

}  // namespace

Command add_explain(CLI::App& program) {
  auto flags = std::make_shared<ExplainFlags>();
  CLI::App* app = program.add_subcommand("explain", "Draw which CTA computes which LeanTiles; no GPU is needed");
  add_shape_flags(*app, flags->shape, kExplainBatch, kExplainContext);
  add_request_flags(*app, flags->requests);
  app->add_option("--mode", flags->mode,
                  "The schedule: LeanAttention's, FlashAttention-2's (one CTA for each output tile), FlashDecoding's "
                  "(the same number of CTAs for each) or all; default all")
      ->type_name("lean|fa2|fd|all");
  app->add_option("--grid", flags->grid, "The number of CTAs of LeanAttention's schedule; default: one for each SM")
      ->type_name("G");
  app->add_option("--sms", flags->sms, "The number of SMs; default 132")->type_name("S");
  app->add_option("--tile", flags->tile, "The LeanTile, in tokens")->type_name("N");
  app->add_option("--format", flags->format, "The format; default text")->type_name("text|svg|json");
  app->add_option("-o,--out", flags->out, "Write to this file instead of stdout")->type_name("FILE");
  set_examples(
      *app,
      {{"Compare the three schedules of one long context", "leanattn explain --model llama-3-8b --context 64k"},
       {"Draw a ragged batch as a picture", "leanattn explain --model llama-3-8b --lengths 64k,1k,1k --format svg"}});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
