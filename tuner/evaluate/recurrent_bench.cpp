#include "tuner/evaluate/recurrent_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <utility>

#include "runtime/recurrent/recurrent_choice.hpp"
#include "tuner/evaluate/device_json.hpp"
#include "tuner/measure/copy_limit.hpp"
#include "tuner/measure/graph_timer.hpp"
#include "tuner/measure/rotation.hpp"
#include "tuner/measure/statistics.hpp"
#include "tuner/oracle/random_data.hpp"
#include "tuner/oracle/recurrent_case.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kStatesOverL2 = 4;
constexpr int kFewRounds = 5;                   // of a preliminary race
constexpr std::size_t kMostTried = 12;          // lines of a sweep that are reported
constexpr double kRoomShare = 0.8;              // of the free memory that states may take
constexpr double kBytesPerUs = 3e6;             // a guess, by which graphs are made long enough
constexpr std::int64_t kBlockBytes = 16 << 20;  // of random bytes that repeat in memory

/// What launches read and write: states of all copies, and inputs and outputs of each.
class RecurrentMemory {
 public:
  static Result<RecurrentMemory> make(const RecurrentProblem& problem, int batch, int copies, const Stream& stream);

  LeanRecurrentArgs args(int copy) const;
  void* states(int copy) const { return pool_.at(copy * bytes_of_copy_); }
  std::int64_t state_bytes_of_launch() const { return std::int64_t{batch_} * state_bytes(problem_); }

 private:
  RecurrentMemory(const RecurrentProblem& problem, int batch) : problem_(problem), batch_(batch) {}
  int slots_of_request() const { return problem_.snapshots ? problem_.tokens : 1; }

  RecurrentProblem problem_;
  int batch_;
  std::int64_t bytes_of_copy_ = 0;
  DeviceBuffer pool_, slots_, offsets_, inputs_, gates_, o_, z_, constants_;
};

/// Fills a buffer with copies of one block of random values.
Result<void> fill_random(const DeviceBuffer& buffer, const std::vector<std::uint16_t>& block, const Stream& stream) {
  const auto block_bytes = static_cast<std::int64_t>(block.size() * 2);
  const std::int64_t first = std::min(block_bytes, buffer.bytes());
  if (auto ok = copy_to_device(buffer.data(), block.data(), first, stream); !ok) return ok;
  for (std::int64_t at = first; at < buffer.bytes(); at += block_bytes) {
    const std::int64_t bytes = std::min(block_bytes, buffer.bytes() - at);
    if (auto ok = copy_on_device_async(buffer.at(at), buffer.data(), bytes, stream.get()); !ok) return ok;
  }
  return stream.synchronize();
}

/// A block of values between -1 and 1.
std::vector<std::uint16_t> random_block(std::int64_t bytes, bool fp32, DType dtype) {
  std::mt19937 random(1);
  const auto value = [&] { return static_cast<float>(random()) * 0x1p-31F - 1; };
  std::vector<std::uint16_t> block(static_cast<std::size_t>(bytes / 2));
  for (std::size_t i = 0; i + 1 < block.size(); i += 2) {
    if (const float x = value(); fp32) {
      std::memcpy(&block[i], &x, sizeof x);
    } else {
      block[i] = bits_of(dtype, x), block[i + 1] = bits_of(dtype, value());
    }
  }
  return block;
}

