#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/caches.hpp"
#include "cli/commands.hpp"
#include "cli/device_flags.hpp"
#include "cli/progress.hpp"
#include "cli/shape_flags.hpp"
#include "cli/sizes.hpp"
#include "cli/stop.hpp"
#include "cli/tune_output.hpp"
#include "cli/tune_work.hpp"
#include "runtime/lookup.hpp"
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
  std::string from_capture;
  bool revalidate = false;
  bool shape_given = false;  ///< any of the flags that say which shape
  bool resume = false;
  bool dry_run = false;
  bool in_process = false;
  std::string candidate_timeout;
};

int tune_without_gpu(const Session& session, const TuneFlags& flags, const Workload& workload,
                     const TuneRequest& request, Caches& caches, Json* tunings) {
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
    print_candidates_json(workload, *facts, *offline, stop->load(), tunings);
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

/// This very program, whatever has become of its file since.
WorkerOptions worker_options(const TuneFlags& flags, const Caches& caches) {
  WorkerOptions workers{.command = {"/proc/self/exe", "worker"}};
  if (caches.directory) workers.cache_directory = caches.directory->string();
  if (!flags.candidate_timeout.empty())
    workers.candidate_limit = *parse_duration("--candidate-timeout", flags.candidate_timeout);
  return workers;
}

/// Sessions in this process, one device after the other (a dry run: a session is of one device), put like those of
/// workers.
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
    models.push_back({.summary = std::move(*summary), .ordinals = {ordinal}, .failures = {}, .warnings = {}});
  }
  if (std::optional<std::string> warning = db.take_warning()) models.front().warnings.push_back(std::move(*warning));
  return models;
}

int tune_on_gpu(const Session& session, const TuneFlags& flags, const Workload& workload, const TuneRequest& request,
                Caches& caches, Json* tunings) {
  // Asked before the database is opened: without a GPU nothing must be left behind.
  const Result<std::vector<int>> ordinals = chosen_devices(flags.device);
  if (!ordinals) {
    Error error = ordinals.error();
    if (error.code != ErrorCode::invalid_argument)
      error.hint +=
          (error.hint.empty() ? "" : "\n  ") +
          std::string(
              "Without a GPU, give --arch (for example --arch sm_90a --sms 132): candidates are then generated, "
              "compiled and ranked, and the cubins kept.");
    return report_error(error);
  }
  if (flags.in_process && ordinals->size() > 1) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("--in-process tunes one GPU, these are {}", ordinals->size()),
                         "Name one with --device, or leave --in-process out.",
                         {}});
  }
  Result<std::unique_ptr<TuningDb>> db =
      open_tuning(caches, request.dry_run ? OpenMode::read_only : OpenMode::read_write, CacheNeed::durable);
  if (!db) return report_error(db.error());
  const std::atomic<bool>* stop = stop_on_signals();
  ProgressLine line(session.quiet, is_terminal(stderr));
  const auto sink = [&line](const TuneProgress& progress) { line.show(progress); };
  // What there was to say of the directory and its databases has been said: the workers' connections are silent.
  const auto connect = [&caches] { return TuningDb::open(caches.directory, OpenMode::read_write, nullptr); };
  const Result<std::vector<ModelSummary>> models =
      flags.in_process || request.dry_run
          ? tune_in_process(request, *ordinals, **db, caches.cubins.get(), sink, stop)
          : tune_in_workers(request, *ordinals, worker_options(flags, caches), connect, sink, stop);
  line.clear();
  if (!models) return report_error(models.error());
  if (session.json) {
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
      warn(fmt::format("the GPU was {} while it was measured: times may be too long", crowded->neighbours));
    for (const auto& [ordinal, error] : model.failures) code = report_error(error);
    interrupted = interrupted || model.summary.interrupted;
  }
  if (!interrupted) return code;
  note(session,
       "Interrupted: these are the best so far, and every finished trial is kept. --resume goes on from here.");
  return kExitInterrupted;
}

int tune_one(const Session& session, const TuneFlags& flags, const TuneWork& work, TuneRequest request, Caches& caches,
             Json* tunings) {
  request.problem = work.workload.problem;
  request.shapes = work.workload.shapes;
  request.weights = work.weights;
  request.policy = work.policy;
  return flags.device.arch.empty() ? tune_on_gpu(session, flags, work.workload, request, caches, tunings)
                                   : tune_without_gpu(session, flags, work.workload, request, caches, tunings);
}

/// A capture with something in it; what cannot be read of it is said.
Result<CaptureSum> read_shapes(const Session& session, const std::string& file) {
  Result<CaptureSum> capture = read_capture(file);
  if (!capture) return capture;
  for (const auto& [line, why] : capture->unreadable) warn(fmt::format("{}:{}: {}; skipped", file, line, why));
  if (capture->shapes.empty()) {
    return fail(ErrorCode::not_found, fmt::format("{} has no shapes", file),
                "Run an engine with LEANATTN_CAPTURE set to it, and let it plan.");
  }
  note(session, fmt::format("{}: {}", file, describe(*capture)));
  return capture;
}

Result<std::vector<TuneWork>> find_stale_work(const TuneFlags& flags, const Caches& caches) {
  const Result<std::vector<int>> ordinals = chosen_devices(flags.device);
  if (!ordinals) return tl::unexpected(ordinals.error());
  std::vector<DeviceFacts> devices;
  for (const int ordinal : *ordinals) {
    Result<DeviceFacts> device = device_facts(ordinal);
    if (!device) return tl::unexpected(device.error());
    devices.push_back(*std::move(device));
  }
  const Result<std::unique_ptr<TuningDb>> db = open_tuning(caches, OpenMode::read_only, CacheNeed::durable);
  if (!db) return tl::unexpected(db.error());
  return stale_work(**db, devices);
}

