// bench_phases.cpp -- where the time of a launch goes, on this GPU: what merging across CTAs costs per number of
// contributors, and when the CTAs of tuned launches reach each stage. Kernels are changed for it (kernel_variants.hpp);
// unchanged ones are checked against the oracle first and timed beside them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/files.hpp"
#include "cache/tuning_db.hpp"
#include "runtime/lookup.hpp"
#include "runtime/nvml.hpp"
#include "tuner/bench.hpp"
#include "tuner/bench_json.hpp"
#include "tuner/decode_case.hpp"
#include "tuner/kernel_variants.hpp"
#include "tuner/measure.hpp"
#include "tuner/race.hpp"
#include "tuner/read_limit.hpp"
#include "tuner/search_space.hpp"
#include "tuner/statistics.hpp"

namespace leanattn {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRounds = 41, kMostRounds = 4 * kRounds, kReadRounds = 9;
constexpr int kStampedLaunches = 64;  // at least, over which moments are taken
constexpr double kMemoryShare = 0.5;  // of the free memory that copies of KV may take

/// What everything here is made with. The context goes last.
struct Bench {
  Context context;
  Stream stream;
  DeviceFacts device;
  std::shared_ptr<const OracleKernels> oracle;
  ReadLimit read_limit;
  std::unique_ptr<TuningDb> db;
};

Result<Bench> open_bench(int ordinal, const std::optional<std::filesystem::path>& directory) {
  auto device = device_facts(ordinal);
  if (!device) return tl::unexpected(device.error());
  auto context = Context::retain(ordinal);
  if (!context) return tl::unexpected(context.error());
  auto stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  auto oracle = OracleKernels::load(device->arch, nullptr);
  if (!oracle) return tl::unexpected(oracle.error());
  auto read_limit = ReadLimit::load(*device, nullptr);
  if (!read_limit) return tl::unexpected(read_limit.error());
  auto db = TuningDb::open(directory, OpenMode::read_only, nullptr);
  if (!db) return tl::unexpected(db.error());
  return Bench{std::move(*context), std::move(*stream),     std::move(*device),
               std::move(*oracle),  std::move(*read_limit), std::move(*db)};
}

/// One shape on the GPU, KV in as many copies as keep L2 cold.
struct Arena {
  DecodeCase decode;
  Rotation rotation;

  static Result<Arena> make(const Bench& bench, const DecodeProblem& problem, const Shape& shape) {
    const std::vector<int> lengths = context_lengths_of(shape);
    const auto memory = device_memory();
    if (!memory) return tl::unexpected(memory.error());
    const std::int64_t bytes = kv_footprint(problem, lengths).read;
    const Rotation rotation = rotation_for(
        bytes, bench.device.l2_bytes, static_cast<std::int64_t>(kMemoryShare * static_cast<double>(memory->free_bytes)),
        4 + static_cast<double>(bytes) / 3e6, true);
    auto decode =
        DecodeCase::create(bench.oracle, problem, lengths, {.kv_copies = rotation.copies}, bench.stream.get());
    if (!decode) return tl::unexpected(decode.error());
    return Arena{std::move(*decode), rotation};
  }
};

/// A kernel, launched on its own workspace: what variants leave behind must not meet an unchanged kernel.
struct Subject {
  LoadedKernel kernel;
  std::unique_ptr<CheckWorkspace> workspace = std::make_unique<CheckWorkspace>();

  static Result<Subject> make(const Result<EmittedKernel>& emitted) {
    if (!emitted) return tl::unexpected(emitted.error());
    auto kernel = LoadedKernel::prepare(*emitted, nullptr);
    if (!kernel) return tl::unexpected(kernel.error());
    return Subject{std::move(*kernel)};
  }

  /// Launches on every copy of KV in turn. `stamps`, where given: a Stamp[grid][kMoments] for each launch.
  Result<TimedGraph> graph(const Bench& bench, const Arena& arena, const Config& config,
                           const DeviceBuffer* stamps = nullptr) {
    return TimedGraph::make(
        arena.rotation.launches, bench.stream, [&](int launch, CUstream_st* stream) -> Result<void> {
          auto args = arena.decode.args(launch % arena.rotation.copies);
          bind_workspace(args, arena.decode.workspace(config.spec, config.grid), workspace->buffer().data());
          args.segment_cost = static_cast<unsigned>(config.segment_cost);
          if (stamps != nullptr)
            args.lse =
                static_cast<float*>(stamps->at(launch * config.grid * kMoments * static_cast<int>(sizeof(Stamp))));
          return kernel.launch(args, config.grid, stream);
        });
  }

