#include "tuner/evaluate/evaluation.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>
#include <random>

#include "cli/commands/commands.hpp"
#include "cli/commands/progress_line.hpp"
#include "cli/console/stop.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/device_flags.hpp"
#include "cli/flags/files.hpp"
#include "cli/flags/shape_flags.hpp"
#include "cli/flags/sizes.hpp"
#include "cli/help/command_page.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/one_gpu.hpp"
#include "tuner/backend/gpu_backend.hpp"
#include "tuner/evaluate/random_shapes.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

const std::string kEvaluateBatch = "1,16";
const std::string kEvaluateContext = "1k,8k,64k";

struct EvaluateFlags {
  CLI::App* search = nullptr;
  CLI::App* regret = nullptr;
  CLI::App* repeat = nullptr;
  ShapeFlags shape;
  std::string policy = "cold", jobs, kernels, reach, problems, count, seed, tune, trials, out;
  bool ragged = false;
  int device = 0;
};

struct Counts {
  int jobs = 0;
  std::size_t kernels = std::numeric_limits<std::size_t>::max();
  std::size_t problems = 0, shapes = 50;  ///< shapes: of each problem
  std::uint64_t seed = 1;
  std::optional<std::chrono::milliseconds> tune;
  double reach = std::numeric_limits<double>::infinity();
};

Result<Counts> parse_counts(const EvaluateFlags& flags) {
  Counts counts;
  const auto read = [](const char* flag, const std::string& text, std::int64_t most, auto& into) -> Result<void> {
    if (text.empty()) return {};
    const Result<std::int64_t> parsed = parse_size(flag, text, 1, most);
    if (!parsed) return tl::unexpected(parsed.error());
    into = static_cast<std::decay_t<decltype(into)>>(*parsed);
    return {};
  };
  if (auto ok = read("--jobs", flags.jobs, 1024, counts.jobs); !ok) return tl::unexpected(ok.error());
  if (auto ok = read("--kernels", flags.kernels, 1 << 20, counts.kernels); !ok) return tl::unexpected(ok.error());
  if (auto ok = read("--problems", flags.problems, 1000, counts.problems); !ok) return tl::unexpected(ok.error());
  if (counts.problems > 0) counts.shapes = 4;
  if (auto ok = read("--count", flags.count, 10000, counts.shapes); !ok) return tl::unexpected(ok.error());
  if (auto ok = read("--seed", flags.seed, std::numeric_limits<std::int64_t>::max(), counts.seed); !ok)
    return tl::unexpected(ok.error());
  if (!flags.tune.empty()) {
    const auto time = parse_duration("--tune", flags.tune);
    if (!time) return tl::unexpected(time.error());
    counts.tune = *time;
  }
  if (!flags.reach.empty()) {
    const char* end = flags.reach.data() + flags.reach.size();
    const auto [at, error] = std::from_chars(flags.reach.data(), end, counts.reach);
    if (error != std::errc() || at != end || !(counts.reach > 1)) {
      return fail(ErrorCode::invalid_argument, fmt::format("--reach '{}' is not a number above 1", flags.reach),
                  "Give a ratio of two times, such as 3.");
    }
  }
  return counts;
}

std::string percent(double value) { return fmt::format("{:.2f}%", 100 * value); }

void print_table(const SearchEvaluation& evaluation) {
  Table table{
      .headings = {"batch", "context", "search us", "exhaustive us", "ratio", "GPU s", "exhaustive GPU s", "share"},
      .rows = {},
      .right_aligned = "rrrrrrrr"};
  for (const SearchCase& one : evaluation.cases) {
    table.rows.push_back({std::to_string(one.shape.batch), format_size(one.shape.longest_context),
                          fmt::format("{:.2f}", one.duel.first_us), fmt::format("{:.2f}", one.duel.second_us),
                          fmt::format("{:.4f}", one.duel.ratio.ratio), fmt::format("{:.2f}", one.searched.gpu_seconds),
                          fmt::format("{:.2f}", one.exhaustive.gpu_seconds), percent(one.share_of_gpu_time())});
  }
  print_table(table);
  print_text(fmt::format("The worst ratio is {:.4f}. The search took {} of the exhaustive search's GPU time.\n",
                         evaluation.worst_ratio(), percent(evaluation.share_of_gpu_time())));
}

