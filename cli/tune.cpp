#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/caches.hpp"
#include "cli/commands.hpp"
#include "cli/device_flags.hpp"
#include "cli/progress.hpp"
#include "cli/shape_flags.hpp"
#include "cli/sizes.hpp"
#include "cli/stop.hpp"
#include "cli/table.hpp"
#include "tuner/tune.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

const std::string kBatchDefault = "1,16";
const std::string kContextDefault = "1k,8k,64k";

struct TuneFlags {
  ShapeFlags shape;
  DeviceFlags device;
  std::string budget;
  std::string policy = "cold";
  std::string jobs;
  bool resume = false;
  bool dry_run = false;
};

double gb_per_s(const DecodeProblem& problem, const Shape& shape, double us) {
  return us > 0 ? static_cast<double>(kv_bytes(problem, shape)) / us * 1e-3 : 0;
}

std::string share(double part, double whole) {
  return part > 0 && whole > 0 ? fmt::format("{:.0f}%", 100 * part / whole) : "-";
}

void print_winners(const Workload& workload, const TuneSummary& summary) {
  Table table{
      .headings = {"batch", "context", "us", "95% interval", "GB/s", "of read limit", "vs default", "grid", "kernel"},
      .rows = {},
      .right_aligned = "rrrrrrrrl"};
  for (const TunedShape& tuned : summary.shapes) {
    if (tuned.median_us <= 0) {
      table.rows.push_back({std::to_string(tuned.shape.batch), format_size(tuned.shape.longest_context), "-", "-", "-",
                            "-", "-", "-", "(nothing measured)"});
      continue;
    }
    table.rows.push_back(
        {std::to_string(tuned.shape.batch), format_size(tuned.shape.longest_context),
         fmt::format("{:.1f}", tuned.median_us), fmt::format("{:.1f}..{:.1f}", tuned.low_us, tuned.high_us),
         fmt::format("{:.0f}", gb_per_s(workload.problem, tuned.shape, tuned.median_us)),
         share(tuned.read_limit_us, tuned.median_us),
         tuned.default_us > 0 ? fmt::format("{:.2f}x", tuned.default_us / tuned.median_us) : "-",
         std::to_string(tuned.winner.grid), kernel_name(tuned.winner.spec) + (tuned.finished ? "" : " (cut short)")});
  }
  print(to_text(table));
}

