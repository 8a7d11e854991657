#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/commands/progress_line.hpp"
#include "cli/commands/tune_output.hpp"
#include "cli/commands/tune_work.hpp"
#include "cli/console/stop.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/device_flags.hpp"
#include "cli/flags/request_flags.hpp"
#include "cli/flags/shape_flags.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "cli/models/models_json.hpp"
#include "runtime/engine/group.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tuner/search/tune.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::ordered_json;

const std::string kTuneBatch = "1,16";
const std::string kTuneContext = "1k,8k,64k";

struct TuneFlags {
  ShapeFlags shape;
  RequestFlags requests;
  DeviceFlags device;
  std::string budget;
  std::string policy = "cold";
  std::string jobs;
  std::string from_capture;
  bool revalidate = false;
  bool shape_given = false;  ///< whether any flag of ShapeFlags was given
  bool resume = false;
  bool missing = false;
  bool dry_run = false;
  bool in_process = false;
  std::string candidate_timeout;
};

int tune_without_gpu(const Console& console, const TuneFlags& flags, const Workload& workload,
                     const TuneRequest& request, Caches& caches, Json* tunings) {
  const Result<DeviceFacts> facts = offline_facts(flags.device);
  if (!facts) return report_error(facts.error());
  note(console,
       fmt::format("A GPU of {} with {} SMs and {} of L2 is assumed{}. Candidates are generated, {}ranked by the cost "
                   "model; nothing is measured.",
                   to_string(facts->arch), facts->sm_count, format_bytes(facts->l2_bytes),
                   flags.device.sms.empty() ? fmt::format(" (as {})", usual_product(flags.device)) : "",
                   request.dry_run ? "" : "compiled and "));
  const std::atomic<bool>* stop = stop_on_signals();
  ProgressLine line(console.quiet, is_terminal(stderr));
  const auto sink = [&line](const TuneProgress& progress) { line.show(progress); };
  const Result<std::vector<OfflineShape>> offline = tune_offline(request, *facts, caches.cubins.get(), sink, stop);
  line.clear();
  if (!offline) return report_error(offline.error());
  std::optional<Error> not_kept = request.dry_run ? std::nullopt : caches.cubins->not_kept();
  if (console.json) {
    print_candidates_json(workload, *facts, *offline,
                          {.dry_run = request.dry_run,
                           .interrupted = stop->load(),
                           .not_kept = not_kept ? not_kept->message : std::string()},
                          tunings);
  } else {
    print_candidates(workload, *facts, *offline, request.dry_run);
  }
  if (stop->load()) return kExitInterrupted;
  if (const int skipped = offline->front().skipped; skipped > 0) {
    note(console, fmt::format("The budget ended before {} more candidates were compiled. A larger --budget, or none, "
                              "compiles them all.",
                              skipped));
  }
  // Some candidates are always rejected. When all are, something is broken.
  const OfflineCandidate* rejected = nullptr;
  bool any_accepted = false;
  for (const OfflineShape& shape : *offline) {
    for (const OfflineCandidate& candidate : shape.candidates) {
      any_accepted = any_accepted || candidate.accepted;
      if (!candidate.accepted && rejected == nullptr) rejected = &candidate;
    }
  }
  if (!request.dry_run && !any_accepted && rejected == nullptr) {
    return report_error({ErrorCode::not_found,
                         "nothing was compiled within the budget",
                         "Give a larger --budget, or leave it out.",
                         {}});
  }
  if (!request.dry_run && !any_accepted) {
    return report_error({ErrorCode::kernel_rejected,
                         "every candidate was rejected, the first for this reason: " + rejected->reason,
                         {},
                         {}});
  }
  if (not_kept) {
    not_kept->message = "not every kernel that was compiled is kept: " + not_kept->message;
    return report_error(*not_kept);
  }
  if (!request.dry_run && caches.directory) {
    note(console, fmt::format("The cubins are in {}. On the GPU itself, `leanattn tune` measures the candidates.",
                              caches.directory->string()));
  }
  return kExitOk;
}

/// The workers run this very program, even when its file has been replaced since.
WorkerOptions worker_options(const TuneFlags& flags, const Caches& caches) {
  WorkerOptions workers{.command = {"/proc/self/exe", "worker"}};
  if (caches.directory) workers.cache_directory = caches.directory->string();
  if (!flags.candidate_timeout.empty())
    workers.candidate_limit = *parse_duration("--candidate-timeout", flags.candidate_timeout);
  return workers;
}

