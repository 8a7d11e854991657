#include "tuner/backend/gpu_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "generator/workspace.hpp"
#include "runtime/cuda/nvml.hpp"
#include "runtime/lookup/specs.hpp"
#include "tuner/measure/timed_round.hpp"
#include "tuner/model/search_space.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kMostGraphs = 128;  // kept instantiated at a time
constexpr int kReadRounds = 9;            // samples of each reading kernel
constexpr double kMemoryShare = 0.8;      // the share of free memory that copies of KV may take
constexpr double kAssumedRate = 3e6;      // bytes a microsecond, until the read limit is known
constexpr double kAssumedStart = 4;       // microseconds

bool context_survives(const Error& error) {
  return error.code == ErrorCode::launch_failed || error.code == ErrorCode::load_failed ||
         error.code == ErrorCode::driver_too_old || error.code == ErrorCode::group_broken ||
         error.code == ErrorCode::workspace_corrupt;
}

}  // namespace

Result<std::unique_ptr<GpuBackend>> GpuBackend::create(const DeviceFacts& device, const DecodeProblem& problem,
                                                       L2Policy policy, CubinCache* cubins, std::int64_t memory_bytes) {
  Result<Context> context = Context::retain(device.ordinal);
  if (!context) return tl::unexpected(context.error());
  Result<Stream> stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  std::unique_ptr<GpuBackend> backend(
      new GpuBackend(std::move(*context), std::move(*stream), device, problem, policy, cubins, memory_bytes));
  auto oracle = OracleKernels::load(device.arch, cubins);
  if (!oracle) return tl::unexpected(oracle.error());
  backend->oracle_ = std::move(*oracle);
  Result<ReadLimit> read_limit = ReadLimit::load(device, cubins);
  if (!read_limit) return tl::unexpected(read_limit.error());
  backend->read_limit_ = std::make_unique<ReadLimit>(std::move(*read_limit));
  if (base_spec(device.arch, problem).pdl) {
    Result<DependentChain> chain = DependentChain::load(device.arch, cubins);
    if (!chain) return tl::unexpected(chain.error());
    backend->chain_.emplace(std::move(*chain));
  }
  return backend;
}

double GpuBackend::now_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Result<CompiledSpec> GpuBackend::compile(const KernelSpec& spec) {
  Result<EmittedKernel> emitted = emit(spec);
  if (!emitted) return tl::unexpected(emitted.error());
  Result<CompiledKernel> kernel = leanattn::compile(*emitted, cubins_);
  if (!kernel) return tl::unexpected(kernel.error());
  Result<CompiledSpec> result = fit_on_device(device_, *emitted, *kernel);
  if (!result) return result;
  const std::lock_guard lock(compiled_mutex_);
  compiled_.try_emplace(kernel_name(spec), Compiled{std::move(*emitted), std::move(*kernel)});
  return result;
}

Result<void> GpuBackend::adopt(const KernelSpec& spec, const CompiledKernel& kernel) {
  Result<EmittedKernel> emitted = emit(spec);
  if (!emitted) return tl::unexpected(emitted.error());
  const std::lock_guard lock(compiled_mutex_);
  compiled_.try_emplace(kernel_name(spec), Compiled{std::move(*emitted), kernel});
  return {};
}

Result<const LoadedKernel*> GpuBackend::loaded(const KernelSpec& spec) {
  const std::string name = kernel_name(spec);
  if (const auto it = kernels_.find(name); it != kernels_.end()) return &it->second;
  const Compiled* compiled = nullptr;
  {
    const std::lock_guard lock(compiled_mutex_);
    const auto it = compiled_.find(name);
    if (it == compiled_.end()) return fail(ErrorCode::internal, fmt::format("{} was not compiled", name));
    compiled = &it->second;  // map nodes stay where they are, and an entry is written once
  }
  Result<LoadedKernel> kernel = LoadedKernel::load(compiled->emitted, compiled->kernel);
  if (!kernel && kernel.error().code == ErrorCode::load_failed && compiled->kernel.from_cache) {
    // The driver refuses a cached cubin. prepare() throws it out and compiles anew.
    kernel = LoadedKernel::prepare(compiled->emitted, cubins_);
  }
  if (!kernel) return tl::unexpected(kernel.error());
  return &kernels_.emplace(name, std::move(*kernel)).first->second;
}

