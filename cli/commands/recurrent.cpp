#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands/commands.hpp"
#include "cli/console/stop.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/device_flags.hpp"
#include "cli/flags/files.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "generator/parse_enum.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "tuner/evaluate/recurrent_bench.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

struct RecurrentFlags {
  CLI::App *bench = nullptr, *emit = nullptr;
  std::string kind = "gated_delta", gates, state = "fp32", dtype = "bf16", output_gate = "none";
  std::string qk_heads = "16", v_heads = "32", key_dim = "128", value_dim = "128", tokens = "1", batch = "1",
              conv_width;
  bool ragged = false, snapshots = false, sweep = false;
  std::string rounds = "31", policy = "cold", out, arch;
  int device = 0;
};

/// Reads a flag's number into `out`.
Result<void> read_number(const char* flag, const std::string& text, int& out) {
  const auto number = parse_size(flag, text, 1, 1 << 20);
  if (!number) return tl::unexpected(number.error());
  out = static_cast<int>(*number);
  return {};
}

Result<RecurrentProblem> problem_of(const RecurrentFlags& flags) {
  const auto kind = parse_recurrent_kind(flags.kind);
  if (!kind) return tl::unexpected(kind.error());
  RecurrentProblem problem = usual_problem(*kind);
  const auto state = parse_state_type(flags.state);
  if (!state) return tl::unexpected(state.error());
  problem.state = *state;
  const auto dtype = parse_dtype(flags.dtype);
  if (!dtype) return tl::unexpected(dtype.error());
  problem.dtype = *dtype;
  const auto output_gate = parse_output_gate(flags.output_gate);
  if (!output_gate) return tl::unexpected(output_gate.error());
  problem.output_gate = *output_gate;
  if (!flags.gates.empty()) {
    const auto gates = parse_gates(flags.gates);
    if (!gates) return tl::unexpected(gates.error());
    problem.gates = *gates;
  }
  for (const auto& [flag, text, number] : {std::tuple{"--qk-heads", &flags.qk_heads, &problem.qk_heads},
                                           {"--v-heads", &flags.v_heads, &problem.v_heads},
                                           {"--key-dim", &flags.key_dim, &problem.key_dim},
                                           {"--value-dim", &flags.value_dim, &problem.value_dim},
                                           {"--tokens", &flags.tokens, &problem.tokens}}) {
    if (auto ok = read_number(flag, *text, *number); !ok) return tl::unexpected(ok.error());
  }
  if (!flags.conv_width.empty()) {
    if (auto ok = read_number("--conv-width", flags.conv_width, problem.conv_width); !ok)
      return tl::unexpected(ok.error());
  }
  problem.ragged = flags.ragged, problem.snapshots = flags.snapshots;
  if (auto ok = validate(problem); !ok) return tl::unexpected(ok.error());
  return problem;
}

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

int run_bench(const Console& console, const RecurrentFlags& flags, const RecurrentProblem& problem) {
  const auto batches = parse_size_list("--batch", flags.batch, 1, 65535);
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
  for (const std::int64_t batch : *batches) {
    auto report = recurrent_bench(problem, static_cast<int>(batch), options, caches->cubins.get(), stop);
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

int run_emit(const RecurrentFlags& flags, const RecurrentProblem& problem) {
  DeviceFlags device;
  device.arch = flags.arch;
  const auto facts = offline_facts(device);
  if (!facts) return report_error(facts.error());
  const auto batches = parse_size_list("--batch", flags.batch, 1, 65535);
  if (!batches) return report_error(batches.error());
  const auto kernel = emit(default_spec(*facts, problem, static_cast<int>(batches->front())));
  if (!kernel) return report_error(kernel.error());
  print(kernel->source);
  return kExitOk;
}

int run(const Console& console, const RecurrentFlags& flags) {
  const auto problem = problem_of(flags);
  if (!problem) return report_error(problem.error());
  return flags.emit->parsed() ? run_emit(flags, *problem) : run_bench(console, flags, *problem);
}

void add_problem_flags(CLI::App& app, RecurrentFlags& flags) {
  const std::string kinds = names_of(kRecurrentKinds, "|"), forms = names_of(kGates, "|");
  app.add_option("--kind", flags.kind, "How a token changes the state; default gated_delta")->type_name(kinds);
  app.add_option("--gates", flags.gates, "Where decays and weights come from; default: the kind's usual form")
      ->type_name(forms);
  app.add_option("--qk-heads", flags.qk_heads, "Heads of q and k; default 16")->type_name("N");
  app.add_option("--v-heads", flags.v_heads, "Heads of v and of the state; default 32")->type_name("N");
  app.add_option("--key-dim", flags.key_dim, "K, the columns of a head's state; default 128")->type_name("N");
  app.add_option("--value-dim", flags.value_dim, "V, the rows of a head's state; default 128")->type_name("N");
  app.add_option("--state", flags.state, "The type of the state in memory; default fp32")->type_name("fp32|bf16");
  app.add_option("--dtype", flags.dtype, "The type of q, k, v and o; default bf16")->type_name("bf16|fp16");
  app.add_option("--output-gate", flags.output_gate,
                 "Normalise the output, and multiply it by this function of z; default none")
      ->type_name(names_of(kOutputGates, "|"));
  app.add_option("--tokens", flags.tokens, "Tokens of a request in a step, 1 to 16; default 1")->type_name("N");
  app.add_option("--conv-width", flags.conv_width,
                 "Send q, k and v through a short convolution of so many tokens, 2 to 4; default: none")
      ->type_name("N");
  app.add_flag("--ragged", flags.ragged, "Each request has its own number of tokens");
  app.add_flag("--snapshots", flags.snapshots, "Store the state after each token, in slots of their own");
  app.add_option("--batch", flags.batch, "Requests of a step; default 1")->type_name("LIST");
}

}  // namespace

Command add_recurrent(CLI::App& program) {
  auto flags = std::make_shared<RecurrentFlags>();
  CLI::App* app =
      program.add_subcommand("recurrent", "Time and emit kernels of layers that keep a state instead of KV");
  app->require_subcommand(1);
  flags->bench = app->add_subcommand("bench", "Time a decode step beside an in-place copy of its states");
  add_problem_flags(*flags->bench, *flags);
  flags->bench->add_flag("--sweep", flags->sweep, "Also time all other tunables, and the best of them");
  flags->bench
      ->add_option("--l2", flags->policy,
                   "The L2 policy. cold: states come from memory; warm: they are in L2; default cold")
      ->type_name("cold|warm");
  flags->bench->add_option("--rounds", flags->rounds, "The number of rounds; default 31")->type_name("N");
  flags->bench->add_option("--device", flags->device, "The CUDA ordinal of the GPU; default 0")->type_name("N");
  flags->bench->add_option("-o,--out", flags->out, "Also write the JSON with all samples to this file")
      ->type_name("PATH");
  flags->emit = app->add_subcommand("emit", "Print the kernel of a decode step");
  add_problem_flags(*flags->emit, *flags);
  flags->emit->add_option("--arch", flags->arch, "An architecture or the name of a GPU, such as h100")
      ->required()
      ->type_name("ARCH");
  const Example bench = {"Time a step of Qwen3.5's layers", "leanattn recurrent bench --v-heads 64 --batch 1,32"},
                emitting = {"Print a kernel of Kimi Linear's layers",
                            "leanattn recurrent emit --kind kda --qk-heads 32 --arch h100"};
  set_examples(*flags->bench, {bench});
  set_examples(*flags->emit, {emitting});
  set_examples(*app, {bench, emitting});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