/// Runs tuning sessions in this process, one device after the other, and gives the result that tune_in_workers() would
/// give. A dry run of several devices has one session for each.
Result<std::vector<ModelSummary>> tune_in_process(TuneRequest request, std::span<const int> ordinals, TuningDb& db,
                                                  CubinCache* cubins, const ProgressSink& progress,
                                                  const std::atomic<bool>* stop) {
  std::vector<ModelSummary> models;
  for (const int ordinal : ordinals) {
    request.device = ordinal;
    Result<TuneSummary> summary = tune(request, db, cubins, progress, stop);
    if (!summary) return tl::unexpected(summary.error());
    const auto equal = std::find_if(models.begin(), models.end(), [&](const ModelSummary& model) {
      return device_model(model.summary.device) == device_model(summary->device);
    });
    if (equal != models.end()) {
      equal->ordinals.push_back(ordinal);
      continue;
    }
    ModelSummary& model = models.emplace_back();
    model.ordinals = {ordinal};
    model.warnings = summary->warnings;
    model.summary = std::move(*summary);
  }
  if (std::optional<std::string> warning = db.take_warning()) models.front().warnings.push_back(std::move(*warning));
  models.front().not_kept = db.not_kept();
  return models;
}

int tune_on_gpu(const Console& console, const TuneFlags& flags, const Workload& workload, const TuneRequest& request,
                Caches& caches, Json* tunings) {
  // The devices come first, because without a GPU no database must be made.
  const Result<std::vector<int>> ordinals = chosen_devices(flags.device);
  if (!ordinals) {
    Error error = ordinals.error();
    if (error.code != ErrorCode::invalid_argument)
      error.hint += (error.hint.empty() ? "" : "\n  ") +
                    std::string(
                        "Without a GPU, give --arch, such as --arch sm_90a --sms 132. Candidates are then generated, "
                        "compiled and ranked, and their cubins are kept.");
    return report_error(error);
  }
  const bool group = in_group(request.problem.features);
  if (flags.in_process && ordinals->size() > 1 && !group) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("--in-process tunes one GPU, but {} were given", ordinals->size()),
                         "Name one with --device, or leave --in-process out.",
                         {}});
  }
  Result<std::unique_ptr<TuningDb>> db =
      open_tuning(caches, request.dry_run ? OpenMode::read_only : OpenMode::read_write, CacheNeed::durable);
  if (!db) return report_error(db.error());
  const std::atomic<bool>* stop = stop_on_signals();
  ProgressLine line(console.quiet, is_terminal(stderr));
  const auto sink = [&line](const TuneProgress& progress) { line.show(progress); };
  // The connection above has warned of what is wrong with the databases, so the workers' connections are silent.
  const auto connect = [&caches] { return TuningDb::open(caches.directory, OpenMode::read_write, nullptr); };
  const Result<std::vector<ModelSummary>> models =
      flags.in_process || request.dry_run
          ? tune_in_process(request, group ? std::span(*ordinals).first(1) : std::span(*ordinals), **db,
                            caches.cubins.get(), sink, stop)
          : tune_in_workers(request, *ordinals, worker_options(flags, caches), connect, sink, stop);
  line.clear();
  if (!models) return report_error(models.error());
  if (console.json) {
    print_winners_json(workload, *models, tunings);
  } else {
    for (const ModelSummary& model : *models) print_model(workload, request, model);
  }
  bool interrupted = false;
  int code = kExitOk;
  for (const ModelSummary& model : *models) {
    for (const std::string& warning : model.warnings) warn(warning);
    const auto& shapes = model.summary.shapes;
    const auto crowded =
        std::find_if(shapes.begin(), shapes.end(), [](const TunedShape& shape) { return !shape.neighbours.empty(); });
    if (crowded != shapes.end())
      warn(fmt::format("the GPU was {} during the measurement, so times may be too long", crowded->neighbours));
    for (const auto& [ordinal, error] : model.failures) code = report_error(error);
    if (std::optional<Error> why = model.not_kept) {
      why->message = "not everything that was measured is kept: " + why->message;
      code = report_error(*why);
    }
    interrupted = interrupted || model.summary.interrupted;
  }
  if (!interrupted) return code;
  note(console,
       "The tuning session was interrupted. These are the best so far, and every finished trial is kept. --resume goes "
       "on "
       "from here.");
  return kExitInterrupted;
}