Result<double> GpuBackend::begin_shape(const Shape& shape) {
  if (!requests_.context_lengths.empty()) return begin_requests(requests_);
  return begin_requests({.context_lengths = context_lengths_of(shape), .query_tokens = query_tokens_of(shape)});
}

Result<double> GpuBackend::begin_requests(StepRequests requests) {
  std::vector<int>& context_lengths = requests.context_lengths;
  std::vector<int>& query_tokens = requests.query_tokens;
  neighbours_ = neighbours_text(gpu_neighbours(device_.uuid));
  // The old case goes first, because two of them may not fit into the memory.
  graphs_.clear();
  sentinel_.reset();
  case_.reset();
  const std::int64_t kv_read = kv_footprint(problem_, context_lengths).read;
  if (has_selection(problem_.features)) {
    for (int& length : context_lengths)
      length = static_cast<int>(
          std::min<std::int64_t>(std::int64_t{length} * kMeasuredSpread, std::numeric_limits<int>::max() / 2));
  }
  const std::int64_t copy_bytes = DecodeCase::bytes_of_copy(problem_, context_lengths);
  const Result<DeviceMemory> memory = device_memory();
  if (!memory) return tl::unexpected(memory.error());
  if (memory_bytes_ > 0 && copy_bytes > memory_bytes_) {
    return fail(ErrorCode::out_of_memory,
                fmt::format("K and V of this shape take {} bytes, and the limit is {}", copy_bytes, memory_bytes_),
                "Raise the limit, or tune a smaller shape.");
  }
  auto most = static_cast<double>(memory->free_bytes) * kMemoryShare;
  if (memory_bytes_ > 0) most = std::min(most, static_cast<double>(memory_bytes_));
  // A copy takes more than a launch reads of it where lengths differ or a window hides tokens.
  const double read_share = static_cast<double>(kv_read) / static_cast<double>(copy_bytes);
  const auto room = static_cast<std::int64_t>(most * read_share);
  rotation_ = rotation_for(kv_read, device_.l2_bytes, room, kAssumedStart + static_cast<double>(kv_read) / kAssumedRate,
                           policy_ == L2Policy::cold);

  auto made = DecodeCase::create(oracle_, problem_, std::move(context_lengths),
                                 {.kv_copies = rotation_.copies,
                                  .query_tokens = std::move(query_tokens),
                                  .selection_spread = kMeasuredSpread,
                                  .selection_shuffled = true},
                                 stream_.get());
  if (!made) return tl::unexpected(made.error());
  case_ = std::make_unique<DecodeCase>(std::move(*made));
  if (chain_) {
    if (auto taken = chain_->take(*case_, stream_.get()); !taken) return tl::unexpected(taken.error());
  }
  if (auto chosen = choose_read_variant(); !chosen) return tl::unexpected(chosen.error());
  return read_limit_us_;
}

Result<void> GpuBackend::choose_read_variant() {
  std::vector<TimedGraph> graphs;
  std::vector<const TimedGraph*> pointers;
  for (std::size_t variant = 0; variant < read_limit_->variants().size(); ++variant) {
    auto graph = TimedGraph::make(rotation_.launches, stream_, [&](int launch, CUstream_st* stream) {
      const DecodeCase::ReadHalves halves = case_->read_halves(launch % rotation_.copies);
      return read_limit_->launch(variant, halves.first, halves.second, halves.bytes_each, stream);
    });
    if (!graph) return tl::unexpected(graph.error());
    graphs.push_back(std::move(*graph));
  }
  pointers.reserve(graphs.size());
  for (const TimedGraph& graph : graphs) pointers.push_back(&graph);
  std::vector<std::vector<double>> samples(graphs.size());
  for (int round = 0; round < kReadRounds; ++round) {
    const Result<std::vector<double>> us = timer_.time(graphs.front(), pointers, stream_);
    if (!us) return tl::unexpected(us.error());
    for (std::size_t i = 0; i < us->size(); ++i) samples[i].push_back((*us)[i]);
  }
  read_limit_us_ = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double us = median(samples[i]);
    if (read_limit_us_ == 0 || us < read_limit_us_) read_limit_us_ = us, read_variant_ = i;
  }
  sentinel_ = std::make_unique<TimedGraph>(std::move(graphs[read_variant_]));
  return {};
}

