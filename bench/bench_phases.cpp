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
#include <optional>
#include <string>
#include <vector>

#include "cache/tuning_db.hpp"
#include "runtime/lookup.hpp"
#include "tuner/bench.hpp"
#include "tuner/bench_json.hpp"
#include "tuner/decode_case.hpp"
#include "tuner/kernel_variants.hpp"
#include "tuner/measure.hpp"
#include "tuner/read_limit.hpp"
#include "tuner/search_space.hpp"
#include "tuner/statistics.hpp"

namespace leanattn {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRounds = 41;
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

/// Microseconds a launch of each graph, [graph][round], in interleaved rounds.
Result<std::vector<std::vector<double>>> race(const Bench& bench, const std::vector<const TimedGraph*>& graphs) {
  GraphTimer timer;
  std::vector<std::vector<double>> samples(graphs.size());
  for (int round = 0; round < kRounds; ++round) {
    const auto us = timer.time(*graphs.front(), graphs, bench.stream);
    if (!us) return tl::unexpected(us.error());
    for (std::size_t i = 0; i < us->size(); ++i) samples[i].push_back((*us)[i]);
  }
  return samples;
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
  config.spec.tile = 64, config.spec.warps = 4, config.spec.warp_tokens = 16, config.spec.stages = 4;
  config.spec.ctas_per_sm = 1;

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
    const auto samples = race(bench, {&*of_whole, &*of_stopped});
    if (!samples) return tl::unexpected(samples.error());
    forms[to_string(form)] = {{"us", summary_json(summarize((*samples)[0]))},
                              {"stopped_us", summary_json(summarize((*samples)[1]))},
                              {"cost_us", summary_json(difference((*samples)[0], (*samples)[1]))},
                              {"samples_us", *samples}};
  }
  return Json{{"contributors", contributors},
              {"kv_heads", problem.kv_heads},
              {"context", shape.longest_context},
              {"grid", config.grid},
              {"forms", std::move(forms)}};
}

/// Of one moment, over the CTAs of a launch: nanoseconds after its first CTA began.
struct Passage {
  std::vector<double> earliest, middle, latest;  ///< of each launch
  std::vector<double> cycles;                    ///< since the CTA began, of each CTA and launch
};

/// How far CTAs lie apart once they have streamed: what a CTA is always late by, and what it is late by only now.
struct Spread {
  double always_ns = 0, now_ns = 0;  ///< standard deviations
};