  Result<void> reserve(const Bench& bench, const Arena& arena, const Config& config) {
    const auto bound =
        arena.decode.bind(config.spec, {config.grid, config.segment_cost}, *workspace, bench.stream.get());
    return bound ? Result<void>{} : tl::unexpected(bound.error());
  }
};

Result<void> require_correct(const Bench& bench, Arena& arena, Subject& subject, const Config& config) {
  const auto report =
      arena.decode.check(subject.kernel, {config.grid, config.segment_cost}, *subject.workspace, bench.stream.get(), 2);
  if (!report) return tl::unexpected(report.error());
  if (report->passed()) return {};
  return fail(ErrorCode::wrong_result, kernel_name(config.spec) + ": " + report->first_failure);
}

/// Launches of the fastest reading kernel on the same bytes.
struct Reading {
  std::string variant;
  TimedGraph graph;
};
Result<Reading> fastest_reading(const Bench& bench, const Arena& arena) {
  const std::int64_t bytes_each = std::max<std::int64_t>(arena.decode.kv_bytes() / 2 / 16 * 16, 16);
  std::optional<Reading> best;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t variant = 0; variant < bench.read_limit.variants().size(); ++variant) {
    auto graph = TimedGraph::make(arena.rotation.launches, bench.stream, [&](int launch, CUstream_st* stream) {
      const LeanDecodeArgs args = arena.decode.args(launch % arena.rotation.copies);
      return bench.read_limit.launch(variant, args.k, args.v, bytes_each, stream);
    });
    if (!graph) return tl::unexpected(graph.error());
    GraphTimer timer;
    std::vector<double> samples;
    for (int round = 0; round < kReadRounds; ++round) {
      const TimedGraph* const alone[] = {&*graph};
      const auto us = timer.time(*graph, alone, bench.stream);
      if (!us) return tl::unexpected(us.error());
      samples.push_back(us->front());
    }
    if (const double us = median(samples); us < least) {
      least = us;
      best.emplace(Reading{bench.read_limit.variants()[variant].name, std::move(*graph)});
    }
  }
  if (!best) return fail(ErrorCode::internal, "there is no kernel that only reads");
  return std::move(*best);
}

/// Microseconds a launch, of each counted round.
struct Raced {
  std::vector<std::vector<double>> us;  ///< [graph]
  std::vector<double> read_us;
  std::string noise;  ///< why they should be doubted; empty: nothing
};

/// Interleaved rounds in rotating order between two readings; rounds under throttling or drift do not count (race.hpp).
Result<Raced> race(const Bench& bench, const Reading& reading, const std::vector<const TimedGraph*>& graphs) {
  GraphTimer timer;
  Race race(graphs.size());
  Raced raced;
  for (int round = 0; round < kMostRounds && race.rounds() < kRounds; ++round) {
    const std::vector<std::size_t> order = race.order();
    std::vector<const TimedGraph*> queue{&reading.graph};
    for (const std::size_t i : order) queue.push_back(graphs[i]);
    queue.push_back(&reading.graph);
    const auto us = timer.time(reading.graph, queue, bench.stream);
    if (!us) return tl::unexpected(us.error());
    const GpuState state = gpu_state(bench.device.uuid);
    RoundTimes times{.us = {us->begin() + 1, us->end() - 1},
                     .sentinel_us = (us->front() + us->back()) / 2,
                     .sentinel_drift = std::abs(us->back() / us->front() - 1),
                     .throttle = throttle_text(state.throttle_reasons),
                     .sm_clock_mhz = state.sm_clock_mhz};
    if (race.add(order, times)) raced.read_us.push_back(times.sentinel_us);
  }
  if (race.rounds() == 0) return fail(ErrorCode::internal, "no round was quiet enough to count");
  for (std::size_t i = 0; i < graphs.size(); ++i) raced.us.emplace_back(race.samples(i).begin(), race.samples(i).end());
  raced.noise = race.noise();
  return raced;
}

Summary difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
  return summarize(differences);
}

Json summary_json(const Summary& summary) {
  return {{"median", summary.median}, {"low", summary.low}, {"high", summary.high}};
}