Result<CheckOutcome> GpuBackend::check_with(
    const Config& config, const std::function<Result<ComparisonReport>(const LoadedKernel&)>& launch) {
  const Result<const LoadedKernel*> kernel = loaded(config.spec);
  const Result<ComparisonReport> report = kernel ? launch(**kernel) : tl::unexpected(kernel.error());
  if (report) {
    return report->passed() ? CheckOutcome{} : CheckOutcome{Verdict::incorrect, report->first_failure};
  }
  CheckOutcome outcome{Verdict::launch_failed, report.error().message};
  if (context_survives(report.error())) return outcome;
  if (kernel) condemned_.insert_or_assign(to_json(config), std::move(outcome));
  return tl::unexpected(report.error());
}

std::optional<CheckOutcome> GpuBackend::condemned(const Config& config) const {
  const auto it = condemned_.find(to_json(config));
  return it == condemned_.end() ? std::nullopt : std::optional(it->second);
}

Result<CheckOutcome> GpuBackend::check(const Config& config) {
  return check_with(config, [&](const LoadedKernel& kernel) {
    // It is launched twice: what the first launch leaves in the workspace, or a race, shows in the second.
    Result<ComparisonReport> report = case_->check(kernel, config, check_workspace_, stream_.get(), 2);
    if (report && report->passed() && config.spec.pdl) {
      // Here q and the newest tokens arrive late, from the kernel right before.
      report = case_->check(kernel, config, check_workspace_, stream_.get(), 2,
                            [&] { return chain_->produce(stream_.get()); });
    }
    return report;
  });
}

Result<void> renew_workspace(DeviceBuffer& workspace, std::int64_t bytes, CUstream_st* stream) {
  workspace = DeviceBuffer();
  Result<DeviceBuffer> made = DeviceBuffer::allocate(2 * bytes);
  if (!made) return tl::unexpected(made.error());
  workspace = std::move(*made);
  return fill_bytes_async(workspace.data(), 0, workspace.bytes(), stream);
}

Result<void> GpuBackend::reserve_workspace(std::span<const Config> configs) {
  std::int64_t bytes = 0;
  for (const Config& config : configs) {
    bytes = std::max(bytes, case_->workspace(config.spec, config.grid).total_bytes);
  }
  if (bytes <= workspace_.bytes()) return {};
  // Graphs hold addresses, so those that exist must go with the memory.
  if (auto ok = stream_.synchronize(); !ok) return ok;
  graphs_.clear();
  return renew_workspace(workspace_, bytes, stream_.get());
}

Result<TimedGraph> GpuBackend::graph(const LoadedKernel& kernel, const Config& config, void* workspace,
                                     const std::function<void(int launch, LeanDecodeArgs& args)>& adjust) const {
  return TimedGraph::make(rotation_.launches, stream_, [&](int launch, CUstream_st* stream) {
    LeanDecodeArgs args = case_->args(launch % rotation_.copies);
    bind_workspace(args, case_->workspace(config.spec, config.grid), workspace);
    args.segment_cost = static_cast<unsigned>(config.segment_cost);
    if (adjust) adjust(launch, args);
    return kernel.launch(args, config.grid, stream, config.l2_promotion);
  });
}

Result<const TimedGraph*> GpuBackend::graph_of(const Config& config) {
  const std::string key = to_json(config);
  if (const auto it = graphs_.find(key); it != graphs_.end()) return &it->second;
  const Result<const LoadedKernel*> kernel = loaded(config.spec);
  if (!kernel) return tl::unexpected(kernel.error());
  Result<TimedGraph> made = graph(**kernel, config, workspace_.data());
  if (!made) return tl::unexpected(made.error());
  return &graphs_.emplace(key, std::move(*made)).first->second;
}

Result<RoundTimes> GpuBackend::time(std::span<const Config> configs) {
  if (auto reserved = reserve_workspace(configs); !reserved) return tl::unexpected(reserved.error());
  if (graphs_.size() + configs.size() > kMostGraphs) graphs_.clear();
  std::vector<const TimedGraph*> graphs;
  for (const Config& config : configs) {
    const Result<const TimedGraph*> graph = graph_of(config);
    if (!graph) return tl::unexpected(graph.error());
    graphs.push_back(*graph);
  }
  return time_graphs(graphs);
}

Result<RoundTimes> GpuBackend::time_graphs(std::span<const TimedGraph* const> graphs) {
  auto times = time_round(timer_, *sentinel_, graphs, stream_, device_.uuid);
  if (!times) return times;
  times->neighbours = neighbours_;
  times->stays_in_l2 = rotation_.stays_in_l2;
  return times;
}

}  // namespace v1
}  // namespace leanattn