void print_table(const RegretEvaluation& evaluation) {
  Table table{
      .headings = {"problem", "batch", "longest", "total", "answer", "looked up us", "best us", "regret", "grid"},
      .rows = {},
      .right_aligned = "lrrrlrrrr"};
  for (const RegretCase& one : evaluation.cases) {
    table.rows.push_back({describe(one.problem), std::to_string(one.shape.batch),
                          std::to_string(one.shape.longest_context), std::to_string(total_tokens(one.shape)),
                          std::string(to_string(one.choice.provenance)), fmt::format("{:.2f}", one.duel.first_us),
                          fmt::format("{:.2f}", one.duel.second_us), percent(one.regret()),
                          std::to_string(one.choice.config.grid)});
  }
  print_table(table);
  print_text(fmt::format("The regret of {} shapes is {} in the median, {} at the 95th percentile and {} at most.\n",
                         evaluation.cases.size(), percent(evaluation.median_regret()),
                         percent(evaluation.high_regret()), percent(evaluation.largest_regret())));
}

void print_table(const RepeatEvaluation& evaluation) {
  Table table{.headings = {"batch", "context", "first us", "second us", "ratio", "predicted", "winners"},
              .rows = {},
              .right_aligned = "rrrrrrl"};
  for (const RepeatCase& one : evaluation.cases) {
    table.rows.push_back({std::to_string(one.shape.batch), format_size(one.shape.longest_context),
                          fmt::format("{:.2f}", one.first.median_us), fmt::format("{:.2f}", one.second.median_us),
                          fmt::format("{:.4f}", one.duel.ratio.ratio), fmt::format("{:.4f}", one.predicted_ratio),
                          one.same() ? "same" : "differ"});
  }
  print_table(table);
  print_text(fmt::format(
      "{} of {} winners differ. When they are raced against each other, their times differ by at most {}.\n",
      evaluation.differing(), evaluation.cases.size(), percent(evaluation.largest_difference())));
}

/// Writes the evaluation to the file of --out, if there is one.
template <class Evaluation, class... Rest>
Result<void> keep(const EvaluateFlags& flags, const EvaluationSetup& setup, const Evaluation& evaluation,
                  Rest... rest) {
  if (flags.out.empty()) return {};
  return write_out(flags.out, to_json(setup, evaluation, rest...) + "\n");
}

/// Writes what there is after every case. An error is reported at the end, when everything is written again.
template <class Evaluation, class... Rest>
EvaluationSink<Evaluation> keeper(const EvaluateFlags& flags, const EvaluationSetup& setup, Rest... rest) {
  return [&flags, &setup, rest...](const Evaluation& evaluation) { (void)keep(flags, setup, evaluation, rest...); };
}

template <class Evaluation, class... Rest>
int finish(const Console& console, const EvaluateFlags& flags, const EvaluationSetup& setup,
           const Result<Evaluation>& evaluation, Rest... rest) {
  if (!evaluation) return report_error(evaluation.error());
  if (console.json) {
    print_json_text(to_json(setup, *evaluation, rest...) + "\n");
  } else {
    print_table(*evaluation);
  }
  if (const auto kept = keep(flags, setup, *evaluation, rest...); !kept) return report_error(kept.error());
  return evaluation->interrupted ? kExitInterrupted : kExitOk;
}

/// The database in the directory of --trials, or null.
Result<std::unique_ptr<TuningDb>> trials_database(const EvaluateFlags& flags) {
  if (flags.trials.empty()) return std::unique_ptr<TuningDb>();
  std::error_code ignored;
  return TuningDb::open(std::filesystem::absolute(flags.trials, ignored).lexically_normal(), OpenMode::read_write,
                        nullptr);
}