/// Equal ranges, one CTA per SM, every output tile shared by `contributors` of them: the whole kernel beside one that
/// stops once its partials are stored.
Result<Json> fix_up_cost(const Bench& bench, int contributors) {
  constexpr int kTokensOfACta = 256;
  DecodeProblem problem;
  problem.kv_heads = std::max(1, bench.device.sm_count / contributors);
  problem.q_heads = 4 * problem.kv_heads;
  const Shape shape{.batch = 1, .longest_context = contributors * kTokensOfACta};
  auto arena = Arena::make(bench, problem, shape);
  if (!arena) return tl::unexpected(arena.error());
  Config config{base_spec(bench.device.arch, problem), static_cast<std::int64_t>(problem.kv_heads) * contributors};
  config.spec.load = bench.device.arch.major >= 9 ? LoadPath::bulk : LoadPath::cp_async;
  config.spec.tile = 64, config.spec.warps = 4, config.spec.warp_tokens = 16, config.spec.ctas_per_sm = 1;
  config.spec.stages = 4;
  while (config.spec.stages > 1 && !validate(config.spec)) --config.spec.stages;
  const auto reading = fastest_reading(bench, *arena);
  if (!reading) return tl::unexpected(reading.error());

  Json forms = Json::object();
  for (const FixUp form : {FixUp::ticket, FixUp::wait}) {
    config.spec.fixup = form;
    const auto emitted = emit(config.spec);
    if (!emitted) return tl::unexpected(emitted.error());
    auto whole = Subject::make(emitted), stopped = Subject::make(without_merging(*emitted));
    if (!whole) return tl::unexpected(whole.error());
    if (!stopped) return tl::unexpected(stopped.error());
    if (auto ok = require_correct(bench, *arena, *whole, config); !ok) return tl::unexpected(ok.error());
    if (auto ok = stopped->reserve(bench, *arena, config); !ok) return tl::unexpected(ok.error());
    const auto of_whole = whole->graph(bench, *arena, config), of_stopped = stopped->graph(bench, *arena, config);
    if (!of_whole) return tl::unexpected(of_whole.error());
    if (!of_stopped) return tl::unexpected(of_stopped.error());
    const auto raced = race(bench, *reading, {&*of_whole, &*of_stopped});
    if (!raced) return tl::unexpected(raced.error());
    forms[to_string(form)] = {{"kernel", kernel_name(config.spec)},
                              {"us", summary_json(summarize(raced->us[0]))},
                              {"stopped_us", summary_json(summarize(raced->us[1]))},
                              {"cost_us", summary_json(difference(raced->us[0], raced->us[1]))},
                              {"samples_us", raced->us},
                              {"noise", raced->noise}};
  }
  return Json{{"contributors", contributors},
              {"kv_heads", problem.kv_heads},
              {"context", shape.longest_context},
              {"grid", config.grid},
              {"forms", std::move(forms)}};
}

/// Of one moment: nanoseconds after the launch's first CTA began, of its earliest, middle and latest CTA, for each
/// launch; and cycles after the CTA itself began, of every CTA of every launch.
struct Passage {
  std::vector<double> earliest, middle, latest, cycles;
};

/// How far the CTAs of a launch lie apart, as standard deviations: what a CTA is always late by, and the rest.
struct Spread {
  double always_ns = 0, now_ns = 0;
};

/// [launch][cta], ns. Components of variance of a two-way layout (launches, CTAs), both without bias.
Spread spread_of(const std::vector<std::vector<double>>& moments) {
  const auto launches = static_cast<double>(moments.size()), ctas = static_cast<double>(moments.front().size());
  std::vector<double> of_cta(moments.front().size(), 0.0), of_launch;
  for (const auto& launch : moments) {
    of_launch.push_back(std::accumulate(launch.begin(), launch.end(), 0.0) / ctas);
    for (std::size_t cta = 0; cta < launch.size(); ++cta) of_cta[cta] += (launch[cta] - of_launch.back()) / launches;
  }
  double between = 0, within = 0;
  for (const double late : of_cta) between += late * late / (ctas - 1);
  for (std::size_t launch = 0; launch < moments.size(); ++launch) {
    for (std::size_t cta = 0; cta < of_cta.size(); ++cta) {
      const double rest = moments[launch][cta] - of_launch[launch] - of_cta[cta];
      within += rest * rest / ((ctas - 1) * (launches - 1));
    }
  }
  return {std::sqrt(std::max(0.0, between - within / launches)), std::sqrt(within)};
}

