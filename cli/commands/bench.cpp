#include "tuner/evaluate/bench.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>

#include "cli/commands/commands.hpp"
#include "cli/console/stop.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/device_flags.hpp"
#include "cli/flags/files.hpp"
#include "cli/flags/request_flags.hpp"
#include "cli/flags/shape_flags.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "tuner/evaluate/paper_run.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

const std::string kBenchBatch = "1";
const std::string kBenchContext = "8k";

struct BenchFlags {
  ShapeFlags shape;
  RequestFlags requests;
  std::string mode, policy = "cold", rounds, out, budget, configs;
  DeviceFlags device;
  bool paper = false;
  std::vector<const CLI::Option*> not_with_paper;  ///< the options that --paper has no use for
};

Result<std::vector<std::string>> parse_modes(const std::string& text) {
  std::vector<std::string> modes;
  if (text.empty() || text == "all") return modes;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string mode = text.substr(begin, comma - begin);
    if (mode != "lean" && mode != "fa2" && mode != "fd" && mode != "read") {
      return fail(ErrorCode::invalid_argument, fmt::format("--mode '{}' is not a mode", mode),
                  "Give lean, fa2, fd, read or all.");
    }
    modes.push_back(mode);
    begin = comma + 1;
  }
  return modes;
}

/// Reads --rounds into `rounds`, which stays as it is without the flag.
Result<void> parse_rounds(const BenchFlags& flags, std::int64_t least, int& rounds) {
  if (flags.rounds.empty()) return {};
  const Result<std::int64_t> read = parse_size("--rounds", flags.rounds, least, 1 << 20);
  if (!read) return tl::unexpected(read.error());
  rounds = static_cast<int>(*read);
  return {};
}

/// Configurations as `lookup --json`, reports and the database have them, one on each line of the file.
Result<std::vector<Config>> read_configs(const std::string& path) {
  const Result<std::string> text = read_given("--configs", path);
  if (!text) return tl::unexpected(text.error());
  std::vector<Config> configs;
  std::istringstream lines(*text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<Config> config = config_from_json(line);
    if (!config)
      return fail(ErrorCode::invalid_argument,
                  fmt::format("--configs {}, line {}: {}", path, number, config.error().message),
                  "Give each line a configuration, as `leanattn lookup --json` prints it.");
    configs.push_back(*std::move(config));
  }
  if (configs.empty())
    return fail(ErrorCode::invalid_argument, fmt::format("--configs {} has no configuration", path), {});
  return configs;
}

Result<BenchOptions> parse_options(const BenchFlags& flags) {
  BenchOptions options;
  const Result<L2Policy> policy = parse_l2_policy(flags.policy);
  if (!policy) return tl::unexpected(policy.error());
  options.policy = *policy;
  Result<std::vector<std::string>> modes = parse_modes(flags.mode);
  if (!modes) return tl::unexpected(modes.error());
  options.modes = *modes;
  if (auto rounds = parse_rounds(flags, 1, options.rounds); !rounds) return tl::unexpected(rounds.error());
  if (!flags.configs.empty()) {
    Result<std::vector<Config>> configs = read_configs(flags.configs);
    if (!configs) return tl::unexpected(configs.error());
    options.configs = *std::move(configs);
  }
  return options;
}

void print_report(const BenchReport& report) {
  print_text(fmt::format("{}, {}, {}\n", report.device.name, describe(report.problem), describe(report.shape)));
  Table table{.headings = {"mode", "us", "95% interval", "GB/s", "x read limit", "grid", "from", "kernel"},
              .rows = {},
              .right_aligned = "lrrrrrll"};
  for (const BenchLine& line : report.lines) {
    const bool read = line.mode == "read";
    table.rows.push_back(
        {line.mode, fmt::format("{:.1f}", line.median_us), fmt::format("{:.1f}..{:.1f}", line.low_us, line.high_us),
         fmt::format("{:.0f}", line.gb_per_s), line.ratio_to_read > 0 ? fmt::format("{:.2f}", line.ratio_to_read) : "-",
         read ? "-" : std::to_string(line.config.grid), read ? "-" : line.provenance,
         read ? "-" : kernel_name(line.config.spec)});
  }
  print_table(table);
  print("\n");
}