Result<RecurrentMemory> RecurrentMemory::make(const RecurrentProblem& problem, int batch, int copies,
                                              const Stream& stream) {
  RecurrentMemory memory(problem, batch);
  const std::int64_t slots = std::int64_t{batch} * memory.slots_of_request(),
                     tokens = std::int64_t{batch} * problem.tokens;
  memory.bytes_of_copy_ = slots * state_bytes(problem);
  const std::int64_t row =
      std::int64_t{2} * problem.qk_heads * problem.key_dim + std::int64_t{problem.v_heads} * problem.value_dim;
  const std::int64_t gate_bytes = problem.gates == Gates::given ? 4 : 2;
  const std::pair<DeviceBuffer*, std::int64_t> sizes[] = {
      {&memory.pool_, copies * memory.bytes_of_copy_},
      {&memory.slots_, slots * 4},
      {&memory.offsets_, (batch + 1) * std::int64_t{4}},
      {&memory.inputs_, copies * tokens * row * 2},
      {&memory.gates_, copies * tokens * (gates_of_token(problem) + problem.v_heads) * gate_bytes},
      {&memory.o_, copies * tokens * problem.v_heads * problem.value_dim * 2},
      {&memory.z_, copies * tokens * problem.v_heads * problem.value_dim * 2},
      {&memory.constants_, (gates_of_token(problem) + 2 * problem.v_heads + problem.value_dim) * 4}};
  for (const auto& [buffer, bytes] : sizes) {
    auto allocated = DeviceBuffer::allocate(bytes);
    if (!allocated) return tl::unexpected(allocated.error());
    *buffer = *std::move(allocated);
  }
  const bool fp32 = problem.state == StateType::fp32;
  const auto elements = random_block(kBlockBytes, false, problem.dtype);
  if (auto ok = fill_random(memory.pool_, random_block(kBlockBytes, fp32, DType::bf16), stream); !ok)
    return tl::unexpected(ok.error());
  for (const DeviceBuffer* buffer : {&memory.inputs_, &memory.z_}) {
    if (auto ok = fill_random(*buffer, elements, stream); !ok) return tl::unexpected(ok.error());
  }
  const auto logs = random_block(kBlockBytes, true, DType::bf16);
  if (auto ok = fill_random(memory.gates_, gate_bytes == 4 ? logs : elements, stream); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = fill_random(memory.constants_, logs, stream); !ok) return tl::unexpected(ok.error());
  // Requests have slots in any order. They are the same in all copies, as those of a step are in all layers of a model.
  std::vector<int> order(static_cast<std::size_t>(slots)), requests(static_cast<std::size_t>(batch)), offsets;
  std::iota(requests.begin(), requests.end(), 0);
  std::shuffle(requests.begin(), requests.end(), std::mt19937(2));
  const int entries = memory.slots_of_request();
  for (int i = 0; i < slots; ++i)
    order[static_cast<std::size_t>(i)] = requests[static_cast<std::size_t>(i / entries)] * entries + i % entries;
  for (int request = 0; request <= batch; ++request) offsets.push_back(request * problem.tokens);
  if (auto ok = copy_to_device(memory.slots_.data(), order.data(), memory.slots_.bytes(), stream); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = copy_to_device(memory.offsets_.data(), offsets.data(), memory.offsets_.bytes(), stream); !ok)
    return tl::unexpected(ok.error());
  return memory;
}

LeanRecurrentArgs RecurrentMemory::args(int copy) const {
  const std::int64_t slots = std::int64_t{batch_} * slots_of_request(), tokens = std::int64_t{batch_} * problem_.tokens;
  const std::int64_t keys = std::int64_t{problem_.qk_heads} * problem_.key_dim,
                     values = std::int64_t{problem_.v_heads} * problem_.value_dim;
  const std::int64_t gate_bytes = problem_.gates == Gates::given ? 4 : 2, row = 2 * keys + values;
  char* const inputs = static_cast<char*>(inputs_.at(copy * tokens * row * 2));
  char* const gates =
      static_cast<char*>(gates_.at(copy * tokens * (gates_of_token(problem_) + problem_.v_heads) * gate_bytes));
  LeanRecurrentArgs args{};
  args.slots = slots_.as<int>();
  args.token_offsets = offsets_.as<int>();
  // The packed rows of the convolution: q, k and v of a token beside each other.
  args.q = inputs, args.k = inputs + 2 * keys, args.v = inputs + 4 * keys;
  args.a = gates, args.b = gates + tokens * gates_of_token(problem_) * gate_bytes;
  args.a_log = constants_.as<float>();
  args.skip = args.a_log + problem_.v_heads;
  args.dt_bias = args.skip + problem_.v_heads;
  args.norm_weight = args.dt_bias + gates_of_token(problem_);
  args.z = z_.at(copy * tokens * values * 2);
  args.state = static_cast<char*>(states(copy));
  args.o = o_.at(copy * tokens * values * 2);
  args.q_stride = args.k_stride = args.v_stride = row;
  args.a_stride = gates_of_token(problem_), args.b_stride = problem_.v_heads, args.o_stride = args.z_stride = values;
  args.state_stride = state_bytes(problem_) / bytes_of(problem_.state);
  args.slots_stride = slots_of_request();
  args.slot_count = static_cast<int>(slots);
  args.scale = 1 / std::sqrt(static_cast<float>(problem_.key_dim)), args.norm_eps = 1e-6F, args.lower_bound = -5,
  args.output_eps = 1e-6F;
  return args;
}

/// What is timed.
struct TimedKernel {
  RecurrentBenchLine line;
  TimedGraph graph;
  std::vector<double> samples = {};
};