/// The stamps of one replay of a graph, taken into account.
void add_stamps(std::span<const Stamp> stamps, std::size_t launches, std::array<Passage, kMoments>& passages,
                std::vector<std::vector<double>>& gathered) {
  const std::size_t ctas = stamps.size() / launches / kMoments;
  for (std::size_t launch = 0; launch < launches; ++launch) {
    const Stamp* const of_launch = &stamps[launch * ctas * kMoments];
    unsigned begin = of_launch[0].timer;
    for (std::size_t cta = 1; cta < ctas; ++cta) {
      if (static_cast<int>(of_launch[cta * kMoments].timer - begin) < 0) begin = of_launch[cta * kMoments].timer;
    }
    for (std::size_t moment = 0; moment < kMoments; ++moment) {
      std::vector<double> ns;
      for (std::size_t cta = 0; cta < ctas; ++cta) {
        const Stamp& stamp = of_launch[cta * kMoments + moment];
        if (stamp.clock == 0 && stamp.timer == 0) continue;  // a moment that this kernel or CTA does not have
        ns.push_back(static_cast<double>(stamp.timer - begin));
        passages[moment].cycles.push_back(static_cast<double>(stamp.clock - of_launch[cta * kMoments].clock));
      }
      if (ns.empty()) continue;
      passages[moment].earliest.push_back(*std::min_element(ns.begin(), ns.end()));
      passages[moment].middle.push_back(median(ns));
      passages[moment].latest.push_back(*std::max_element(ns.begin(), ns.end()));
      if (static_cast<Moment>(moment) == Moment::gathered && ns.size() == ctas) gathered.push_back(std::move(ns));
    }
  }
}

/// A tuned launch: beside the read limit, without its merge, and with stamps.
Result<Json> launch_phases(const Bench& bench, const DecodeProblem& problem, const Shape& shape) {
  auto arena = Arena::make(bench, problem, shape);
  if (!arena) return tl::unexpected(arena.error());
  const auto choice = look_up(bench.device, problem, shape, L2Policy::cold, *bench.db);
  if (!choice) return tl::unexpected(choice.error());
  const Config& config = choice->config;
  const auto emitted = emit(config.spec);
  if (!emitted) return tl::unexpected(emitted.error());
  auto whole = Subject::make(emitted), stopped = Subject::make(without_merging(*emitted)),
       stamped = Subject::make(with_stamps(*emitted));
  for (const auto* subject : {&whole, &stopped, &stamped}) {
    if (!*subject) return tl::unexpected(subject->error());
  }
  if (auto ok = require_correct(bench, *arena, *whole, config); !ok) return tl::unexpected(ok.error());
  for (Subject* subject : {&*stopped, &*stamped}) {
    if (auto ok = subject->reserve(bench, *arena, config); !ok) return tl::unexpected(ok.error());
  }
  const int launches = arena->rotation.launches;
  auto stamps = DeviceBuffer::allocate(launches * config.grid * kMoments * static_cast<int>(sizeof(Stamp)));
  if (!stamps) return tl::unexpected(stamps.error());
  if (auto ok = fill_bytes_async(stamps->data(), 0, stamps->bytes(), bench.stream.get()); !ok)
    return tl::unexpected(ok.error());

  std::vector<TimedGraph> graphs;
  for (Subject* subject : {&*whole, &*stopped, &*stamped}) {
    auto graph = subject->graph(bench, *arena, config, subject == &*stamped ? &*stamps : nullptr);
    if (!graph) return tl::unexpected(graph.error());
    graphs.push_back(std::move(*graph));
  }
  const auto reading = fastest_reading(bench, *arena);
  if (!reading) return tl::unexpected(reading.error());
  const auto raced = race(bench, *reading, {&graphs[0], &graphs[1], &graphs[2]});
  if (!raced) return tl::unexpected(raced.error());

  std::vector<Stamp> host(static_cast<std::size_t>(launches * config.grid) * kMoments);
  std::array<Passage, kMoments> passages;
  std::vector<std::vector<double>> gathered;
  for (int seen = 0; seen < kStampedLaunches; seen += launches) {
    // The second one's stamps are read: its first launch follows another, as all do.
    for (int replay = 0; replay < 2; ++replay) {
      if (auto ok = graphs[2].replay(bench.stream.get()); !ok) return tl::unexpected(ok.error());
    }
    if (auto ok = copy_to_host(host.data(), stamps->data(), stamps->bytes(), bench.stream); !ok)
      return tl::unexpected(ok.error());
    add_stamps(host, static_cast<std::size_t>(launches), passages, gathered);
  }

  Json moments = Json::array();
  for (int moment = 0; moment < kMoments; ++moment) {
    const Passage& passage = passages[static_cast<std::size_t>(moment)];
    if (passage.middle.empty()) continue;
    moments.push_back({{"moment", to_string(static_cast<Moment>(moment))},
                       {"cycles", median(passage.cycles)},
                       {"earliest_ns", median(passage.earliest)},
                       {"median_ns", median(passage.middle)},
                       {"latest_ns", median(passage.latest)}});
  }
  Json json{{"problem", Json::parse(to_json(problem))},
            {"shape", Json::parse(to_json(shape))},
            {"kv_bytes", arena->decode.kv_bytes()},
            {"kernel", kernel_name(config.spec)},
            {"config", Json::parse(to_json(config))},
            {"provenance", to_string(choice->provenance)},
            {"copies", arena->rotation.copies},
            {"read_variant", reading->variant},
            {"read_limit_us", median(raced->read_us)},
            {"us", summary_json(summarize(raced->us[0]))},
            {"stopped_us", summary_json(summarize(raced->us[1]))},
            {"stamped_us", summary_json(summarize(raced->us[2]))},
            {"samples_us", raced->us},
            {"noise", raced->noise},
            {"moments", std::move(moments)}};
  if (gathered.size() > 1 && config.grid > 1) {
    const Spread spread = spread_of(gathered);
    json["gathered_spread_ns"] = {{"always", spread.always_ns}, {"now", spread.now_ns}};
  }
  return json;
}