int tune_work(const Console& console, const TuneFlags& flags, const TuneWork& work, TuneRequest request, Caches& caches,
              Json* tunings) {
  request.problem = work.workload.problem;
  request.shapes = work.workload.shapes;
  Workload workload = work.workload;
  if (in_group(request.problem.features) && flags.device.arch.empty()) {
    const auto ranks = devices_of_ranks(flags.device, request.problem.features.context_parallel);
    // Where there is no GPU at all, the session says what to do.
    if (!ranks && ranks.error().code == ErrorCode::invalid_argument) return report_error(ranks.error());
    if (ranks) {
      const Result<GroupLink> link = group_link_of(*ranks);
      if (!link) return report_error(link.error());
      if (request.revalidate && request.problem.group_link != *link && !flags.shape_given) {
        note(console, fmt::format("{} is left out, because the GPUs of --device make another group ({}).",
                                  describe(request.problem), to_string(*link)));
        return kExitOk;
      }
      request.rank_devices = *ranks;
      workload.problem.group_link = request.problem.group_link = *link;
    }
  }
  request.weights = work.weights;
  request.policy = work.policy;
  return flags.device.arch.empty() ? tune_on_gpu(console, flags, workload, request, caches, tunings)
                                   : tune_without_gpu(console, flags, workload, request, caches, tunings);
}

/// A call capture that has shapes. Lines of it that cannot be read are warned of.
Result<CallCaptureSum> read_shapes(const Console& console, const std::string& file) {
  Result<CallCaptureSum> capture = read_call_capture(file);
  if (!capture) return capture;
  constexpr std::size_t kMostNamed = 5;
  for (std::size_t i = 0; i < std::min(kMostNamed, capture->unreadable.size()); ++i) {
    const auto& [line, why] = capture->unreadable[i];
    warn(fmt::format("{}:{}: {}; this line is skipped", file, line, why));
  }
  if (capture->unreadable_lines > static_cast<std::int64_t>(kMostNamed)) {
    warn(fmt::format("{}: {} more lines cannot be read and are skipped", file,
                     capture->unreadable_lines - static_cast<std::int64_t>(kMostNamed)));
  }
  if (capture->shapes.empty()) {
    return fail(ErrorCode::not_found, fmt::format("{} has no shapes", file),
                "Set LEANATTN_CAPTURE to this file, run a program with an engine, and let it plan.");
  }
  note(console, fmt::format("{} has {}.", file, describe(*capture)));
  return capture;
}

/// What the database says is to be tuned on the chosen devices: `works` without what has a winner already, or, with
/// --revalidate, all that is stale.
Result<std::vector<TuneWork>> work_by_database(const TuneFlags& flags, const Caches& caches,
                                               std::vector<TuneWork> works) {
  const Result<std::vector<int>> ordinals = chosen_devices(flags.device);
  if (!ordinals) return tl::unexpected(ordinals.error());
  std::vector<DeviceFacts> devices;
  for (const int ordinal : *ordinals) {
    Result<DeviceFacts> device = device_facts(ordinal);
    if (!device) return tl::unexpected(device.error());
    devices.push_back(*std::move(device));
  }
  for (TuneWork& work : works) {
    DecodeProblem& problem = work.workload.problem;
    if (!in_group(problem.features)) continue;
    const auto ranks = devices_of_ranks(flags.device, problem.features.context_parallel);
    if (!ranks) return tl::unexpected(ranks.error());
    const Result<GroupLink> link = group_link_of(*ranks);
    if (!link) return tl::unexpected(link.error());
    problem.group_link = *link;
  }
  const Result<std::unique_ptr<TuningDb>> db = open_tuning(caches, OpenMode::read_only, CacheNeed::durable);
  if (!db) return tl::unexpected(db.error());
  return flags.missing ? missing_work(std::move(works), **db, devices) : stale_work(**db, devices);
}