/// Refuses flags that the chosen command has no use for. Random shapes have batches and contexts of their own.
Result<void> refuse_useless(const EvaluateFlags& flags) {
  enum : unsigned { kSearch = 1, kRegret = 2, kRepeat = 4 };
  struct Use {
    const char* flag;
    bool given;
    unsigned commands;  ///< that the flag is for
  };
  const unsigned chosen = flags.search->parsed() ? kSearch : flags.regret->parsed() ? kRegret : kRepeat;
  for (const Use& use :
       {Use{"--problems", !flags.problems.empty(), kRegret}, Use{"--count", !flags.count.empty(), kRegret},
        Use{"--seed", !flags.seed.empty(), kRegret}, Use{"--tune", !flags.tune.empty(), kRegret | kRepeat},
        Use{"--ragged", flags.ragged, kRegret}, Use{"--kernels", !flags.kernels.empty(), kSearch | kRegret},
        Use{"--reach", !flags.reach.empty(), kSearch | kRegret},
        Use{"--batch", !flags.shape.batch.empty(), kSearch | kRepeat},
        Use{"--max-batch", !flags.shape.max_batch.empty(), kSearch | kRepeat},
        Use{"--context", !flags.shape.context.empty(), kSearch | kRepeat}}) {
    if (use.given && (use.commands & chosen) == 0) {
      return fail(
          ErrorCode::invalid_argument,
          fmt::format("{} has no meaning for evaluate {}", use.flag,
                      chosen == kRegret   ? "regret"
                      : chosen == kSearch ? "search"
                                          : "repeat"),
          chosen == kRegret ? "The shapes are random; --count, --seed and --ragged choose them." : "Leave it out.");
    }
  }
  if (!flags.tune.empty() && (!flags.kernels.empty() || !flags.reach.empty())) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} has no meaning with --tune", flags.kernels.empty() ? "--reach" : "--kernels"),
                "It is about sweeps. Leave one of them out.");
  }
  return {};
}

/// What is evaluated: for a search and a repetition one problem and its shapes, for regrets one problem or random ones.
struct Work {
  std::vector<DecodeProblem> problems;
  std::vector<Shape> shapes;
};

Result<Work> work_of(const Console& console, const EvaluateFlags& flags, const Counts& counts) {
  if (counts.problems > 0) return Work{random_problems(counts.problems, counts.seed), {}};
  Result<Workload> workload = resolve(console, flags.shape, kEvaluateBatch, kEvaluateContext);
  if (!workload) return tl::unexpected(workload.error());
  if (auto alone = one_gpu_only(workload->problem, "an evaluation"); !alone) return tl::unexpected(alone.error());
  return Work{{std::move(workload->problem)}, std::move(workload->shapes)};
}

/// What all evaluations need beside their problem.
struct Means {
  const DeviceFacts& device;
  const Counts& counts;
  L2Policy policy;
  const Caches& caches;
  TuningDb* keep;  ///< that of --trials, or null
  ProgressLine& line;
};

EvaluationSetup setup_of(const Console& console, const EvaluateFlags& flags, const Means& means, TuneBackend& backend,
                         const DecodeProblem& problem, std::vector<Shape> shapes) {
  return {.device = means.device,
          .environment = current_environment(means.device),
          .backend = backend,
          .request = {.problem = problem,
                      .shapes = std::move(shapes),
                      .device = flags.device,
                      .policy = means.policy,
                      .budget = {},
                      .weights = {},
                      .compile_threads = means.counts.jobs,
                      .command = console.command_line},
          .effort = effort_for(compile_thread_count(means.counts.jobs)),
          .exhaustive = exhaustive_effort(means.counts.kernels, means.counts.reach),
          .keep = means.keep,
          .progress = [&line = means.line](const TuneProgress& progress) { line.show(progress); },
          .cancel = stop_on_signals()};
}

/// Shapes of problem number `number` that have no winner of their own.
std::vector<Shape> untuned_shapes(const DecodeProblem& problem, std::size_t number, const Counts& counts, bool ragged,
                                  const LayeredWinners& winners) {
  std::vector<Shape> known;
  const std::string text = to_json(problem);
  for (const auto& entry : winners.entries) {
    const Result<Shape> shape = shape_from_json(entry.winner.shape);
    if (shape && entry.winner.problem == text) known.push_back(*shape);
  }
  return random_shapes(problem, counts.shapes, counts.seed + number, ragged, known,
                       counts.problems > 0 ? kAnyShape : ShapeRanges{});
}