/// One after the other, each with its share of the budget. What one work cannot have is reported, and the others go on;
/// the exit code is the first that is not 0.
int tune_all(const Session& session, const TuneFlags& flags, const std::vector<TuneWork>& works, TuneRequest request,
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
        note(session,
             fmt::format("The budget is spent; {} of {} problems were not reached.", works.size() - i, works.size()));
        break;
      }
      request.budget = std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(left * share_of(works, i))));
    }
    const int one = tune_one(session, flags, works[i], request, caches, session.json ? &document["tunings"] : nullptr);
    if (code == kExitOk) code = one;
    if (one == kExitInterrupted) code = one;
    if (one == kExitInterrupted || one == kExitNoDevice || one == kExitDatabase) break;
  }
  if (session.json) put(document, nullptr);
  return code;
}

int run(const Session& session, const TuneFlags& flags) {
  if (flags.revalidate && !flags.device.arch.empty()) {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("--revalidate with --arch {}: it measures", flags.device.arch),
                         "Run it on the GPU, without --arch.",
                         {}});
  }
  TuneRequest request;
  request.resume = flags.resume;
  request.revalidate = flags.revalidate;
  request.dry_run = flags.dry_run;
  request.command = session.command_line;
  const Result<L2Policy> policy = parse_l2(flags.policy);
  if (!policy) return report_error(policy.error());
  request.policy = *policy;
  const bool by_shape = flags.from_capture.empty() && (!flags.revalidate || flags.shape_given);
  std::vector<TuneWork> works;
  Json document{{"schema_version", 1}};
  if (by_shape) {
    const Result<Workload> workload = resolve(flags.shape, kBatchDefault, kContextDefault);
    if (!workload) return report_error(workload.error());
    works.push_back({.workload = *workload, .weights = {}, .policy = request.policy});
  } else if (!flags.from_capture.empty()) {
    const Result<CaptureSum> capture = read_shapes(session, flags.from_capture);
    if (!capture) return report_error(capture.error());
    document["capture"] = to_json(*capture);
    works = captured_work(*capture, request.policy);
  }
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
                         fmt::format("--sms {}: describes a GPU that is not here", flags.device.sms),
                         "Give --arch with it.",
                         {}});
  }
  // A dry run touches nothing; only --resume has to look at what is there.
  const bool in_memory = flags.dry_run && !flags.resume;
  Result<Caches> caches = in_memory ? Result<Caches>(Caches{std::nullopt, open_cubin_db(std::nullopt, nullptr)})
                                    : open_caches(session, flags.dry_run ? CacheNeed::optional : CacheNeed::durable);
  if (!caches) return report_error(caches.error());
  if (by_shape) return tune_one(session, flags, works.front(), request, *caches, nullptr);
  if (flags.from_capture.empty()) {
    Result<std::vector<TuneWork>> stale = find_stale_work(flags, *caches);
    if (!stale) return report_error(stale.error());
    works = *std::move(stale);
    if (works.empty())
      note(session, "No winner is stale: driver, NVRTC and library are those they were measured under.");
  }
  return tune_all(session, flags, works, request, *caches, std::move(document));
}

}  // namespace

Command add_tune(CLI::App& program) {
  auto flags = std::make_shared<TuneFlags>();
  CLI::App* app = program.add_subcommand("tune", "Find the fastest kernel and grid for every shape, and keep them");
  add_shape_flags(*app, flags->shape, kBatchDefault, kContextDefault);
  add_device_list_flags(*app, flags->device);
  app->add_option("--budget", flags->budget, "Time limit over all shapes, such as 60s; the best so far is kept")
      ->type_name("TIME");
  app->add_option("--l2", flags->policy, "cold: KV from memory, as in a model; warm: KV in L2. Default cold")
      ->type_name("POLICY");
  app->add_option("--jobs", flags->jobs, "Compile threads; default: one a core")->type_name("N");
  CLI::Option* from_capture =
      app->add_option("--from-capture", flags->from_capture,
                      "Tune what engines counted into this LEANATTN_CAPTURE file, most frequent first")
          ->type_name("FILE");
  CLI::Option* revalidate = app->add_flag(
      "--revalidate", flags->revalidate,
      "No search: measure stored winners, those close to them and the default again; of no shape in particular: all "
      "that are stale");
  revalidate->excludes(
      app->add_flag("--resume", flags->resume, "Skip what this version has already tried with this driver and NVRTC"));
  revalidate->excludes(app->add_flag("--dry-run", flags->dry_run, "Say what would be tried; touch nothing"));
  app->add_option("--candidate-timeout", flags->candidate_timeout,
                  "Most time a check or a round of a candidate may take; default: much more than predicted")
      ->type_name("TIME");
  app->add_flag("--in-process", flags->in_process,
                "Launch candidates from this process, for debuggers: a bad one then ends the session");
  const std::vector<CLI::Option*> shape = app->get_options(
      [](const CLI::Option* option) { return option->get_group() == "Shape" || option->get_group() == "Features"; });
  for (CLI::Option* option : shape) from_capture->excludes(option);
  return {app, [flags, shape](const Session& session) {
            flags->shape_given =
                std::any_of(shape.begin(), shape.end(), [](const auto* option) { return option->count() > 0; });
            return run(session, *flags);
          }};
}

}  // namespace v1
}  // namespace leanattn