void print_winners_json(const Workload& workload, const TuneSummary& summary) {
  Json shapes = Json::array();
  for (const TunedShape& tuned : summary.shapes) {
    shapes.push_back({{"shape", Json::parse(to_json(tuned.shape))},
                      {"winner", tuned.median_us > 0 ? Json::parse(to_json(tuned.winner)) : Json(nullptr)},
                      {"kernel", tuned.median_us > 0 ? Json(kernel_name(tuned.winner.spec)) : Json(nullptr)},
                      {"median_us", tuned.median_us},
                      {"low_us", tuned.low_us},
                      {"high_us", tuned.high_us},
                      {"gb_per_s", gb_per_s(workload.problem, tuned.shape, tuned.median_us)},
                      {"read_limit_us", tuned.read_limit_us},
                      {"default_us", tuned.default_us},
                      {"candidates", tuned.candidates},
                      {"compiled", tuned.compiled},
                      {"rejected", tuned.rejected},
                      {"incorrect", tuned.incorrect},
                      {"gpu_seconds", tuned.gpu_seconds},
                      {"neighbours", tuned.neighbours},
                      {"raced", tuned.raced},
                      {"finished", tuned.finished}});
  }
  const Json document{{"schema_version", 1},
                      {"mode", "measured"},
                      {"model", workload.model},
                      {"device", summary.device.name},
                      {"arch", to_string(summary.device.arch)},
                      {"problem", Json::parse(to_json(workload.problem))},
                      {"seconds", summary.seconds},
                      {"interrupted", summary.interrupted},
                      {"shapes", std::move(shapes)}};
  print(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void print_candidates(const std::vector<OfflineShape>& shapes) {
  constexpr std::size_t kShown = 5;
  for (const OfflineShape& offline : shapes) {
    Table table{.headings = {"predicted us", "regs", "smem", "CTAs/SM", "grid", "kernel"},
                .rows = {},
                .right_aligned = "rrrrrl"};
    std::size_t accepted = 0;
    for (const OfflineCandidate& candidate : offline.candidates) {
      if (!candidate.accepted || ++accepted > kShown) continue;
      table.rows.push_back({fmt::format("{:.1f}", candidate.predicted_us),
                            candidate.registers > 0 ? std::to_string(candidate.registers) : "-",
                            format_bytes(candidate.shared_bytes), std::to_string(candidate.resident_ctas),
                            std::to_string(candidate.config.grid), kernel_name(candidate.config.spec)});
    }
    print(fmt::format("{}: {} candidates, {} accepted; the model's first {}\n", describe(offline.shape),
                      offline.candidates.size(), accepted, table.rows.size()));
    print(to_text(table) + "\n");
  }
}

void print_candidates_json(const Workload& workload, const DeviceFacts& facts, const std::vector<OfflineShape>& offline,
                           bool interrupted) {
  Json shapes = Json::array();
  for (const OfflineShape& shape : offline) {
    Json candidates = Json::array();
    for (const OfflineCandidate& candidate : shape.candidates) {
      candidates.push_back({{"kernel", kernel_name(candidate.config.spec)},
                            {"config", Json::parse(to_json(candidate.config))},
                            {"accepted", candidate.accepted},
                            {"reason", candidate.reason},
                            {"registers", candidate.registers},
                            {"spill_bytes", candidate.spill_bytes},
                            {"shared_bytes", candidate.shared_bytes},
                            {"resident_ctas", candidate.resident_ctas},
                            {"compile_ms", candidate.compile_ms},
                            {"predicted_us", candidate.predicted_us}});
    }
    shapes.push_back({{"shape", Json::parse(to_json(shape.shape))}, {"candidates", std::move(candidates)}});
  }
  const Json document{{"schema_version", 1},        {"mode", "offline"},
                      {"model", workload.model},    {"arch", to_string(facts.arch)},
                      {"sms", facts.sm_count},      {"problem", Json::parse(to_json(workload.problem))},
                      {"interrupted", interrupted}, {"shapes", std::move(shapes)}};
  print(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

int tune_without_gpu(const Session& session, const TuneFlags& flags, const Workload& workload,
                     const TuneRequest& request, Caches& caches) {
  const Result<DeviceFacts> facts = offline_facts(flags.device);
  if (!facts) return report_error(facts.error());
  if (const Result<DeviceFacts> here = device_facts(flags.device.device); !here)
    note(session, "No GPU: " + here.error().message);
  note(session,
       fmt::format("Offline for {}, {} SMs: candidates are generated, {}ranked by the model; nothing is measured.",
                   to_string(facts->arch), facts->sm_count, request.dry_run ? "" : "compiled and "));
  const std::atomic<bool>* stop = stop_on_signals();
  ProgressLine line(session.quiet, is_terminal(stderr));
  const auto sink = [&line](const TuneProgress& progress) { line.show(progress); };
  const Result<std::vector<OfflineShape>> offline = tune_offline(request, *facts, caches.cubins.get(), sink, stop);
  line.clear();
  if (!offline) return report_error(offline.error());
  if (session.json) {
    print_candidates_json(workload, *facts, *offline, stop->load());
  } else {
    print_candidates(*offline);
  }
  if (stop->load()) return kExitInterrupted;
  // Some rejections are the search at work; nothing but rejections means that something is broken.
  const OfflineCandidate* rejected = nullptr;
  bool any_accepted = false;
  for (const OfflineShape& shape : *offline) {
    for (const OfflineCandidate& candidate : shape.candidates) {
      any_accepted = any_accepted || candidate.accepted;
      if (!candidate.accepted && rejected == nullptr) rejected = &candidate;
    }
  }
  if (!request.dry_run && !any_accepted && rejected == nullptr) {
    return report_error(
        {ErrorCode::not_found, "nothing was compiled within the budget", "Give a larger --budget, or none.", {}});
  }
  if (!request.dry_run && !any_accepted) {
    return report_error(
        {ErrorCode::kernel_rejected, "every candidate was rejected, the first because: " + rejected->reason, {}, {}});
  }
  if (!request.dry_run && caches.directory) {
    note(session, fmt::format("Cubins are in {}. On the GPU itself, `leanattn tune` measures the candidates.",
                              caches.directory->string()));
  }
  return kExitOk;
}

int tune_on_gpu(const Session& session, const TuneFlags& flags, const Workload& workload, const TuneRequest& request,
                Caches& caches) {
  // Asked before the database is opened: without a GPU nothing must be left behind.
  if (Result<DeviceFacts> facts = device_facts(flags.device.device); !facts) {
    Error error = facts.error();
    error.hint +=
        (error.hint.empty() ? "" : "\n  ") +
        std::string(
            "Without a GPU, give --arch (for example --arch sm_90a --sms 132): candidates are then generated, compiled "
            "and ranked, and the cubins kept.");
    return report_error(error);
  }
  Result<std::unique_ptr<TuningDb>> db =
      open_tuning(caches, request.dry_run ? OpenMode::read_only : OpenMode::read_write, CacheNeed::durable);
  if (!db) return report_error(db.error());
  const std::atomic<bool>* stop = stop_on_signals();
  ProgressLine line(session.quiet, is_terminal(stderr));
  const auto sink = [&line](const TuneProgress& progress) { line.show(progress); };
  const Result<TuneSummary> summary = tune(request, **db, caches.cubins.get(), sink, stop);
  line.clear();
  if (const std::optional<std::string> warning = (*db)->take_warning()) warn(*warning);
  if (!summary) return report_error(summary.error());
  for (const TunedShape& shape : summary->shapes) {
    if (shape.neighbours.empty()) continue;
    warn(fmt::format("the GPU was {} while it was measured: times may be too long", shape.neighbours));
    break;
  }
  if (session.json) {
    print_winners_json(workload, *summary);
  } else {
    print(fmt::format("{}, {}{}: {}\n", summary->device.name, describe(workload.problem),
                      workload.model.empty() ? "" : " (" + workload.model + ")",
                      request.dry_run ? "what would be tried"
                                      : fmt::format("tuned in {:.1f} s, {} L2", summary->seconds, flags.policy)));
    if (request.dry_run) {
      for (const TunedShape& shape : summary->shapes)
        print(fmt::format("{}: {} candidates\n", describe(shape.shape), shape.candidates));
    } else {
      print_winners(workload, *summary);
    }
  }
  if (summary->interrupted) {
    note(session,
         "Interrupted: these are the best so far, and every finished trial is kept. --resume goes on from here.");
    return kExitInterrupted;
  }
  return kExitOk;
}

int run(const Session& session, const TuneFlags& flags) {
  const Result<Workload> workload = resolve(flags.shape, kBatchDefault, kContextDefault);
  if (!workload) return report_error(workload.error());
  TuneRequest request;
  request.problem = workload->problem;
  request.shapes = workload->shapes;
  request.device = flags.device.device;
  request.resume = flags.resume;
  request.dry_run = flags.dry_run;
  request.command = session.command_line;
  if (flags.policy != "cold" && flags.policy != "warm") {
    return report_error(
        {ErrorCode::invalid_argument, fmt::format("--l2 '{}': unknown", flags.policy), "Give cold or warm.", {}});
  }
  request.policy = flags.policy == "warm" ? L2Policy::warm : L2Policy::cold;
  if (!flags.budget.empty()) {
    const auto budget = parse_duration("--budget", flags.budget);
    if (!budget) return report_error(budget.error());
    request.budget = *budget;
  }
  if (!flags.jobs.empty()) {
    const auto jobs = parse_size("--jobs", flags.jobs, 1, 1024);
    if (!jobs) return report_error(jobs.error());
    request.compile_threads = static_cast<int>(*jobs);
  }
  if (flags.device.arch.empty() && !flags.device.sms.empty()) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("--sms {}: describes a GPU that is not here", flags.device.sms),
                         "Give --arch with it.",
                         {}});
  }
  // A dry run touches nothing; only --resume has to look at what is there.
  const bool in_memory = flags.dry_run && !flags.resume;
  Result<Caches> caches = in_memory ? Result<Caches>(Caches{std::nullopt, open_cubin_db(std::nullopt, nullptr)})
                                    : open_caches(session, flags.dry_run ? CacheNeed::optional : CacheNeed::durable);
  if (!caches) return report_error(caches.error());
  return flags.device.arch.empty() ? tune_on_gpu(session, flags, *workload, request, *caches)
                                   : tune_without_gpu(session, flags, *workload, request, *caches);
}

}  // namespace

Command add_tune(CLI::App& program) {
  auto flags = std::make_shared<TuneFlags>();
  CLI::App* app = program.add_subcommand("tune", "Find the fastest kernel and grid for every shape, and keep them");
  add_shape_flags(*app, flags->shape, kBatchDefault, kContextDefault);
  add_device_flags(*app, flags->device);
  app->add_option("--budget", flags->budget, "Time limit over all shapes, such as 60s; the best so far is kept")
      ->type_name("TIME");
  app->add_option("--l2", flags->policy, "cold: KV from memory, as in a model; warm: KV in L2. Default cold")
      ->type_name("POLICY");
  app->add_option("--jobs", flags->jobs, "Compile threads; default: one a core")->type_name("N");
  app->add_flag("--resume", flags->resume, "Skip what this version has already tried");
  app->add_flag("--dry-run", flags->dry_run, "Say what would be tried; touch nothing");
  return {app, [flags](const Session& session) { return run(session, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