struct Launch {
  int batch, q_heads, kv_heads, head_dim, context;
};
constexpr Launch kLaunches[] = {{1, 32, 8, 128, 1024},   {1, 8, 1, 128, 8192},   {1, 32, 32, 128, 1024},
                                {1, 32, 8, 128, 8192},   {1, 8, 1, 128, 131072}, {1, 32, 8, 128, 32768},
                                {1, 32, 32, 128, 8192},  {32, 8, 1, 128, 8192},  {16, 32, 8, 128, 4096},
                                {3, 40, 10, 128, 16384}, {8, 32, 8, 128, 32768}};

/// Throws nlohmann::json::exception where the document is not one of ours.
std::string markdown(const Json& document) {
  std::string text = fmt::format(
      "# Where a launch goes\n\n{}; microseconds. `bench_phases --db DIR --out DIR`.\n\n## Fix-up\n\nThe whole kernel "
      "minus one "
      "that stops once its partials are stored; 256 tokens of 128 dims a CTA, group 4, cold L2.\n\n| contributors | "
      "ticket "
      "| wait |\n|--:|--:|--:|\n",
      document.at("device").at("name").get<std::string>());
  for (const Json& row : document.at("fix_up")) {
    const auto cost = [&](const char* form) {
      const Json& us = row.at("forms").at(form).at("cost_us");
      return fmt::format("{:.2f} [{:.2f}, {:.2f}]", us.at("median").get<double>(), us.at("low").get<double>(),
                         us.at("high").get<double>());
    };
    text += fmt::format("| {} | {} | {} |\n", row.at("contributors").get<int>(), cost("ticket"), cost("wait"));
  }
  text +=
      "\n## Launches\n\nMoments: microseconds after the launch's first CTA began, of its first, middle and last CTA. "
      "Spread: how far CTAs lie "
      "apart when the states of their warps are gathered, as standard deviations: what a CTA is always late by, and "
      "the rest.\n\n"
      "| shape (B, Hq/Hkv, d, context) | KV MB | kernel, grid, how it was found | read limit | us | without merging | "
      "with stamps | "
      "placed | requested | streamed | gathered | finished | done | spread: always, now |\n"
      "|---|--:|---|--:|--:|--:|--:|---|---|---|---|---|---|---|\n";
  for (const Json& row : document.at("launches")) {
    const Json &problem = row.at("problem"), &shape = row.at("shape");
    const auto us = [&](const char* name) { return row.at(name).at("median").get<double>(); };
    text +=
        fmt::format("| {}, {}/{}, {}, {} | {:.4g} | `{}`, {}, {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |",
                    shape.at("batch").get<int>(), problem.at("q_heads").get<int>(), problem.at("kv_heads").get<int>(),
                    problem.at("head_dim").get<int>(), shape.at("longest_context").get<std::int64_t>(),
                    row.at("kv_bytes").get<double>() / 1e6, row.at("kernel").get<std::string>(),
                    row.at("config").at("grid").get<std::int64_t>(), row.at("provenance").get<std::string>(),
                    row.at("read_limit_us").get<double>(), us("us"), us("stopped_us"), us("stamped_us"));
    for (int moment = 1; moment < kMoments; ++moment) {
      std::string cell = " -";
      for (const Json& passage : row.at("moments")) {
        if (passage.at("moment") == to_string(static_cast<Moment>(moment)))
          cell = fmt::format(" {:.2f}, {:.2f}, {:.2f}", passage.at("earliest_ns").get<double>() / 1e3,
                             passage.at("median_ns").get<double>() / 1e3, passage.at("latest_ns").get<double>() / 1e3);
      }
      text += cell + " |";
    }
    text += row.contains("gathered_spread_ns")
                ? fmt::format(" {:.2f}, {:.2f} |\n", row.at("gathered_spread_ns").at("always").get<double>() / 1e3,
                              row.at("gathered_spread_ns").at("now").get<double>() / 1e3)
                : std::string(" - |\n");
  }
  return text;
}