int run_regret(const Console& console, const EvaluateFlags& flags, const Means& means,
               const std::vector<DecodeProblem>& problems) {
  const LayeredWinners winners = load_layered_winners(device_model(means.device), means.caches.directory);
  for (const std::string& warning : winners.warnings) warn(warning);
  const WinnerTable table = WinnerTable::build(means.device, winners);
  RegretEvaluation all;
  all.several_problems = means.counts.problems > 0;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const DecodeProblem& problem = problems[i];
    means.line.clear();
    if (means.counts.problems > 0)
      note(console, fmt::format("problem {} of {}: {}", i + 1, problems.size(), describe(problem)));
    const auto backend = GpuBackend::create(means.device, problem, means.policy, means.caches.cubins.get());
    if (!backend) return report_error(backend.error());
    EvaluationSetup setup = setup_of(console, flags, means, **backend, problem,
                                     untuned_shapes(problem, i, means.counts, flags.ragged, winners));
    if (means.counts.tune) setup.exhaustive = setup.effort, setup.request.budget = means.counts.tune;
    const bool last = i + 1 == problems.size();
    const auto with_earlier = [&](const RegretEvaluation& of_problem) {
      RegretEvaluation so_far = all;
      so_far.interrupted = of_problem.interrupted || !last;
      so_far.cases.insert(so_far.cases.end(), of_problem.cases.begin(), of_problem.cases.end());
      return so_far;
    };
    RegretEvaluation before_an_error;
    Result<RegretEvaluation> made = evaluate_regret(setup, table, [&](const RegretEvaluation& of_problem) {
      before_an_error.cases = of_problem.cases;
      (void)keep(flags, setup, with_earlier(of_problem), means.counts.seed);
    });
    means.line.clear();
    if (!made) {
      if (means.counts.tune) made.error().hint = "Give a larger --tune, or leave it out.";
      // Of many problems, one that cannot be judged leaves the cases before it. Without any, the error is the answer.
      const bool hopeless =
          made.error().code == ErrorCode::context_lost || (last && all.cases.empty() && before_an_error.cases.empty());
      if (means.counts.problems == 0 || hopeless) return report_error(made.error());
      warn(fmt::format("{}: {}", describe(problem), made.error().message));
      made = std::move(before_an_error);
    }
    all = with_earlier(*made);
    if (made->interrupted || last)
      return finish(console, flags, setup, Result<RegretEvaluation>(all), means.counts.seed);
  }
  return kExitOk;
}

int run(const Console& console, const EvaluateFlags& flags) {
  Result<Counts> counts = parse_counts(flags);
  if (!counts) return report_error(counts.error());
  if (const Result<void> useful = refuse_useless(flags); !useful) return report_error(useful.error());
  if (counts->problems > 0 && flags.seed.empty()) counts->seed = std::random_device()();
  const Result<Work> work = work_of(console, flags, *counts);
  if (!work) return report_error(work.error());
  const Result<L2Policy> policy = parse_l2_policy(flags.policy);
  if (!policy) return report_error(policy.error());
  const Result<DeviceFacts> device = device_facts(flags.device);
  if (!device) return report_error(device.error());
  const Result<Caches> caches = open_caches(console, CacheNeed::durable);
  if (!caches) return report_error(caches.error());
  const Result<std::unique_ptr<TuningDb>> kept = trials_database(flags);
  if (!kept) return report_error(kept.error());
  // A file that cannot be written is reported now, before minutes are spent.
  if (const Result<void> writable = flags.out.empty() ? Result<void>() : check_out(flags.out); !writable)
    return report_error(writable.error());
  ProgressLine line(console.quiet, is_terminal(stderr));
  const Means means{*device, *counts, *policy, *caches, kept->get(), line};
  if (flags.regret->parsed()) return run_regret(console, flags, means, work->problems);

  const DecodeProblem& problem = work->problems.front();
  // Tunings with a time limit are not given kernels that were compiled before they began.
  CubinCache* const cubins = counts->tune ? nullptr : caches->cubins.get();
  const auto backend = GpuBackend::create(*device, problem, *policy, cubins);
  if (!backend) return report_error(backend.error());
  EvaluationSetup setup = setup_of(console, flags, means, **backend, problem, work->shapes);
  if (counts->tune) setup.request.budget = *counts->tune * work->shapes.size();
  if (flags.search->parsed()) {
    const Result<SearchEvaluation> evaluation = evaluate_search(setup, keeper<SearchEvaluation>(flags, setup));
    line.clear();
    return finish(console, flags, setup, evaluation);
  }
  const Result<RepeatEvaluation> evaluation = evaluate_repeat(setup, keeper<RepeatEvaluation>(flags, setup));
  line.clear();
  return finish(console, flags, setup, evaluation);
}

}  // namespace