/// Writes paper.json, paper.md and the figures into the directory, which is made when it does not exist.
Result<void> write_paper(const PaperReport& report, const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  std::vector<std::string> names;
  for (const PaperFigure& figure : paper_figures(report)) {
    names.push_back(figure.name + ".svg");
    if (auto ok = write_out(directory / names.back(), figure.svg); !ok) return ok;
  }
  if (auto ok = write_out(directory / "paper.json", to_json(report)); !ok) return ok;
  return write_out(directory / "paper.md", to_markdown(report, names));
}

/// The options of --paper. Flags that say what is measured are refused, because the sweeps say it themselves.
Result<PaperOptions> parse_paper_options(const BenchFlags& flags) {
  for (const CLI::Option* option : flags.not_with_paper) {
    if (option->count() == 0) continue;
    const std::string value = option->get_items_expected_max() == 0 ? "" : " " + option->results().back();
    return fail(
        ErrorCode::invalid_argument, fmt::format("{}{} cannot be given with --paper", option->get_name(), value),
        "The paper's sweeps have problems, shapes, modes and an L2 policy of their own. Leave out one of the two "
        "flags.");
  }
  PaperOptions options;
  if (!flags.budget.empty()) {
    const auto budget = parse_duration("--budget", flags.budget);
    if (!budget) return tl::unexpected(budget.error());
    options.budget = *budget;
  }
  if (auto rounds = parse_rounds(flags, 3, options.rounds); !rounds) return tl::unexpected(rounds.error());
  return options;
}

/// The GPU that --device names. Errors: invalid_argument (several), those of chosen_devices().
Result<int> one_device(const BenchFlags& flags) {
  const Result<std::vector<int>> ordinals = chosen_devices(flags.device);
  if (!ordinals) return tl::unexpected(ordinals.error());
  if (ordinals->size() == 1) return ordinals->front();
  return fail(ErrorCode::invalid_argument, fmt::format("--device names {} GPUs", ordinals->size()),
              "Name one, or give --context-parallel, of which each rank has a GPU.");
}

int run_paper_sweeps(const Console& console, const BenchFlags& flags) {
  Result<PaperOptions> options = parse_paper_options(flags);
  if (!options) return report_error(options.error());
  const Result<int> device = one_device(flags);
  if (!device) return report_error(device.error());
  options->device = *device;
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const std::atomic<bool>* stop = stop_on_signals();
  const auto progress = [&](std::size_t done, std::size_t total, const PaperPoint& next) {
    note(console, fmt::format("[{}/{}] {} heads x {}, {}", done + 1, total, next.heads, next.head_dim,
                              describe(shape_of(next))));
  };
  const Result<PaperRun> run = run_paper(*options, caches->directory, caches->cubins.get(), progress, stop);
  if (!run) return report_error(run.error());
  const PaperReport& report = run->report;
  for (const std::string& warning : report.warnings) warn(warning);
  // Nothing is lost by an error before the first measurement.
  if (run->error && report.measurements.empty()) return report_error(*run->error);
  if (!report.missing.empty())
    note(console, fmt::format("{} points of the sweeps were not measured.", report.missing.size()));
  if (console.json) {
    print_json_text(to_json(report));
  } else {
    print(to_markdown(report, {}));
  }
  const Result<void> written = flags.out.empty() ? Result<void>() : write_paper(report, flags.out);
  return exit_code_after(run->error, written, stop->load());
}

