#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands/commands.hpp"
#include "cli/commands/recurrent_tune.hpp"
#include "cli/console/stop.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/device_flags.hpp"
#include "cli/flags/files.hpp"
#include "cli/flags/recurrent_flags.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "tuner/evaluate/recurrent_bench.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

const std::string kOneRequest = "1", kTunedBatches = "1,2,4,8,16,32,64,128";

struct RecurrentCommands {
  CLI::App *bench = nullptr, *emit = nullptr, *tune = nullptr;
  RecurrentFlags problem;
  bool sweep = false;
  std::string rounds = "31", policy = "cold", jobs, out, arch;
  int device = 0;
};

void print_report(const RecurrentBenchReport& report) {
  print_text(fmt::format("{}, {}, batch {}: {} of states read and written\n", report.device.name,
                         describe(report.problem), report.batch, format_bytes(report.traffic_bytes)));
  const bool snapshots = report.problem.snapshots && report.problem.tokens > 1;
  Table table{.headings = {"mode", "us", "95% interval", "GB/s", "x copy"}, .rows = {}, .right_aligned = "lrrrr"};
  if (snapshots) table.headings.emplace_back("x traffic"), table.right_aligned += "r";
  table.headings.insert(table.headings.end(), {"registers", "kernel"});
  table.right_aligned += "rl";
  for (const RecurrentBenchLine& line : report.lines) {
    std::vector<std::string> row{line.mode, fmt::format("{:.2f}", line.median_us),
                                 fmt::format("{:.2f}..{:.2f}", line.low_us, line.high_us),
                                 fmt::format("{:.0f}", line.gb_per_s), fmt::format("{:.3f}", line.ratio_to_copy)};
    if (snapshots) row.push_back(fmt::format("{:.3f}", line.ratio_to_traffic));
    row.push_back(line.registers > 0 ? std::to_string(line.registers) : "-");
    row.push_back(line.kernel);
    table.rows.push_back(std::move(row));
  }
  print_table(table);
  print("\n");
  if (report.stays_in_l2) warn("The memory holds too few states for cold times: some stay in L2.");
}

int run_bench(const Console& console, const RecurrentCommands& flags, const RecurrentProblem& problem) {
  const auto batches = batches_of(flags.problem, kOneRequest);
  if (!batches) return report_error(batches.error());
  RecurrentBenchOptions options{.device = flags.device, .sweep = flags.sweep};
  const auto policy = parse_l2_policy(flags.policy);
  if (!policy) return report_error(policy.error());
  options.policy = *policy;
  if (auto ok = read_number("--rounds", flags.rounds, options.rounds); !ok) return report_error(ok.error());
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const std::atomic<bool>* stop = stop_on_signals();
  std::vector<RecurrentBenchReport> reports;
  for (const int batch : *batches) {
    auto report = recurrent_bench(problem, batch, options, caches->cubins.get(), stop);
    if (!report) return report.error().code == ErrorCode::interrupted ? kExitInterrupted : report_error(report.error());
    if (!console.json) print_report(*report);
    reports.push_back(*std::move(report));
  }
  const std::string document = to_json(reports) + "\n";
  if (console.json) print_json_text(document);
  if (flags.out.empty()) return kExitOk;
  const auto written = write_out(flags.out, document);
  return written ? kExitOk : report_error(written.error());
}

int run_emit(const RecurrentCommands& flags, const RecurrentProblem& problem) {
  DeviceFlags device;
  device.arch = flags.arch;
  const auto facts = offline_facts(device);
  if (!facts) return report_error(facts.error());
  const auto batches = batches_of(flags.problem, kOneRequest);
  if (!batches) return report_error(batches.error());
  const auto kernel = emit(default_spec(*facts, problem, batches->front()));
  if (!kernel) return report_error(kernel.error());
  print(kernel->source);
  return kExitOk;
}

int run_tune(const Console& console, const RecurrentCommands& flags, const RecurrentProblem& problem) {
  const auto batches = batches_of(flags.problem, kTunedBatches);
  if (!batches) return report_error(batches.error());
  const auto policy = parse_l2_policy(flags.policy);
  if (!policy) return report_error(policy.error());
  RecurrentTuneRequest request{.problem = problem,
                               .batches = *batches,
                               .device = flags.device,
                               .policy = *policy,
                               .command = console.command_line};
  if (!flags.jobs.empty()) {
    if (auto ok = read_number("--jobs", flags.jobs, request.compile_threads); !ok) return report_error(ok.error());
  }
  return tune_recurrent_steps(console, request);
}

int run(const Console& console, const RecurrentCommands& flags) {
  const auto problem = problem_of(flags.problem);
  if (!problem) return report_error(problem.error());
  if (flags.emit->parsed()) return run_emit(flags, *problem);
  return flags.tune->parsed() ? run_tune(console, flags, *problem) : run_bench(console, flags, *problem);
}

void add_measuring_flags(CLI::App& command, RecurrentCommands& flags) {
  command
      .add_option("--l2", flags.policy,
                  "The L2 policy. cold: states come from memory; warm: they are in L2; default cold")
      ->type_name("cold|warm");
  command.add_option("--device", flags.device, "The CUDA ordinal of the GPU; default 0")->type_name("N");
}

}  // namespace

Command add_recurrent(CLI::App& program) {
  auto flags = std::make_shared<RecurrentCommands>();
  CLI::App* app =
      program.add_subcommand("recurrent", "Tune, time and emit kernels of layers that keep a state instead of KV");
  app->require_subcommand(1);
  flags->tune = app->add_subcommand("tune", "Find the fastest kernel for steps of each size, and record it");
  add_recurrent_flags(*flags->tune, flags->problem, kTunedBatches);
  add_measuring_flags(*flags->tune, *flags);
  flags->tune->add_option("-j,--jobs", flags->jobs, "Threads that compile; default: one for each core")->type_name("N");
  flags->bench = app->add_subcommand("bench", "Time a decode step beside an in-place copy of its states");
  add_recurrent_flags(*flags->bench, flags->problem, kOneRequest);
  add_measuring_flags(*flags->bench, *flags);
  flags->bench->add_flag("--sweep", flags->sweep, "Also time all other tunables, and the best of them");
  flags->bench->add_option("--rounds", flags->rounds, "The number of rounds; default 31")->type_name("N");
  flags->bench->add_option("-o,--out", flags->out, "Also write the JSON with all samples to this file")
      ->type_name("PATH");
  flags->emit = app->add_subcommand("emit", "Print the kernel of a decode step");
  add_recurrent_flags(*flags->emit, flags->problem, kOneRequest);
  flags->emit->add_option("--arch", flags->arch, "An architecture or the name of a GPU, such as h100")
      ->required()
      ->type_name("ARCH");
  const Example tuning = {"Tune the steps of Qwen3.5's layers", "leanattn recurrent tune --v-heads 64"},
                bench = {"Time a step of Qwen3.5's layers", "leanattn recurrent bench --v-heads 64 --batch 1,32"},
                emitting = {"Print a kernel of Kimi Linear's layers",
                            "leanattn recurrent emit --kind kda --qk-heads 32 --arch h100"};
  set_examples(*flags->tune, {tuning});
  set_examples(*flags->bench, {bench});
  set_examples(*flags->emit, {emitting});
  set_examples(*app, {tuning, bench, emitting});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