Spread spread_of(const std::vector<std::vector<double>>& streamed) {  // [launch][cta], ns
  const std::size_t launches = streamed.size(), ctas = streamed.front().size();
  std::vector<double> of_cta(ctas, 0.0);
  double total = 0;
  for (const auto& launch : streamed) {
    const double middle = median(launch);
    for (std::size_t cta = 0; cta < ctas; ++cta) of_cta[cta] += (launch[cta] - middle) / static_cast<double>(launches);
    for (const double ns : launch) total += (ns - middle) * (ns - middle);
  }
  double always = 0;
  for (const double late : of_cta) always += late * late;
  always /= static_cast<double>(ctas);
  total /= static_cast<double>(ctas * launches);
  return {std::sqrt(always), std::sqrt(std::max(0.0, total - always))};
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
  const std::int64_t bytes_each = arena->decode.kv_bytes() / 2 / 16 * 16;
  for (std::size_t variant = 0; variant < bench.read_limit.variants().size(); ++variant) {
    auto graph = TimedGraph::make(launches, bench.stream, [&](int launch, CUstream_st* stream) {
      const LeanDecodeArgs args = arena->decode.args(launch % arena->rotation.copies);
      return bench.read_limit.launch(variant, args.k, args.v, bytes_each, stream);
    });
    if (!graph) return tl::unexpected(graph.error());
    graphs.push_back(std::move(*graph));
  }
  std::vector<const TimedGraph*> raced;
  for (const TimedGraph& graph : graphs) raced.push_back(&graph);
  const auto samples = race(bench, raced);
  if (!samples) return tl::unexpected(samples.error());
  double read_us = std::numeric_limits<double>::infinity();
  for (std::size_t i = 3; i < samples->size(); ++i) read_us = std::min(read_us, median((*samples)[i]));

  const std::size_t ctas = static_cast<std::size_t>(config.grid);
  std::vector<Stamp> host(static_cast<std::size_t>(launches) * ctas * kMoments);
  if (auto ok = copy_to_host(host.data(), stamps->data(), stamps->bytes(), bench.stream); !ok)
    return tl::unexpected(ok.error());
  std::array<Passage, kMoments> passages;
  std::vector<std::vector<double>> streamed;
  for (int launch = 0; launch < launches; ++launch) {
    const Stamp* const of_launch = &host[static_cast<std::size_t>(launch) * ctas * kMoments];
    unsigned begin = of_launch[0].timer;
    for (std::size_t cta = 1; cta < ctas; ++cta) {
      if (static_cast<int>(of_launch[cta * kMoments].timer - begin) < 0) begin = of_launch[cta * kMoments].timer;
    }
    for (int moment = 0; moment < kMoments; ++moment) {
      std::vector<double> ns;
      for (std::size_t cta = 0; cta < ctas; ++cta) {
        const Stamp& stamp = of_launch[cta * kMoments + static_cast<std::size_t>(moment)];
        if (stamp.clock == 0 && stamp.timer == 0) continue;  // a moment that this kernel or CTA does not have
        ns.push_back(static_cast<double>(stamp.timer - begin));
        passages[static_cast<std::size_t>(moment)].cycles.push_back(
            static_cast<double>(stamp.clock - of_launch[cta * kMoments].clock));
      }
      if (ns.empty()) continue;
      Passage& passage = passages[static_cast<std::size_t>(moment)];
      passage.earliest.push_back(*std::min_element(ns.begin(), ns.end()));
      passage.middle.push_back(median(ns));
      passage.latest.push_back(*std::max_element(ns.begin(), ns.end()));
      if (static_cast<Moment>(moment) == Moment::gathered && ns.size() == ctas) streamed.push_back(std::move(ns));
    }
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
            {"read_limit_us", read_us},
            {"us", summary_json(summarize((*samples)[0]))},
            {"stopped_us", summary_json(summarize((*samples)[1]))},
            {"stamped_us", summary_json(summarize((*samples)[2]))},
            {"moments", std::move(moments)}};
  if (!streamed.empty()) {
    const Spread spread = spread_of(streamed);
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

std::string markdown(const Json& document) {
  std::string text = fmt::format(
      "# Where a launch goes\n\n{}; microseconds. `bench_phases --db DIR --out DIR`.\n\n## Fix-up\n\nThe whole kernel "
      "minus one "
      "that stops once its partials are stored; 256 tokens of 128 dims a CTA, group 4, cold L2.\n\n| contributors | "
      "ticket "
      "| wait |\n|--:|--:|--:|\n",
      document["device"]["name"].get<std::string>());
  for (const Json& row : document["fix_up"]) {
    const auto cost = [&](const char* form) {
      const Json& us = row["forms"][form]["cost_us"];
      return fmt::format("{:.2f} [{:.2f}, {:.2f}]", us["median"].get<double>(), us["low"].get<double>(),
                         us["high"].get<double>());
    };
    text += fmt::format("| {} | {} | {} |\n", row["contributors"].get<int>(), cost("ticket"), cost("wait"));
  }
  text +=
      "\n## Launches\n\nMoments: microseconds after the launch's first CTA began, of its first, middle and last CTA. "
      "Spread: standard "
      "deviation over CTAs of the moment the states of all warps are there, the part that is a CTA's own at every "
      "launch and the rest.\n\n| shape (B, Hq/Hkv, d, context) | KV MB | read limit | kernel | without merging | "
      "with stamps | placed | requested | streamed | gathered | finished | done | spread: always, now |\n"
      "|---|--:|--:|--:|--:|--:|---|---|---|---|---|---|---|\n";
  for (const Json& row : document["launches"]) {
    const Json &problem = row["problem"], &shape = row["shape"];
    const auto us = [&](const char* name) { return row[name]["median"].get<double>(); };
    text += fmt::format("| {}, {}/{}, {}, {} | {:.4g} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |", shape["batch"].get<int>(),
                        problem["q_heads"].get<int>(), problem["kv_heads"].get<int>(), problem["head_dim"].get<int>(),
                        shape["longest_context"].get<std::int64_t>(), row["kv_bytes"].get<double>() / 1e6,
                        row["read_limit_us"].get<double>(), us("us"), us("stopped_us"), us("stamped_us"));
    for (int moment = 1; moment < kMoments; ++moment) {
      std::string cell = " -";
      for (const Json& passage : row["moments"]) {
        if (passage["moment"] == to_string(static_cast<Moment>(moment)))
          cell = fmt::format(" {:.2f}, {:.2f}, {:.2f}", passage["earliest_ns"].get<double>() / 1e3,
                             passage["median_ns"].get<double>() / 1e3, passage["latest_ns"].get<double>() / 1e3);
      }
      text += cell + " |";
    }
    text += row.contains("gathered_spread_ns")
                ? fmt::format(" {:.2f}, {:.2f} |\n", row["gathered_spread_ns"]["always"].get<double>() / 1e3,
                              row["gathered_spread_ns"]["now"].get<double>() / 1e3)
                : std::string(" - |\n");
  }
  return text;
}

Result<Json> measure(const Bench& bench) {
  Json document{{"schema_version", 1},
                {"generator_revision", generator_revision()},
                {"device", detail::device_json(bench.device)},
                {"fix_up", Json::array()},
                {"launches", Json::array()}};
  for (const int contributors : {2, 4, 8, 16, 33, 66, 132}) {
    if (contributors > bench.device.sm_count) break;
    auto row = fix_up_cost(bench, contributors);
    if (!row) return row;
    document["fix_up"].push_back(std::move(*row));
  }
  for (const Launch& launch : kLaunches) {
    DecodeProblem problem;
    problem.q_heads = launch.q_heads, problem.kv_heads = launch.kv_heads, problem.head_dim = launch.head_dim;
    auto row = launch_phases(bench, problem, {.batch = launch.batch, .longest_context = launch.context});
    if (!row) return row;
    document["launches"].push_back(std::move(*row));
  }
  return document;
}

Result<Json> read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded()) return fail(ErrorCode::invalid_argument, "no JSON: " + path.string());
  return json;
}