/// Tunes one work after the other, each with its share of the budget. A work that fails is reported, and the others go
/// on. The exit code is the first one that is not 0.
int tune_all(const Console& console, const TuneFlags& flags, const std::vector<TuneWork>& works, TuneRequest request,
             Caches& caches, Json document) {
  const auto started = std::chrono::steady_clock::now();
  const auto budget = request.budget;
  document["tunings"] = Json::array();
  int code = kExitOk;
  for (std::size_t i = 0; i < works.size(); ++i) {
    if (budget) {
      const auto spent =
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started);
      const double left = static_cast<double>((*budget - spent).count());
      if (left < 1) {
        note(console,
             fmt::format("The budget is spent. {} of {} problems were not reached.", works.size() - i, works.size()));
        break;
      }
      request.budget = std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(left * share_of(works, i))));
    }
    const int one = tune_work(console, flags, works[i], request, caches, console.json ? &document["tunings"] : nullptr);
    if (code == kExitOk) code = one;
    if (one == kExitInterrupted) code = one;
    if (one == kExitInterrupted || one == kExitNoDevice || one == kExitDatabase) break;
  }
  if (console.json) put(document, nullptr);
  return code;
}

int run(const Console& console, const TuneFlags& flags) {
  if (flags.revalidate && !flags.device.arch.empty()) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("--revalidate measures, so --arch {} cannot be given with it", flags.device.arch),
                         "Run it on the GPU and leave --arch out.",
                         {}});
  }
  for (const auto& [flag, given] : {std::pair("--resume", flags.resume), std::pair("--missing", flags.missing),
                                    std::pair("--in-process", flags.in_process),
                                    std::pair("--candidate-timeout", !flags.candidate_timeout.empty())}) {
    if (given && !flags.device.arch.empty()) {
      return report_error(
          {ErrorCode::invalid_argument,
           fmt::format("{} is about measurements, and with --arch {} nothing is measured", flag, flags.device.arch),
           "Leave one of them out.",
           {}});
    }
  }
  TuneRequest request;
  request.resume = flags.resume;
  request.revalidate = flags.revalidate;
  request.dry_run = flags.dry_run;
  request.command = console.command_line;
  const Result<L2Policy> policy = parse_l2_policy(flags.policy);
  if (!policy) return report_error(policy.error());
  request.policy = *policy;
  const bool by_shape = flags.from_capture.empty() && (!flags.revalidate || flags.shape_given);
  std::vector<TuneWork> works;
  Json document{{"schema_version", 1}};
  if (by_shape) {
    Result<ModelWorkloads> model = resolve_all(console, flags.shape, kTuneBatch, kTuneContext);
    if (!model) return report_error(model.error());
    for (Workload& workload : model->workloads)
      works.push_back({.workload = std::move(workload), .weights = {}, .policy = request.policy});
    if (model->model && works.size() > 1) document["model"] = to_json(*model->model);
    for (TuneWork& work : works) {
      Result<StepRequests> step = resolve_requests(flags.requests, work.workload);
      if (!step) return report_error(step.error());
      request.requests = *std::move(step);
    }
  } else if (!flags.from_capture.empty()) {
    const Result<CallCaptureSum> capture = read_shapes(console, flags.from_capture);
    if (!capture) return report_error(capture.error());
    document["capture"] = to_json(*capture);
    works = captured_work(*capture, request.policy);
  }
  const bool one_problem = by_shape && works.size() == 1;
  if (!flags.budget.empty()) {
    const auto budget = parse_duration("--budget", flags.budget);
    if (!budget) return report_error(budget.error());
    request.budget = *budget;
  }
  if (!flags.candidate_timeout.empty()) {
    if (const auto limit = parse_duration("--candidate-timeout", flags.candidate_timeout); !limit)
      return report_error(limit.error());
  }
  if (!flags.jobs.empty()) {
    const auto jobs = parse_size("--jobs", flags.jobs, 1, 1024);
    if (!jobs) return report_error(jobs.error());
    request.compile_threads = static_cast<int>(*jobs);
  }
  if (flags.device.arch.empty() && !flags.device.sms.empty()) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("--sms {} describes a GPU only together with --arch", flags.device.sms),
                         "Give --arch, too, or leave --sms out.",
                         {}});
  }
  // A dry run writes nothing. Only with --resume or --missing does it read the databases.
  const bool in_memory = flags.dry_run && !flags.resume && !flags.missing;
  Result<Caches> caches = in_memory ? Result<Caches>(Caches{std::nullopt, open_cubin_db(std::nullopt, nullptr), {}})
                                    : open_caches(console, flags.dry_run ? CacheNeed::optional : CacheNeed::durable);
  if (!caches) return report_error(caches.error());
  request.open_winners = [directory = caches->directory](const DeviceModel& device, const Environment& now) {
    return open_layered_winners(device, directory, with_kernels(now));
  };
  if (flags.missing || (!by_shape && flags.from_capture.empty())) {
    Result<std::vector<TuneWork>> left = work_by_database(flags, *caches, std::move(works));
    if (!left) return report_error(left.error());
    works = *std::move(left);
    if (works.empty()) {
      note(console, flags.missing
                        ? "No shape is missing. Each has a winner, measured with this driver, NVRTC and kernel."
                        : "No winner is stale. Driver, NVRTC and kernels are those of all measurements.");
    }
  }
  if (one_problem && !works.empty()) return tune_work(console, flags, works.front(), request, *caches, nullptr);
  return tune_all(console, flags, works, request, *caches, std::move(document));
}

}  // namespace