Result<void> write_report(const std::filesystem::path& folder, const Json& document) {
  try {
    const std::string text = markdown(document);
    fmt::print("{}", text);
    return detail::replace_file(folder / "phases.md", text);
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::invalid_argument, fmt::format("{}: {}", (folder / "phases.json").string(), e.what()));
  }
}

Result<Json> read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded()) return fail(ErrorCode::invalid_argument, "no JSON: " + path.string());
  return json;
}

/// Measures, and writes phases.json anew after every row.
Result<Json> measure(const Bench& bench, const std::filesystem::path& folder) {
  Json document{{"schema_version", 1},
                {"generator_revision", generator_revision()},
                {"device", detail::device_json(bench.device)},
                {"fix_up", Json::array()},
                {"launches", Json::array()}};
  const auto keep = [&](const char* table, Result<Json> row) -> Result<void> {
    if (!row) return tl::unexpected(row.error());
    document[table].push_back(std::move(*row));
    return detail::replace_file(folder / "phases.json", document.dump(1) + "\n");
  };
  for (const int contributors : {2, 4, 8, 16, 33, 66, 132}) {
    if (contributors > bench.device.sm_count) break;
    if (auto kept = keep("fix_up", fix_up_cost(bench, contributors)); !kept) return tl::unexpected(kept.error());
  }
  for (const Launch& launch : kLaunches) {
    DecodeProblem problem;
    problem.q_heads = launch.q_heads, problem.kv_heads = launch.kv_heads, problem.head_dim = launch.head_dim;
    const Shape shape{.batch = launch.batch, .longest_context = launch.context};
    if (auto kept = keep("launches", launch_phases(bench, problem, shape)); !kept) return tl::unexpected(kept.error());
  }
  return document;
}

int run(int argc, char** argv) {
  CLI::App app{"Where the time of a launch goes: what merging costs, and when CTAs reach each stage. Needs a GPU."};
  int ordinal = 0;
  std::optional<std::filesystem::path> db;
  std::filesystem::path out;
  bool report_only = false;
  app.add_option("--device", ordinal, "GPU, by ordinal")->capture_default_str();
  app.add_option("--db", db, "folder of tuning.db; without it every launch is the built-in default's");
  app.add_option("--out", out, "folder for phases.json and phases.md")->required();
  app.add_flag("--report-only", report_only, "write phases.md again from phases.json; needs no GPU");
  CLI11_PARSE(app, argc, argv);
  const auto work = [&]() -> Result<void> {
    if (report_only) {
      const auto document = read_json(out / "phases.json");
      return document ? write_report(out, *document) : tl::unexpected(document.error());
    }
    std::error_code failed;
    std::filesystem::create_directories(out, failed);
    if (auto ok = detail::replace_file(out / "phases.json", "{}\n"); !ok) return ok;
    const auto bench = open_bench(ordinal, db);
    if (!bench) return tl::unexpected(bench.error());
    const auto document = measure(*bench, out);
    return document ? write_report(out, *document) : tl::unexpected(document.error());
  };
  const Result<void> done = work();
  if (done) return 0;
  fmt::print(stderr, "bench_phases: {}\n{}\n{}", done.error().message, done.error().hint, done.error().log);
  return 1;
}

}  // namespace
}  // namespace leanattn

int main(int argc, char** argv) { return leanattn::run(argc, argv); }