Command add_evaluate(CLI::App& program) {
  auto flags = std::make_shared<EvaluateFlags>();
  CLI::App* app = program.add_subcommand(
      "evaluate", "Measure how good the tuner is: its search, its look-ups and whether it repeats itself");
  app->require_subcommand(1);
  app->fallthrough();
  flags->search =
      app->add_subcommand("search", "Compare a tuning session with an exhaustive search, by winners and by GPU time");
  flags->regret = app->add_subcommand("regret", "Compare the look-ups of random shapes with the best of a full sweep");
  flags->repeat =
      app->add_subcommand("repeat", "Tune the same shapes twice, and race winners that differ against each other");
  add_shape_flags(*app, flags->shape, kEvaluateBatch, kEvaluateContext);
  app->add_option("--device", flags->device, "The CUDA ordinal of the GPU; default 0")->type_name("N");
  app->add_option("--l2", flags->policy,
                  "The L2 policy. cold: KV comes from memory, as in a model; warm: KV is in L2; default cold")
      ->type_name("cold|warm");
  app->add_option("--jobs", flags->jobs, "The number of threads that compile; default: one for each core")
      ->type_name("N");
  app->add_option("--kernels", flags->kernels,
                  "For search and regret: the largest number of kernels of an exhaustive search or sweep; default: all")
      ->type_name("N");
  app->add_option("--reach", flags->reach,
                  "For search and regret: leave out grids that are predicted to take X times as long as the kernel's "
                  "best; default: none")
      ->type_name("X");
  CLI::Option* problems = app->add_option("--problems", flags->problems,
                                          "For regret: draw N problems, of any heads, head size, cache and type, and "
                                          "look up shapes of all sizes; not with flags that describe one")
                              ->type_name("N");
  for (CLI::Option* option : shape_options(*app)) problems->excludes(option);
  app->add_option("--count", flags->count,
                  "For regret: the number of random shapes of a problem; default 50, with --problems 4")
      ->type_name("N");
  app->add_option("--seed", flags->seed,
                  "For regret: the seed of the random shapes and problems; default 1, with --problems a random one")
      ->type_name("N");
  app->add_option("--tune", flags->tune,
                  "For regret: compare with what a tuning of the shape finds in TIME, instead of a full sweep; for "
                  "repeat: the time limit of each tuning, TIME for every shape; default: none")
      ->type_name("TIME");
  app->add_flag("--ragged", flags->ragged, "For regret: make every fifth shape a ragged one");
  app->add_option(
         "--trials", flags->trials,
         "Keep the trials of exhaustive searches, of sweeps and of the first session of repeat in this directory")
      ->type_name("DIR");
  app->add_option("-o,--out", flags->out, "Also write the JSON to this file, anew after every shape")
      ->type_name("FILE");
  const Example search = {"Say how much the search loses against trying everything",
                          "leanattn evaluate search --model llama-3-8b --context 8k"};
  const Example regret = {"Say what look-ups of 20 random shapes lose",
                          "leanattn evaluate regret --model llama-3-8b --count 20"};
  const Example repeat = {"Say whether two short tunings agree",
                          "leanattn evaluate repeat --model llama-3-8b --tune 4s"};
  set_examples(*flags->search, {search});
  set_examples(*flags->regret, {regret});
  set_examples(*flags->repeat, {repeat});
  set_examples(*app, {search, regret, repeat});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