Command add_tune(CLI::App& program) {
  auto flags = std::make_shared<TuneFlags>();
  CLI::App* app = program.add_subcommand("tune", "Find the fastest kernel and grid for every shape, and record them");
  add_shape_flags(*app, flags->shape, kTuneBatch, kTuneContext);
  const auto requests = add_request_flags(*app, flags->requests);
  add_device_list_flags(*app, flags->device);
  app->add_option("--budget", flags->budget,
                  "The time limit for all shapes together, such as 60s; the best so far is kept")
      ->type_name("TIME");
  app->add_option("--l2", flags->policy,
                  "The L2 policy. cold: KV comes from memory, as in a model; warm: KV is in L2; default cold")
      ->type_name("cold|warm");
  app->add_option("--jobs", flags->jobs, "The number of threads that compile; default: one for each core")
      ->type_name("N");
  CLI::Option* from_capture =
      app->add_option("--from-capture", flags->from_capture,
                      "Tune the shapes of this call capture (LEANATTN_CAPTURE), the most frequent first")
          ->type_name("FILE");
  CLI::Option* revalidate = app->add_flag(
      "--revalidate", flags->revalidate,
      "Measure winners, their closest rivals and the default again, without a new search; when no shape is given: all "
      "stale winners");
  revalidate->excludes(app->add_flag("--resume", flags->resume,
                                     "Skip candidates that this version has already tried with this driver and NVRTC"));
  revalidate->excludes(
      app->add_flag("--missing", flags->missing,
                    "Only tune shapes that have no winner yet, measured with this driver, NVRTC and kernel"));
  revalidate->excludes(app->add_flag("--dry-run", flags->dry_run, "Only say what would be tried, and write nothing"));
  app->add_option("--candidate-timeout", flags->candidate_timeout,
                  "The most time that the check or a round of a candidate may take; default: much more than predicted")
      ->type_name("TIME");
  app->add_flag("--in-process", flags->in_process,
                "Launch candidates from this process, for debuggers; a bad one then ends the tuning session");
  const std::vector<CLI::Option*> shape = shape_options(*app);
  for (CLI::Option* option : shape) from_capture->excludes(option);
  for (CLI::Option* option : requests) from_capture->excludes(option), revalidate->excludes(option);
  set_examples(*app, {{"Tune the decode of Llama-3-8B for this GPU within a minute",
                       "leanattn tune --model llama-3-8b --batch 1,16 --budget 60s"},
                      {"Tune what a server has asked for", "leanattn tune --from-capture capture.jsonl"},
                      {"Tune a paged cache of fp8 on all GPUs",
                       "leanattn tune --model qwen3-8b --page-size 16 --kv-dtype fp8 --device all"},
                      {"Tune two GPUs that each hold a part of every context",
                       "leanattn tune --model llama-3-8b --context-parallel 2 --device 0,1"},
                      {"Say what would be tried on an H100, which need not be here",
                       "leanattn tune --model llama-3-8b --arch h100 --dry-run"}});
  return {app, [flags, shape](const Console& console) {
            flags->shape_given =
                std::any_of(shape.begin(), shape.end(), [](const auto* option) { return option->count() > 0; });
            return run(console, *flags);
          }};
}

}  // namespace v1
}  // namespace leanattn
