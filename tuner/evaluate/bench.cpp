// bench.cpp -- chooses the best configuration of each mode in a few rounds, and then times all modes together.
#include "tuner/evaluate/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/group.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/specs.hpp"
#include "tuner/backend/compile_pool.hpp"
#include "tuner/backend/gpu_backend.hpp"
#include "tuner/backend/group_backend.hpp"
#include "tuner/evaluate/baselines.hpp"
#include "tuner/measure/race.hpp"
#include "tuner/model/search_space.hpp"
#include "tuner/search/session.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kBatch = 8;  // configurations in one preliminary round
constexpr int kPreliminaryRounds = 3;
constexpr int kFewestBenchRounds = 15, kMostBenchRounds = 101;
constexpr double kGoodMedianInterval = 0.01;  // over the median: no more rounds are needed then

/// One mode, and the configuration that it is timed with.
struct Entrant {
  std::string mode;
  Config config;
  std::string provenance;
};

Result<void> require_correct(TuneBackend& backend, const Config& config) {
  const Result<CheckOutcome> outcome = backend.check(config);
  if (!outcome) return tl::unexpected(outcome.error());
  if (outcome->verdict == Verdict::passed) return {};
  return fail(
      outcome->verdict == Verdict::incorrect ? ErrorCode::wrong_result : ErrorCode::launch_failed,
      fmt::format("{} with {} CTAs failed its check: {}", kernel_name(config.spec), config.grid, outcome->reason),
      "Run leanattn verify to see whether other kernels are affected.");
}

bool cancelled(const std::atomic<bool>* cancel) { return cancel != nullptr && cancel->load(); }

/// The fastest of several configurations by a few rounds. Each is checked before it is timed.
Result<Config> fastest(TuneBackend& backend, const std::vector<Config>& configs, const std::atomic<bool>* cancel) {
  const Config* best = nullptr;
  double best_ratio = 0;
  for (std::size_t first = 0; first < configs.size(); first += kBatch) {
    const std::vector<Config> batch(
        configs.begin() + static_cast<std::ptrdiff_t>(first),
        configs.begin() + static_cast<std::ptrdiff_t>(std::min(first + kBatch, configs.size())));
    for (const Config& config : batch) {
      if (cancelled(cancel)) return fail(ErrorCode::interrupted, "interrupted before anything was measured");
      if (auto ok = require_correct(backend, config); !ok) return tl::unexpected(ok.error());
    }
    std::vector<std::vector<double>> ratios(batch.size());
    for (int round = 0; round < kPreliminaryRounds; ++round) {
      const Result<RoundTimes> times = backend.time(batch);
      if (!times) return tl::unexpected(times.error());
      for (std::size_t i = 0; i < batch.size(); ++i) ratios[i].push_back(times->us[i] / times->sentinel_us);
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const double ratio = median(ratios[i]);
      if (best == nullptr || ratio < best_ratio) best = &configs[first + i], best_ratio = ratio;
    }
  }
  return *best;
}

/// The configurations that the caller gave, compiled and checked.
Result<std::vector<Entrant>> given_entrants(const DecodeStep& step, const BenchOptions& options, TuneBackend& backend) {
  std::vector<Entrant> entrants;
  for (Config config : options.configs) {
    const Result<KernelSpec> spec = with_tunables_of(base_spec(step.device.arch, step.problem), config.spec);
    if (!spec) return tl::unexpected(spec.error());
    config.spec = *spec;
    const Result<CompiledSpec> compiled = backend.compile(config.spec);
    if (!compiled) return tl::unexpected(compiled.error());
    if (const std::int64_t held = std::int64_t{compiled->resident} * step.device.sm_count;
        config.spec.fixup == FixUp::wait && config.grid > held)
      return fail(ErrorCode::unsupported, fmt::format("a grid of {} CTAs with fix-up wait", config.grid),
                  fmt::format("Its CTAs wait for each other, and the GPU holds {} at once.", held));
    if (auto ok = require_correct(backend, config); !ok) return tl::unexpected(ok.error());
    entrants.push_back({"given", config, "given"});
  }
  return entrants;
}

