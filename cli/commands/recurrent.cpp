#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

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
#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "tuner/evaluate/recurrent_bench.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

const std::string kOneRequest = "1", kTunedBatches = "1,2,4,8,16,32,64,128";

struct RecurrentCommands {
  CLI::App *bench = nullptr, *emit = nullptr, *tune = nullptr, *lookup = nullptr;
  RecurrentFlags problem;
  DeviceFlags device;
  bool sweep = false, missing = false;
  std::string rounds = "31", policy = "cold", jobs, out;
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

/// A GPU, and what look-ups answer from.
struct KnownWinners {
  Target target;
  WinnerTable winners;
};

Result<KnownWinners> known_winners(const Result<Target>& target, const Caches& caches) {
  if (!target) return tl::unexpected(target.error());
  LayeredWinners layers = load_layered_winners(target->model, caches.directory, current_software(target->facts));
  for (const std::string& warning : layers.warnings) warn(warning);
  return KnownWinners{*target, WinnerTable(target->facts, by_problem(std::move(layers)))};
}

/// The same as of flags. Says what is left to the engine.
Result<ServedProblem> served_problem(const Console& console, const RecurrentCommands& flags,
                                     const RecurrentProblem& asked, Arch arch) {
  auto served = served_problem(flags.problem, asked, arch);
  if (served && !served->left.empty()) note(console, served->left);
  return served;
}

int run_bench(const Console& console, const RecurrentCommands& flags, const RecurrentProblem& asked) {
  const auto batches = batches_of(flags.problem, kOneRequest);
  if (!batches) return report_error(batches.error());
  RecurrentBenchOptions options{.device = flags.device.device, .sweep = flags.sweep};
  const auto policy = parse_l2_policy(flags.policy);
  if (!policy) return report_error(policy.error());
  options.policy = *policy;
  if (auto ok = read_number("--rounds", flags.rounds, options.rounds); !ok) return report_error(ok.error());
  const auto device = device_facts(flags.device.device);
  if (!device) return report_error(device.error());
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const auto known = known_winners(Target{*device, device_model(*device)}, *caches);
  if (!known) return report_error(known.error());
  const auto served = served_problem(console, flags, asked, known->target.facts.arch);
  if (!served) return report_error(served.error());
  if (const Result<void> ok = flags.out.empty() ? Result<void>() : check_out(flags.out); !ok)
    return report_error(ok.error());
  options.winners = known->winners.recurrent_winners(served->problem);
  const std::atomic<bool>* stop = stop_on_signals();
  std::vector<RecurrentBenchReport> reports;
  std::optional<Error> failure;
  for (const int batch : *batches) {
    if (stop->load()) break;
    auto report = recurrent_bench(served->problem, batch, options, caches->cubins.get(), stop);
    if (!report) {
      if (report.error().code != ErrorCode::interrupted) failure = report.error();
      break;
    }
    if (!console.json) print_report(*report);
    reports.push_back(*std::move(report));
  }
  // The batches before the one that has an error are results all the same.
  if (failure && reports.empty()) return report_error(*failure);
  const std::string document = to_json(reports) + "\n";
  if (console.json) print_json_text(document);
  const Result<void> written = flags.out.empty() ? Result<void>() : write_out(flags.out, document);
  return exit_code_after(failure, written, stop->load());
}

int run_emit(const Console& console, const RecurrentCommands& flags, const RecurrentProblem& asked) {
  const auto batches = batches_of(flags.problem, kOneRequest);
  if (!batches) return report_error(batches.error());
  if (batches->size() != 1) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("emit writes one kernel, but {} batches were given", batches->size()),
                         "Give one --batch.",
                         {}});
  }
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const auto known = known_winners(resolve_target(or_hopper(console, flags.device), *caches), *caches);
  if (!known) return report_error(known.error());
  const auto served = served_problem(console, flags, asked, known->target.facts.arch);
  if (!served) return report_error(served.error());
  const auto order = recurrent_launch_order(known->target.facts, served->problem, batches->front(),
                                            known->winners.recurrent_winners(served->problem));
  const RecurrentChoice& choice = order.front();
  const auto kernel = emit(choice.spec);
  if (!kernel) return report_error(kernel.error());
  std::string text = kernel->source;
  if (console.json) {
    using Json = nlohmann::ordered_json;
    text = Json({{"schema_version", 1},
                 {"kernel", kernel_name(choice.spec)},
                 {"spec", Json::parse(to_json(choice.spec))},
                 {"entry", kernel->entry},
                 {"threads", kernel->threads},
                 {"provenance", to_string(choice.provenance)},
                 {"source", kernel->source}})
               .dump(2) +
           "\n";
  }
  return put_kernel(console, flags.out, kernel_name(choice.spec), text);
}

std::string basis(const RecurrentChoice& choice) {
  std::string text(to_string(choice.provenance));
  if (!choice.winner) return text;
  if (choice.provenance == Provenance::nearest) text += fmt::format(" (batch {})", choice.winner->batch);
  return text + (choice.winner->stale ? " (stale)" : "");
}

nlohmann::ordered_json answer_json(int batch, const RecurrentChoice& choice) {
  using Json = nlohmann::ordered_json;
  const auto& winner = choice.winner;
  return {{"batch", batch},
          {"provenance", to_string(choice.provenance)},
          {"kernel", kernel_name(choice.spec)},
          {"config", Json::parse(to_json(choice.spec))},
          {"tuned_batch", winner ? Json(winner->batch) : Json(nullptr)},
          {"tuned_us", winner ? Json(winner->us) : Json(nullptr)},
          {"layer", winner ? winner->layer : std::string()},
          {"stale", winner && winner->stale}};
}