/// Times all entrants in so many rounds, the first of which changes from round to round.
Result<void> run_rounds(std::vector<TimedKernel>& entrants, int rounds, const Stream& stream,
                        const std::atomic<bool>* cancel) {
  GraphTimer timer;
  for (int round = 0; round < rounds; ++round) {
    if (cancel != nullptr && cancel->load()) return fail(ErrorCode::interrupted, "interrupted while it was measured");
    std::vector<const TimedGraph*> graphs;
    const auto at = [&](std::size_t i) { return (i + static_cast<std::size_t>(round)) % entrants.size(); };
    for (std::size_t i = 0; i < entrants.size(); ++i) graphs.push_back(&entrants[at(i)].graph);
    const auto us = timer.time(*graphs.back(), graphs, stream);
    if (!us) return tl::unexpected(us.error());
    for (std::size_t i = 0; i < entrants.size(); ++i) entrants[at(i)].samples.push_back((*us)[i]);
  }
  return {};
}

/// The entrant with the lowest median.
Result<TimedKernel> fastest_of(std::vector<TimedKernel> entrants, const Stream& stream,
                               const std::atomic<bool>* cancel) {
  if (auto ok = run_rounds(entrants, kFewRounds, stream, cancel); !ok) return tl::unexpected(ok.error());
  const auto best = std::min_element(entrants.begin(), entrants.end(), [](const TimedKernel& a, const TimedKernel& b) {
    return median(a.samples) < median(b.samples);
  });
  best->samples.clear();
  return std::move(*best);
}

}  // namespace

Result<RecurrentBenchReport> recurrent_bench(const RecurrentProblem& problem, int batch,
                                             const RecurrentBenchOptions& options, CubinCache* cubins,
                                             const std::atomic<bool>* cancel) {
  if (auto ok = validate(problem); !ok) return tl::unexpected(ok.error());
  const auto device = device_facts(options.device);
  if (!device) return tl::unexpected(device.error());
  const auto context = Context::retain(options.device);
  if (!context) return tl::unexpected(context.error());
  const auto stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  const auto free = device_memory();
  if (!free) return tl::unexpected(free.error());
  RecurrentBenchReport report{
      .device = *device, .problem = problem, .batch = batch, .traffic_bytes = state_traffic(problem, batch)};
  const int slots = problem.snapshots ? problem.tokens : 1;
  const std::int64_t held = state_bytes(problem) * batch * slots;
  const Rotation rotation = rotation_for(
      held, device->l2_bytes, static_cast<std::int64_t>(static_cast<double>(free->free_bytes) * kRoomShare),
      2 + static_cast<double>(report.traffic_bytes) / kBytesPerUs, options.policy == L2Policy::cold, kStatesOverL2);
  report.copies = rotation.copies, report.stays_in_l2 = rotation.stays_in_l2;
  const auto memory = RecurrentMemory::make(problem, batch, rotation.copies, *stream);
  if (!memory) return tl::unexpected(memory.error());
  const auto checks = RecurrentCase::create(problem, {.batch = 2, .padded = true, .null_slots = true}, *stream);
  if (!checks) return tl::unexpected(checks.error());

  std::vector<RecurrentKernel> kernels;
  kernels.reserve(1 + (options.sweep ? recurrent_search_space(device->arch, problem).size() : 0));
  const auto entrant = [&](std::string mode, const RecurrentSpec& spec) -> Result<TimedKernel> {
    auto kernel = RecurrentKernel::prepare(spec, cubins);
    if (!kernel) return tl::unexpected(kernel.error());
    const auto outcome = checks->check(*kernel, *stream);
    if (!outcome) return tl::unexpected(outcome.error());
    if (!outcome->first_failure.empty())
      return fail(ErrorCode::wrong_result, fmt::format("{}: {}", kernel_name(spec), outcome->first_failure),
                  "Run leanattn verify --only recurrent to see whether other kernels are affected.");
    kernels.push_back(*std::move(kernel));
    const RecurrentKernel& kept = kernels.back();
    auto graph = TimedGraph::make(rotation.launches, *stream, [&](int launch, CUstream_st* capturing) {
      return kept.launch(memory->args(launch % rotation.copies), batch, capturing);
    });
    if (!graph) return tl::unexpected(graph.error());
    return TimedKernel{{.mode = std::move(mode), .kernel = kernel_name(spec), .registers = kept.resources().registers},
                       *std::move(graph)};
  };
  const auto limit = CopyLimit::load(*device, cubins);
  if (!limit) return tl::unexpected(limit.error());
  const auto fastest_copy = [&](std::string mode, int writes) -> Result<TimedKernel> {
    std::vector<TimedKernel> ways;
    for (const CopyVariant& variant : CopyLimit::variants()) {
      auto graph = TimedGraph::make(rotation.launches, *stream, [&](int launch, CUstream_st* capturing) {
        return limit->launch(variant, memory->states(launch % rotation.copies), memory->state_bytes_of_launch(), writes,
                             capturing);
      });
      if (!graph) return tl::unexpected(graph.error());
      ways.push_back({{.mode = mode, .kernel = variant.name}, *std::move(graph)});
    }
    return fastest_of(std::move(ways), *stream, cancel);
  };

  std::vector<TimedKernel> entrants;
  const RecurrentSpec chosen = default_spec(*device, problem, batch);
  auto lean = entrant("lean", chosen);
  if (!lean) return tl::unexpected(lean.error());
  entrants.push_back(*std::move(lean));
  std::vector<TimedKernel> tried;
  if (options.sweep) {
    for (const RecurrentTunables& tunables : recurrent_search_space(device->arch, problem)) {
      auto made = entrant("tried", {.arch = device->arch, .problem = problem, .tunables = tunables});
      if (!made && made.error().code == ErrorCode::kernel_rejected) continue;
      if (!made) return tl::unexpected(made.error());
      tried.push_back(*std::move(made));
    }
    if (auto ok = run_rounds(tried, kFewRounds, *stream, cancel); !ok) return tl::unexpected(ok.error());
    std::sort(tried.begin(), tried.end(),
              [](const TimedKernel& a, const TimedKernel& b) { return median(a.samples) < median(b.samples); });
    entrants.push_back({tried.front().line, std::move(tried.front().graph)});
    entrants.back().line.mode = "best";
    tried.erase(tried.begin());
    if (tried.size() > kMostTried) tried.erase(tried.begin() + kMostTried, tried.end());
  }
  const std::size_t copy_at = entrants.size();
  auto copy = fastest_copy("copy", 1);
  if (!copy) return tl::unexpected(copy.error());
  entrants.push_back(*std::move(copy));
  if (slots > 1) {
    auto traffic = fastest_copy("traffic", slots);
    if (!traffic) return tl::unexpected(traffic.error());
    entrants.push_back(*std::move(traffic));
  }
  if (auto ok = run_rounds(entrants, options.rounds, *stream, cancel); !ok) return tl::unexpected(ok.error());

  const std::vector<double> copy_us = entrants[copy_at].samples, traffic_us = entrants.back().samples;
  for (TimedKernel& each : tried) entrants.push_back(std::move(each));
  for (TimedKernel& each : entrants) {
    const Summary summary = summarize(each.samples);
    RecurrentBenchLine& line = each.line;
    line.median_us = summary.median, line.low_us = summary.low, line.high_us = summary.high;
    const std::int64_t bytes = line.mode == "copy" ? 2 * memory->state_bytes_of_launch() : report.traffic_bytes;
    line.gb_per_s = static_cast<double>(bytes) / (summary.median * 1e3);
    const bool paired = line.mode != "tried";  // the others were timed in rounds of their own
    const auto ratio = [&](const std::vector<double>& to) {
      return paired ? paired_ratio(each.samples, to).ratio : independent_ratio(each.samples, to).ratio;
    };
    line.ratio_to_copy = ratio(copy_us), line.ratio_to_traffic = ratio(traffic_us);
    line.samples_us = std::move(each.samples);
    report.lines.push_back(std::move(line));
  }
  return report;
}