/// The entrant of each mode that was asked for: lean's configuration and the best one of each baseline.
Result<std::vector<Entrant>> choose_entrants(const DecodeStep& step, const BenchOptions& options, TuneBackend& backend,
                                             const LayeredWinners& winners, const std::atomic<bool>* cancel) {
  const auto wanted = [&](const char* mode) {
    const bool any = options.modes.empty() && (!in_group(step.problem.features) || mode == std::string_view("lean"));
    return any || std::find(options.modes.begin(), options.modes.end(), mode) != options.modes.end();
  };
  if (!wanted("lean") && !wanted("fa2") && !wanted("fd")) return given_entrants(step, options, backend);
  const Choice lean = look_up(step, options.policy, winners);
  std::vector<KernelSpec> specs{lean.config.spec};
  if (wanted("fa2") || wanted("fd")) {
    std::vector<KernelSpec> more =
        choose_specs(default_model(step.device), {&step, 1}, static_cast<std::size_t>(std::max(options.kernels, 0)));
    more.push_back(default_config(step).spec);
    for (const KernelSpec& spec : more) {
      if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
    }
    specs = baseline_kernels(step, std::move(specs));
  }
  CompilePool pool([&backend](const KernelSpec& spec) { return backend.compile(spec); }, 0);
  pool.enqueue(specs);
  std::vector<std::pair<KernelSpec, int>> usable;  // with the number of CTAs that an SM holds
  for (const KernelSpec& spec : specs) {
    const Result<CompiledSpec>* compiled = pool.wait(spec, [&] { return cancelled(cancel); });
    if (compiled == nullptr) return fail(ErrorCode::interrupted, "interrupted before anything was measured");
    if (*compiled) {
      usable.emplace_back(spec, (*compiled)->resident);
    } else if (spec == lean.config.spec) {
      return tl::unexpected(compiled->error());  // A baseline leaves out kernels that spill.
    }
  }
  Result<std::vector<Entrant>> entrants = given_entrants(step, options, backend);
  if (!entrants) return entrants;
  std::vector<Config> for_lean{lean.config};
  for (const char* mode : {"fa2", "fd"}) {
    if (!wanted(mode)) continue;
    std::vector<Config> configs;
    for (const auto& [spec, resident] : usable) {
      const auto more = baseline_configs(mode, step, spec, resident);
      configs.insert(configs.end(), more.begin(), more.end());
    }
    if (configs.empty())
      return fail(ErrorCode::unsupported, fmt::format("no kernel can have a grid of mode {} for this shape", mode),
                  "Their CTAs wait for each other, and the GPU does not hold so many at once. Give --mode lean,read.");
    const Result<Config> config = fastest(backend, configs, cancel);
    if (!config) return tl::unexpected(config.error());
    entrants->push_back({mode, *config, "best of its kind"});
    // Lean may have any grid, and so a baseline's as well.
    if (options.lean_grids > 0) for_lean.push_back(*config);
  }
  if (!wanted("lean")) return entrants;
  for (const auto& [spec, resident] : usable) {
    if (options.lean_grids == 0) break;
    const auto ranked = rank_grids(default_parameters(step.device), step, spec, resident);
    for (const RankedConfig& candidate : spread(ranked, static_cast<std::size_t>(options.lean_grids)))
      for_lean.push_back(candidate.config);
  }
  const Result<Config> config = fastest(backend, for_lean, cancel);
  if (!config) return tl::unexpected(config.error());
  const std::string looked_up =
      lean.provenance == Provenance::fallback ? "default" : std::string(to_string(lean.provenance));
  entrants->insert(entrants->begin(), {"lean", *config, *config == lean.config ? looked_up : "best of its kind"});
  return entrants;
}

/// What times the entrants of a shape.
struct Bench {
  std::unique_ptr<TuneBackend> backend;
  std::string read_kernel;  ///< the sentinel
};

Result<Bench> begin_bench(const DecodeStep& step, const std::vector<int>& lengths, const BenchOptions& options,
                          CubinCache* cubins) {
  if (!in_group(step.problem.features)) {
    auto backend = GpuBackend::create(step.device, step.problem, options.policy, cubins);
    if (!backend) return tl::unexpected(backend.error());
    if (const auto begun = (*backend)->begin_requests({lengths, options.requests.query_tokens}); !begun)
      return tl::unexpected(begun.error());
    std::string read_kernel = (*backend)->read_variant().name;
    return Bench{std::move(*backend), std::move(read_kernel)};
  }
  for (const std::string& mode : options.modes) {
    if (mode != "fa2" && mode != "fd") continue;
    return fail(ErrorCode::unsupported, fmt::format("mode {} in a group", mode),
                "Only lean has kernels that share contexts. Give lean and read, or leave context_parallel out.");
  }
  if (!options.requests.context_lengths.empty())
    return fail(ErrorCode::unsupported, "context lengths of their own in a group",
                "All ranks get the same part: give a batch and a context of one rank.");
  auto backend = GroupBackend::create(step.device, step.problem, options.policy, cubins, options.rank_devices);
  if (!backend) return tl::unexpected(backend.error());
  if (const auto begun = (*backend)->begin_shape(step.shape); !begun) return tl::unexpected(begun.error());
  std::string read_kernel = (*backend)->read_variant().name;
  return Bench{std::move(*backend), std::move(read_kernel)};
}

}  // namespace