int run(int argc, char** argv) {
  CLI::App app{"Where the time of a launch goes: what merging costs, and when CTAs reach each stage. Needs a GPU."};
  int ordinal = 0;
  std::optional<std::filesystem::path> db;
  std::filesystem::path out;
  bool report_only = false;
  app.add_option("--device", ordinal, "GPU, by ordinal")->capture_default_str();
  app.add_option("--db", db, "folder of tuning.db; without it launches are those of nobody's tuning");
  app.add_option("--out", out, "folder for phases.json and phases.md")->required();
  app.add_flag("--report-only", report_only, "write phases.md again from phases.json; needs no GPU");
  CLI11_PARSE(app, argc, argv);
  const Result<Json> document = report_only ? read_json(out / "phases.json") : [&]() -> Result<Json> {
    const auto bench = open_bench(ordinal, db);
    return bench ? measure(*bench) : tl::unexpected(bench.error());
  }();
  if (!document) {
    fmt::print(stderr, "bench_phases: {}\n{}", document.error().message, document.error().log);
    return 1;
  }
  std::filesystem::create_directories(out);
  if (!report_only) std::ofstream(out / "phases.json") << document->dump(1) << '\n';
  const std::string text = markdown(*document);
  std::ofstream(out / "phases.md") << text;
  fmt::print("{}", text);
  return 0;
}

}  // namespace
}  // namespace leanattn

int main(int argc, char** argv) { return leanattn::run(argc, argv); }