std::string to_json(const std::vector<RecurrentBenchReport>& reports) {
  nlohmann::ordered_json document{{"schema_version", 1}};
  document["method"] =
      "CUDA graphs are replayed. Launches take turns over states that together exceed four times the L2. Every round "
      "times all kernels, in rotated order. Times are microseconds per launch.";
  document["reports"] = nlohmann::ordered_json::array();
  for (const RecurrentBenchReport& report : reports) {
    nlohmann::ordered_json json{{"device", device_json(report.device)},
                                {"problem", nlohmann::ordered_json::parse(to_json(report.problem))},
                                {"batch", report.batch},
                                {"traffic_bytes", report.traffic_bytes},
                                {"copies", report.copies},
                                {"stays_in_l2", report.stays_in_l2}};
    json["lines"] = nlohmann::ordered_json::array();
    for (const RecurrentBenchLine& line : report.lines) {
      json["lines"].push_back({{"mode", line.mode},
                               {"kernel", line.kernel},
                               {"registers", line.registers},
                               {"median_us", line.median_us},
                               {"low_us", line.low_us},
                               {"high_us", line.high_us},
                               {"gb_per_s", line.gb_per_s},
                               {"ratio_to_copy", line.ratio_to_copy},
                               {"ratio_to_traffic", line.ratio_to_traffic},
                               {"samples_us", line.samples_us}});
    }
    document["reports"].push_back(std::move(json));
  }
  return document.dump(2);
}

}  // namespace v1
}  // namespace leanattn