BenchLine bench_line(std::string mode, std::span<const double> samples_us, std::span<const double> read_us,
                     std::int64_t bytes) {
  const Summary summary = summarize(samples_us);
  BenchLine line;
  line.mode = std::move(mode);
  line.median_us = summary.median, line.mad_us = summary.mad, line.low_us = summary.low, line.high_us = summary.high;
  line.gb_per_s = gb_per_s(bytes, summary.median);
  line.ratio_to_read = paired_ratio(samples_us, read_us).ratio;
  line.samples_us.assign(samples_us.begin(), samples_us.end());
  return line;
}

Choice look_up(const DecodeStep& step, L2Policy policy, LayeredWinners winners) {
  const std::string_view wanted = to_string(policy);
  std::erase_if(winners.entries, [&](const LayeredWinners::Entry& entry) { return entry.winner.policy != wanted; });
  return WinnerTable::build(step.device, std::move(winners)).find(step.problem, step.shape);
}

Result<BenchReport> bench(const DecodeProblem& asked, const Shape& shape, const BenchOptions& options,
                          const std::optional<std::filesystem::path>& directory, CubinCache* cubins,
                          const std::atomic<bool>* cancel) {
  if (auto ok = validate(asked, shape); !ok) return tl::unexpected(ok.error());
  DecodeProblem problem = asked;
  if (in_group(problem.features)) {
    const Result<GroupLink> link = group_link_of(options.rank_devices);
    if (!link) return tl::unexpected(link.error());
    problem.group_link = *link;
  }
  const Result<DeviceFacts> device = device_facts(options.device);
  if (!device) return tl::unexpected(device.error());
  if (auto ok = require_launches(*device, problem); !ok) return tl::unexpected(ok.error());
  const std::vector<int> lengths =
      options.requests.context_lengths.empty() ? context_lengths_of(shape) : options.requests.context_lengths;
  const DecodeStep step(*device, problem, shape);
  const Result<Bench> begun = begin_bench(step, lengths, options, cubins);
  if (!begun) return tl::unexpected(begun.error());
  const LayeredWinners winners = load_layered_winners(device_model(*device), directory, current_software(*device));
  const Result<std::vector<Entrant>> entrants = choose_entrants(step, options, *begun->backend, winners, cancel);
  if (!entrants) return tl::unexpected(entrants.error());

  std::vector<double> read;
  Race race(entrants->size());
  const int most = options.rounds > 0 ? options.rounds : kMostBenchRounds;
  while (race.rounds() < most && !cancelled(cancel)) {
    const std::vector<std::size_t> order = race.order();
    std::vector<Config> configs;
    configs.reserve(order.size());
    for (const std::size_t i : order) configs.push_back((*entrants)[i].config);
    const Result<RoundTimes> times = begun->backend->time(configs);
    if (!times) return tl::unexpected(times.error());
    if (!race.add(order, *times)) continue;
    read.push_back(times->sentinel_us);
    if (options.rounds > 0 || race.rounds() < kFewestBenchRounds || race.rounds() % 5 != 0) continue;
    const auto settled = [](std::span<const double> samples) {
      const Summary summary = summarize(samples);
      return summary.high - summary.low < kGoodMedianInterval * summary.median;
    };
    bool enough = settled(read);
    for (std::size_t i = 0; i < entrants->size(); ++i) enough = enough && settled(race.samples(i));
    if (enough) break;
  }
  if (race.rounds() == 0) return fail(ErrorCode::interrupted, "interrupted before anything was measured");

  BenchReport report;
  report.device = *device, report.problem = problem, report.shape = shape, report.policy = options.policy;
  report.warnings = winners.warnings, report.interrupted = cancelled(cancel);
  const std::int64_t bytes =
      kv_bytes(problem, RequestLengths{.context_lengths = lengths, .query_tokens = options.requests.query_tokens});
  for (std::size_t i = 0; i < entrants->size(); ++i) {
    BenchLine line = bench_line((*entrants)[i].mode, race.samples(i), read, bytes);
    line.config = (*entrants)[i].config;
    line.provenance = (*entrants)[i].provenance;
    report.lines.push_back(std::move(line));
  }
  if (options.modes.empty() || std::find(options.modes.begin(), options.modes.end(), "read") != options.modes.end()) {
    BenchLine line = bench_line("read", read, read, bytes);
    line.provenance = begun->read_kernel;
    report.lines.push_back(std::move(line));
  }
  return report;
}

}  // namespace v1
}  // namespace leanattn