int run_lookup(const Console& console, const RecurrentCommands& flags, const RecurrentProblem& asked) {
  const auto batches = batches_of(flags.problem, kTunedBatches);
  if (!batches) return report_error(batches.error());
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const auto known = known_winners(resolve_target(flags.device, *caches), *caches);
  if (!known) return report_error(known.error());
  const DeviceFacts& device = known->target.facts;
  const auto served = served_problem(console, flags, asked, device.arch);
  if (!served) return report_error(served.error());
  nlohmann::ordered_json document{{"schema_version", 1},
                                  {"device", device.name},
                                  {"arch", to_string(device.arch)},
                                  {"sms", device.sm_count},
                                  {"problem", nlohmann::ordered_json::parse(to_json(served->problem))},
                                  {"left", served->left},
                                  {"answers", nlohmann::ordered_json::array()}};
  Table table{.headings = {"batch", "from", "layer", "measured us", "kernel"}, .rows = {}, .right_aligned = "rllrl"};
  for (const int batch : *batches) {
    const RecurrentChoice choice =
        recurrent_launch_order(device, served->problem, batch, known->winners.recurrent_winners(served->problem))
            .front();
    document["answers"].push_back(answer_json(batch, choice));
    table.rows.push_back({std::to_string(batch), basis(choice), choice.winner ? choice.winner->layer : "-",
                          choice.winner ? fmt::format("{:.2f}", choice.winner->us) : "-", kernel_name(choice.spec)});
  }
  if (console.json) {
    print_json(document);
  } else {
    print_text(fmt::format("{}, {}\n", device.name, describe(served->problem)));
    print_table(table);
  }
  return kExitOk;
}

int run_tune(const Console& console, const RecurrentCommands& flags, const RecurrentProblem& asked) {
  const auto batches = batches_of(flags.problem, kTunedBatches);
  if (!batches) return report_error(batches.error());
  const auto policy = parse_l2_policy(flags.policy);
  if (!policy) return report_error(policy.error());
  RecurrentTuneRequest request{.problem = asked,
                               .batches = *batches,
                               .device = flags.device.device,
                               .policy = *policy,
                               .command = console.command_line};
  if (!flags.jobs.empty()) {
    if (auto ok = read_number("--jobs", flags.jobs, request.compile_threads); !ok) return report_error(ok.error());
  }
  // The device comes before databases, because without a GPU no database must be made.
  const auto device = device_facts(flags.device.device);
  if (!device) return report_error(device.error());
  const auto served = served_problem(console, flags, asked, device->arch);
  if (!served) return report_error(served.error());
  request.problem = served->problem;
  return tune_recurrent_steps(console, std::move(request), *device, flags.missing);
}

int run(const Console& console, const RecurrentCommands& flags) {
  const auto problem = problem_of(flags.problem);
  if (!problem) return report_error(problem.error());
  if (flags.emit->parsed()) return run_emit(console, flags, *problem);
  if (flags.lookup->parsed()) return run_lookup(console, flags, *problem);
  return flags.tune->parsed() ? run_tune(console, flags, *problem) : run_bench(console, flags, *problem);
}

void add_measuring_flags(CLI::App& command, RecurrentCommands& flags) {
  command
      .add_option("--l2", flags.policy,
                  "The L2 policy. cold: states come from memory; warm: they are in L2; default cold")
      ->type_name("cold|warm");
  command.add_option("--device", flags.device.device, "The CUDA ordinal of the GPU; default 0")->type_name("N");
}

}  // namespace

Command add_recurrent(CLI::App& program) {
  auto flags = std::make_shared<RecurrentCommands>();
  CLI::App* app = program.add_subcommand(
      "recurrent", "Tune, look up, time and emit kernels of layers that keep a state instead of KV");
  app->require_subcommand(1);
  flags->tune = app->add_subcommand("tune", "Find the fastest kernel for steps of each size, and record it");
  add_recurrent_flags(*flags->tune, flags->problem, kTunedBatches);
  add_measuring_flags(*flags->tune, *flags);
  flags->tune->add_flag("--missing", flags->missing,
                        "Leave out batches that have a winner of this driver, NVRTC and kernel");
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
  add_device_flags(*flags->emit, flags->device);
  flags->emit->add_option("-o,--out", flags->out, "Write to this file instead of stdout")->type_name("FILE");
  flags->lookup = app->add_subcommand("lookup", "Say which kernel would be launched, and on what that rests");
  add_recurrent_flags(*flags->lookup, flags->problem, kTunedBatches);
  add_device_flags(*flags->lookup, flags->device);
  const Example tuning = {"Tune the steps of Qwen3.5's layers", "leanattn recurrent tune --v-heads 64"},
                bench = {"Time a step of Qwen3.5's layers", "leanattn recurrent bench --v-heads 64 --batch 1,32"},
                looking = {"Say what Qwen3.5's layers would be launched with",
                           "leanattn recurrent lookup --v-heads 64 --batch 1,24"},
                emitting = {"Print a kernel of Kimi Linear's layers",
                            "leanattn recurrent emit --kind kda --qk-heads 32 --arch h100"};
  set_examples(*flags->tune, {tuning});
  set_examples(*flags->bench, {bench});
  set_examples(*flags->emit, {emitting});
  set_examples(*flags->lookup, {looking});
  set_examples(*app, {tuning, bench, looking, emitting});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
