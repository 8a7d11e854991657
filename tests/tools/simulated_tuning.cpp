// simulated_tuning.cpp -- writes what reports are made of, without a GPU: the tuning.db of whole tuning sessions on
// simulated GPUs, the paper's sweeps (paper.json) and held-out regret (regret.json). It is called as
//   simulated_tuning DIR [--hostile] [--brief]
// With --hostile, names try to break out of every format. With --brief, few shapes have a short search: as many as
// every part of a report needs. Or as
//   simulated_tuning DIR --from-capture FILE
// which adds the shapes of a call capture to DIR/tuning.db, as `leanattn tune --from-capture FILE --missing` does on a
// GPU. It prints how many it tuned.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "cli/commands/tune_work.hpp"
#include "runtime/engine/call_capture_file.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"
#include "tuner/evaluate/paper.hpp"

namespace leanattn {
namespace {

constexpr std::uint64_t kSeed = 20261121;

struct Session {
  DecodeProblem problem;
  L2Policy policy = L2Policy::cold;
  std::vector<int> batches;
  std::vector<std::int64_t> contexts;
  std::vector<Shape> more = {};
};

DecodeProblem multi_head(int heads) { return {.q_heads = heads, .kv_heads = heads, .head_dim = 64}; }

const DecodeProblem kPagedFp8{.features = {.page_size = 16, .kv_format = KvFormat::fp8_e4m3}};
const DecodeProblem kGroup{.features = {.context_parallel = 2}, .group_link = GroupLink::nvlink};
constexpr Shape kRagged{.batch = 32, .max_batch = 0, .longest_context = 131072, .total_context = 131072 + 31 * 1024};

std::vector<Session> big_sessions() {
  const std::vector<std::int64_t> contexts = {1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 17};
  return {{.problem = {}, .batches = {1, 4, 16, 64}, .contexts = contexts, .more = {kRagged}},
          {.problem = {.pdl = true}, .batches = {1}, .contexts = {1 << 10, 1 << 13}},
          {.problem = {}, .policy = L2Policy::warm, .batches = {1}, .contexts = {1 << 10, 1 << 12}},
          {.problem = {.q_heads = 8, .kv_heads = 1}, .batches = {1, 32}, .contexts = {1 << 13, 1 << 17}},
          {.problem = kPagedFp8, .batches = {1, 16}, .contexts = {1 << 13, 1 << 16}},
          {.problem = kGroup, .batches = {1, 16}, .contexts = {1 << 14, 1 << 16}},
          {.problem = multi_head(16), .batches = {1, 4}, .contexts = contexts},
          {.problem = multi_head(32), .batches = {1}, .contexts = {1 << 14, 1 << 16}},
          {.problem = multi_head(56), .batches = {1}, .contexts = {1 << 14, 1 << 16}}};
}

/// A chart of a report has lines of three points or more: hence three context lengths and three batches. The paper's
/// sweeps have the numbers of heads.
std::vector<Session> brief_sessions() {
  return {{.problem = {}, .batches = {1, 4, 16}, .contexts = {1 << 10}, .more = {kRagged}},
          {.problem = {.pdl = true}, .batches = {1}, .contexts = {1 << 10}},
          {.problem = {}, .policy = L2Policy::warm, .batches = {1}, .contexts = {1 << 10}},
          {.problem = kPagedFp8, .batches = {1}, .contexts = {1 << 13}},
          {.problem = kGroup, .batches = {1}, .contexts = {1 << 10}},
          {.problem = multi_head(16), .batches = {1}, .contexts = {1 << 10, 1 << 14, 1 << 17}}};
}

std::vector<Session> small_sessions() {
  return {{.problem = {}, .batches = {1, 8}, .contexts = {1 << 10, 1 << 13, 1 << 16}}};
}

std::vector<Session> brief_small_sessions() {
  return {{.problem = {}, .batches = {1}, .contexts = {1 << 10, 1 << 13}}};
}

constexpr SearchEffort kUsualEffort{
    .specs = 32, .sweep_specs = 4, .refine_specs = 2, .refine_generations = 1, .race_size = 16};
constexpr SearchEffort kBriefEffort{.specs = 7,
                                    .grids_per_spec = 2,
                                    .sweep_specs = 1,
                                    .refine_specs = 1,
                                    .twin_specs = 2,
                                    .refine_generations = 1,
                                    .race_size = 4,
                                    .finalists = 2,
                                    .confirm_rounds_max = 12};

struct Options {
  bool hostile = false, brief = false;
};

DeviceFacts big_gpu() {
  DeviceFacts device = simulated_device();
  device.name = "Simulated H200";
  device.l2_bytes = 60 << 20, device.memory_bytes = 140ll << 30;
  return device;
}

DeviceFacts small_gpu(bool hostile) {
  DeviceFacts device = facts_for_arch({8, 9, false}, 58).value();
  device.name =
      hostile ? "=HYPERLINK(\"http://evil\")|<script>alert('x')</script>&\n`*_[\xE2\x80\xAE\xFF\x01" : "Simulated L4";
  device.l2_bytes = 48 << 20, device.memory_bytes = 24ll << 30;
  return device;
}

Environment environment(const char* revision, bool hostile) {
  return {.driver_version = 13000,
          .driver_release = hostile ? "<img src=x onerror=alert(1)>" : "580.159.04",
          .nvrtc_version = "13.0",
          .clock_khz = 1980000,
          .memory_clock_khz = 3201000,
          .power_limit_mw = 700000,
          .ecc = true,
          .library_revision = revision};
}

/// Plants faults of every kind. Their reasons have names and numbers, as real ones do.
void plant_faults(SimulatedGpu& gpu, bool hostile) {
  gpu.spills = [](const KernelSpec& spec) { return spec.load == LoadPath::ldg && spec.ctas_per_sm == 4; };
  // Among the usual kernels, which a search of any length tries, is one of each.
  gpu.wrong = [](const Config& config) { return config.spec.load == LoadPath::bulk && config.spec.stages == 2; };
  gpu.fails_check = [](const Config& config) {
    return config.spec.load == LoadPath::cp_async && config.spec.stages == 3;
  };
  gpu.noise = 0.012;
  if (hostile) gpu.failure = "</td></table><script>alert(document.domain)</script>";
}

Result<void> tune_all(TuningDb& db, const DeviceFacts& device, const std::vector<Session>& sessions,
                      const Options& options) {
  std::uint64_t seed = kSeed;
  for (const Session& session : sessions) {
    TuneRequest request;
    request.problem = session.problem, request.policy = session.policy, request.compile_threads = 2;
    if (in_group(session.problem.features)) request.rank_devices = {0, 1};
    request.command = "simulated_tuning";
    for (const int batch : session.batches) {
      for (const std::int64_t context : session.contexts)
        request.shapes.push_back({.batch = batch, .max_batch = 0, .longest_context = context, .total_context = 0});
    }
    request.shapes.insert(request.shapes.end(), session.more.begin(), session.more.end());
    SimulatedGpu gpu(session.problem, ++seed, device);
    plant_faults(gpu, options.hostile);
    const auto tuned = run_session(request, device, environment("simulated", options.hostile), gpu, db,
                                   options.brief ? kBriefEffort : kUsualEffort, {}, nullptr);
    if (!tuned) return tl::unexpected(tuned.error());
  }
  return {};
}

/// Times of the paper's points by a model of the three schedules, with noise. Lean fills the GPU, FlashDecoding has
/// whole splits, and FlashAttention-2 has one CTA for each head.
PaperReport simulated_paper(const DeviceFacts& device, const Options& options) {
  std::mt19937_64 random(kSeed);
  std::normal_distribution<double> normal(0, 0.004);
  const auto line = [&](const char* mode, const PaperPoint& point, double us, std::int64_t grid) {
    BenchLine one;
    one.mode = mode, one.provenance = "simulated";
    one.config = {.spec = base_spec(device.arch, problem_of(point)), .grid = grid};
    for (int i = 0; i < 15; ++i) one.samples_us.push_back(us * (1 + std::abs(normal(random))));
    const Summary summary = summarize(one.samples_us);
    one.median_us = summary.median, one.mad_us = summary.mad, one.low_us = summary.low, one.high_us = summary.high;
    return one;
  };
  PaperReport report{.device = device.name,
                     .arch = to_string(device.arch),
                     .provenance = nlohmann::json{{"name", "Simulated H200"}, {"arch", "sm_90a"}}.dump(),
                     .revision = "simulated",
                     .measurements = {},
                     .missing = {}};
  // The ends and middles of all lines come first.
  const std::size_t most = options.brief ? 16 : std::numeric_limits<std::size_t>::max();
  for (const PaperPoint& point : paper_points(paper_lines(), device.memory_bytes)) {
    if (report.measurements.size() == most) {
      report.missing.push_back({.point = point, .reason = "budget"});
      continue;
    }
    const double read = 2.0 + static_cast<double>(kv_bytes(problem_of(point), shape_of(point))) / 4.6e6;
    const std::int64_t outputs = std::int64_t{point.heads} * point.batch, sms = device.sm_count;
    const std::int64_t splits = std::max<std::int64_t>(1, sms / outputs), even = splits * outputs;
    const auto slowed = [&](std::int64_t grid) {
      const auto waves = static_cast<double>((grid + sms - 1) / sms);
      return std::max(1.0, static_cast<double>(sms) * waves / static_cast<double>(grid) * 0.85);
    };
    report.measurements.push_back({.point = point,
                                   .lean = line("lean", point, read + 2.4, sms),
                                   .flash_attention2 = line("fa2", point, read * slowed(outputs) + 1.0, outputs),
                                   .flash_decoding = line("fd", point, read * slowed(even) + 2.2, even),
                                   .read = line("read", point, read, 1)});
  }
  return report;
}

std::string simulated_regret() {
  std::mt19937_64 random(kSeed);
  std::exponential_distribution<double> regret(60);
  nlohmann::json cases = nlohmann::json::array();
  for (int i = 0; i < 50; ++i) {
    const Shape shape{.batch = 1 + i % 7 * 5, .max_batch = 0, .longest_context = 1000 + 2311 * i, .total_context = 0};
    const double best = 4.0 + static_cast<double>(kv_bytes({}, shape)) / 4.6e6;
    cases.push_back({{"problem", nlohmann::json::parse(to_json(DecodeProblem{}))},
                     {"shape", nlohmann::json::parse(to_json(shape))},
                     {"answer", i % 5 == 0 ? "bucket" : "nearest"},
                     {"looked_up_us", best * (1 + regret(random))},
                     {"best_us", best}});
  }
  return nlohmann::json{{"schema_version", 1}, {"cases", cases}}.dump(1);
}

Result<void> write_all(const std::filesystem::path& directory, const Options& options) {
  std::string warning;
  // The database is made in memory and copied, because each of thousands of trials is a transaction.
  auto db = TuningDb::open(std::nullopt, OpenMode::read_write, &warning);
  if (!db) return tl::unexpected(db.error());
  const auto big = options.brief ? brief_sessions() : big_sessions();
  const auto small = options.brief ? brief_small_sessions() : small_sessions();
  if (auto done = tune_all(**db, big_gpu(), big, options); !done) return done;
  if (auto done = tune_all(**db, small_gpu(options.hostile), small, options); !done) return done;
  std::filesystem::create_directories(directory);
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  std::filesystem::remove(directory / "tuning.db");
  if (auto done = (*db)->export_to(directory / "tuning.db"); !done) return done;
  std::ofstream(directory / "paper.json") << to_json(simulated_paper(big_gpu(), options));
  std::ofstream(directory / "regret.json") << simulated_regret();
  return {};
}

/// Tunes what is missing of a call capture on a simulated H200, under the software of this machine.
Result<void> tune_capture(const std::filesystem::path& directory, const std::filesystem::path& file) {
  const DeviceFacts device = big_gpu();
  const Environment now = current_environment(device);
  const auto capture = read_call_capture(file);
  if (!capture) return tl::unexpected(capture.error());
  const auto db = TuningDb::open(directory, OpenMode::read_write, nullptr);
  if (!db) return tl::unexpected(db.error());
  const auto works = missing_work(captured_work(*capture, L2Policy::cold), **db, std::span(&device, 1));
  if (!works) return tl::unexpected(works.error());
  std::size_t tuned = 0;
  for (const TuneWork& work : *works) {
    TuneRequest request;
    request.problem = work.workload.problem, request.shapes = work.workload.shapes, request.compile_threads = 2;
    request.command = "simulated_tuning --from-capture";
    SimulatedGpu gpu(request.problem, kSeed, device);
    const auto done = run_session(request, device, now, gpu, **db, kBriefEffort, {}, nullptr);
    if (!done) return tl::unexpected(done.error());
    tuned += request.shapes.size();
  }
  std::printf("%zu\n", tuned);
  return {};
}

}  // namespace
}  // namespace leanattn

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[2]) == "--from-capture") {
    const auto tuned = leanattn::tune_capture(argv[1], argv[3]);
    if (!tuned) std::fprintf(stderr, "simulated_tuning: %s\n", tuned.error().message.c_str());
    return tuned ? 0 : 1;
  }
  leanattn::Options options;
  bool understood = argc >= 2;
  for (int i = 2; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--hostile")
      options.hostile = true;
    else if (flag == "--brief")
      options.brief = true;
    else
      understood = false;
  }
  if (!understood) {
    std::fputs("usage: simulated_tuning DIR [--hostile] [--brief]\n       simulated_tuning DIR --from-capture FILE\n",
               stderr);
    return 2;
  }
  const auto written = leanattn::write_all(argv[1], options);
  if (!written) std::fprintf(stderr, "simulated_tuning: %s\n", written.error().message.c_str());
  return written ? 0 : 1;
}