int run(const Console& console, const BenchFlags& flags) {
  if (flags.paper) return run_paper_sweeps(console, flags);
  if (!flags.budget.empty())
    return report_error(
        {ErrorCode::invalid_argument, fmt::format("--budget {} can only be given with --paper", flags.budget), {}, {}});
  Result<Workload> workload = resolve(console, flags.shape, kBenchBatch, kBenchContext);
  if (!workload) return report_error(workload.error());
  Result<BenchOptions> options = parse_options(flags);
  if (!options) return report_error(options.error());
  Result<StepRequests> step = resolve_requests(flags.requests, *workload);
  if (!step) return report_error(step.error());
  options->requests = *std::move(step);
  // A launch of ours gives each CTA the same share of the line, so that these grids are the peers' only for equal
  // lengths.
  if (canonical(workload->shapes.front()).total_context != 0) {
    note(console,
         "The lengths differ, so fa2 and fd are only the sizes of these projects' grids: their CTAs take equal shares "
         "and cross output tiles.");
  }
  if (const Features& features = workload->problem.features; in_group(features)) {
    Result<std::vector<int>> devices = devices_of_ranks(flags.device, features.context_parallel);
    if (!devices) return report_error(devices.error());
    options->device = devices->front();
    options->rank_devices = *std::move(devices);
  } else {
    const Result<int> device = one_device(flags);
    if (!device) return report_error(device.error());
    options->device = *device;
  }
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());

  const std::atomic<bool>* stop = stop_on_signals();
  std::vector<BenchReport> reports;
  std::optional<Error> failure;
  for (const Shape& shape : workload->shapes) {
    if (stop->load()) break;
    note(console, fmt::format("[{}/{}] {}", reports.size() + 1, workload->shapes.size(), describe(shape)));
    Result<BenchReport> report =
        bench(workload->problem, shape, *options, caches->directory, caches->cubins.get(), stop);
    if (!report) {
      if (report.error().code != ErrorCode::interrupted) failure = report.error();
      break;
    }
    if (reports.empty()) {
      for (const std::string& warning : report->warnings) warn(warning);
    }
    if (!console.json) print_report(*report);
    reports.push_back(std::move(*report));
  }
  // The shapes before the one that has an error are results all the same.
  if (failure && reports.empty()) return report_error(*failure);
  const std::string document = to_json(reports) + "\n";
  if (console.json) print_json_text(document);
  const Result<void> written = flags.out.empty() ? Result<void>() : write_out(flags.out, document);
  return exit_code_after(failure, written, stop->load());
}

}  // namespace

Command add_bench(CLI::App& program) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* app = program.add_subcommand(
      "bench", "Time the grids of LeanAttention, FlashAttention-2 and FlashDecoding, and the read limit");
  add_shape_flags(*app, flags->shape, kBenchBatch, kBenchContext);
  for (const CLI::Option* option : shape_options(*app)) flags->not_with_paper.push_back(option);
  for (const CLI::Option* option : add_request_flags(*app, flags->requests)) flags->not_with_paper.push_back(option);
  CLI::Option* mode = app->add_option("--mode", flags->mode,
                                      "What to time: lean, fa2, fd or read, separated by commas, or all; default all")
                          ->type_name("LIST");
  CLI::Option* policy =
      app->add_option("--l2", flags->policy,
                      "The L2 policy. cold: KV comes from memory, as in a model; warm: KV is in L2; default cold")
          ->type_name("cold|warm");
  CLI::Option* configs =
      app->add_option("--configs", flags->configs,
                      "Also check and time the configurations of this file, one on each line as JSON; "
                      "of their kernels the tunables count, and the problem is that of the flags")
          ->type_name("FILE");
  flags->not_with_paper.insert(flags->not_with_paper.end(), {mode, policy, configs});
  app->add_option("--rounds", flags->rounds,
                  "The number of rounds; default: until the interval of every median is 1% wide")
      ->type_name("N");
  app->add_option("--device,--devices", flags->device.devices,
                  "The CUDA ordinal of the GPU, or those of the ranks of --context-parallel; default 0")
      ->type_name("LIST");
  app->add_option(
         "-o,--out", flags->out,
         "Also write the JSON with all samples to this file; with --paper: write JSON, Markdown and figures into this "
         "directory")
      ->type_name("PATH");
  app->add_flag("--paper", flags->paper,
                "Run the LeanAttention paper's sweeps and show them beside its published speed-ups");
  app->add_option("--budget", flags->budget, "With --paper: the time after which no further shape is begun; default 4m")
      ->type_name("TIME");
  set_examples(*app, {{"Time a decode step beside FlashAttention-2's and FlashDecoding's grids",
                       "leanattn bench --model llama-3-8b --batch 4 --context 64k"},
                      {"Time a ragged batch, and keep all samples",
                       "leanattn bench --model llama-3-8b --lengths 64k,1k,1k --out times.json"}});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
