// group_backend.cpp -- checks and times candidates on all ranks of a group at once.
#include "tuner/backend/group_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "generator/kv_encoding.hpp"
#include "runtime/cuda/nvml.hpp"
#include "tuner/model/search_space.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kMostRankGraphs = 64;  // candidates whose graphs are kept instantiated at a time
constexpr std::uint64_t kDataSeed = 1;

/// The problem of the case whose parts the ranks have: a dense cache of the whole contexts.
DecodeProblem whole_problem(DecodeProblem problem) {
  problem = without_group(problem);
  problem.features.page_size = 0;
  problem.layout = KvLayout::contiguous;
  problem.pdl = false;  // of the kernels, which bring it themselves
  return problem;
}

}  // namespace

Result<std::unique_ptr<GroupBackend>> GroupBackend::create(const DeviceFacts& device, const DecodeProblem& problem,
                                                           L2Policy policy, CubinCache* cubins,
                                                           std::vector<int> rank_devices) {
  const int ranks = problem.features.context_parallel;
  if (rank_devices.size() != static_cast<std::size_t>(ranks) || rank_devices.front() != device.ordinal)
    return fail(ErrorCode::invalid_argument, fmt::format("{} GPUs for a group of {} ranks", rank_devices.size(), ranks),
                "Name the GPU of each rank, that of rank 0 first.");
  const Features& features = problem.features;
  if (has_token_scales(features))
    return fail(ErrorCode::unsupported, "tuning of a group whose cache has scales per token",
                "Leave context_parallel out, and give the contexts of one rank. Plans of the group go by what is tuned "
                "for that.");
  auto part = GpuBackend::create(device, without_group(problem), policy, cubins);
  if (!part) return tl::unexpected(part.error());
  std::unique_ptr<GroupBackend> backend(new GroupBackend(std::move(*part), device, problem, std::move(rank_devices)));
  for (const int ordinal : backend->rank_devices_) {
    const Result<DeviceFacts> facts = device_facts(ordinal);
    if (!facts) return tl::unexpected(facts.error());
    auto& uuids = backend->uuids_;
    if (std::find(uuids.begin(), uuids.end(), facts->uuid) != uuids.end()) continue;
    uuids.push_back(facts->uuid);
    if (ordinal == device.ordinal) continue;
    Result<Context> context = Context::retain(ordinal);
    if (!context) return tl::unexpected(context.error());
    backend->contexts_.push_back(std::move(*context));
  }
  Result<Context> first = Context::retain(device.ordinal);  // The last one that is retained is current.
  if (!first) return tl::unexpected(first.error());
  backend->contexts_.push_back(std::move(*first));
  return backend;
}

GroupBackend::~GroupBackend() { end_shape(); }

void GroupBackend::end_shape() {
  graphs_.clear();
  for (std::size_t rank = 0; case_ && rank < workspaces_.size(); ++rank) {
    const CurrentContext scope = case_->enter(static_cast<int>(rank));
    workspaces_[rank] = DeviceBuffer();
    events_[rank].clear();
  }
  case_.reset();
}

Result<double> GroupBackend::begin_shape(const Shape& shape) {
  end_shape();  // before the part's memory is taken
  Result<double> read_limit_us = part_->begin_shape(shape);
  if (!read_limit_us) return read_limit_us;

  const int ranks = problem_.features.context_parallel;
  std::vector<int> lengths = context_lengths_of(shape);
  for (int& length : lengths) {
    const std::int64_t whole = std::int64_t{length} * ranks;
    if (whole > std::numeric_limits<int>::max() / 2)
      return fail(ErrorCode::invalid_argument,
                  fmt::format("a context of {} tokens on each of {} ranks is too long", length, ranks),
                  "Give the tokens of one rank.");
    length = static_cast<int>(whole);
  }
  auto whole = DecodeCase::create(part_->oracle(), whole_problem(problem_), std::move(lengths), {.seed = kDataSeed},
                                  part_->stream().get());
  if (!whole) return tl::unexpected(whole.error());
  auto made = GroupCase::create(
      std::move(*whole), problem_.features, kWaitBoundMs, part_->stream().get(),
      {.devices = rank_devices_, .layout = problem_.layout, .even = true, .kv_copies = part_->rotation().copies});
  if (!made) return tl::unexpected(made.error());
  case_ = std::make_unique<GroupCase>(std::move(*made));
  workspaces_.resize(static_cast<std::size_t>(ranks));
  events_.resize(static_cast<std::size_t>(ranks));
  return read_limit_us;
}

Result<CheckOutcome> GroupBackend::check(const Config& config) {
  return part_->check_with(config, [&](const LoadedKernel& kernel) -> Result<ComparisonReport> {
    if (const std::int64_t most = case_->most_ctas(kernel); config.grid > most)
      return fail(ErrorCode::launch_failed,
                  fmt::format("{} CTAs, of which a rank's GPU holds {} at once", config.grid, most));
    return case_->check(kernel, config, 2);
  });
}

Result<void> GroupBackend::wait() {
  Result<void> all;
  for (int rank = 0; rank < case_->ranks(); ++rank) {
    const CurrentContext scope = case_->enter(rank);
    if (auto ended = case_->stream(rank).synchronize(); !ended && all) all = ended;
  }
  if (!all) return all;
  for (int rank = 0; rank < case_->ranks(); ++rank) {
    if (auto fault = case_->status(rank).check(); !fault && all)
      all = fail(ErrorCode::launch_failed, fmt::format("rank {}: {}", rank, fault.error().message));
  }
  if (all) return all;
  // What an aborted exchange has left behind must not meet the next candidate.
  for (int rank = 0; rank < case_->ranks(); ++rank) {
    const CurrentContext scope = case_->enter(rank);
    const DeviceBuffer& workspace = workspaces_[static_cast<std::size_t>(rank)];
    if (auto ok = fill_bytes_async(workspace.data(), 0, workspace.bytes(), case_->stream(rank).get()); !ok) return ok;
  }
  if (auto ok = case_->reset(); !ok) return ok;
  return all;
}

Result<void> GroupBackend::reserve_workspaces(std::span<const Config> configs) {
  std::int64_t bytes = 0;
  for (const Config& config : configs) bytes = std::max(bytes, case_->workspace(config.spec, config).total_bytes);
  if (bytes <= workspaces_.front().bytes()) return {};
  // Graphs hold addresses, so those that exist must go with the memory.
  graphs_.clear();
  for (int rank = 0; rank < case_->ranks(); ++rank) {
    const CurrentContext scope = case_->enter(rank);
    DeviceBuffer& workspace = workspaces_[static_cast<std::size_t>(rank)];
    if (auto ok = renew_workspace(workspace, bytes, case_->stream(rank).get()); !ok) return ok;
    if (auto ok = case_->stream(rank).synchronize(); !ok) return ok;
  }
  return {};
}

Result<const GroupBackend::RankGraphs*> GroupBackend::graphs_of(const Config& config) {
  const std::string key = to_json(config);
  if (const auto it = graphs_.find(key); it != graphs_.end()) return &it->second;
  const Result<const LoadedKernel*> kernel = part_->loaded(config.spec);
  if (!kernel) return tl::unexpected(kernel.error());
  if (auto ok = case_->prepare(**kernel); !ok) return tl::unexpected(ok.error());
  const Rotation& rotation = part_->rotation();
  RankGraphs graphs;
  for (int rank = 0; rank < case_->ranks(); ++rank) {
    const CurrentContext scope = case_->enter(rank);
    Result<Graph> graph = Graph::capture(case_->stream(rank), [&](CUstream_st*) -> Result<void> {
      for (int launch = 0; launch < rotation.launches; ++launch) {
        LeanDecodeArgs args = case_->args(rank, launch % rotation.copies);
        args.segment_cost = static_cast<unsigned>(config.segment_cost);
        args.group_checks = 0;
        bind_workspace(args, case_->workspace(config.spec, config), workspaces_[static_cast<std::size_t>(rank)].data());
        if (auto ok = case_->launch(rank, **kernel, config, args); !ok) return ok;
      }
      return {};
    });
    if (!graph) return tl::unexpected(graph.error());
    graphs.push_back(std::move(*graph));
  }
  // The first replay uploads a graph. No rank starts it before all have theirs, because making one may wait for a GPU
  // on which another rank's kernel already waits.
  for (int rank = 0; rank < case_->ranks(); ++rank) {
    const CurrentContext scope = case_->enter(rank);
    if (auto ok = graphs[static_cast<std::size_t>(rank)].launch(case_->stream(rank).get()); !ok)
      return tl::unexpected(ok.error());
  }
  if (auto ended = wait(); !ended) return tl::unexpected(ended.error());
  return &graphs_.emplace(key, std::move(graphs)).first->second;
}

Result<void> GroupBackend::replay(const RankGraphs& graphs, std::size_t event) {
  for (int rank = 0; rank < case_->ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const CurrentContext scope = case_->enter(rank);
    if (auto ok = graphs[r].launch(case_->stream(rank).get()); !ok) return ok;
    while (events_[r].size() <= event) {
      Result<Event> made = Event::create();
      if (!made) return tl::unexpected(made.error());
      events_[r].push_back(std::move(*made));
    }
    if (auto ok = events_[r][event].record(case_->stream(rank).get()); !ok) return ok;
  }
  return {};
}

void GroupBackend::note_states(RoundTimes& times) const {
  for (const std::string& uuid : uuids_) {
    const GpuState state = gpu_state(uuid);
    const std::string throttle = throttle_text(state.throttle_reasons);
    if (times.throttle.empty()) times.throttle = throttle;
    if (state.sm_clock_mhz > 0 && (times.sm_clock_mhz == 0 || state.sm_clock_mhz < times.sm_clock_mhz))
      times.sm_clock_mhz = state.sm_clock_mhz;
  }
}

Result<RoundTimes> GroupBackend::time(std::span<const Config> configs) {
  if (configs.empty()) return part_->time_graphs({});  // the sentinel alone
  if (auto reserved = reserve_workspaces(configs); !reserved) return tl::unexpected(reserved.error());
  if (graphs_.size() + configs.size() > kMostRankGraphs) graphs_.clear();
  std::vector<const RankGraphs*> graphs;
  for (const Config& config : configs) {
    const Result<const RankGraphs*> made = graphs_of(config);
    if (!made) return tl::unexpected(made.error());
    graphs.push_back(*made);
  }
  // The sentinel reads on the first GPU, before and after.
  Result<RoundTimes> before = part_->time_graphs({});
  if (!before) return before;
  // A replay that is not timed brings the ranks into step.
  if (auto ok = replay(*graphs.front(), 0); !ok) return tl::unexpected(ok.error());
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    if (auto ok = replay(*graphs[i], i + 1); !ok) return tl::unexpected(ok.error());
  }
  if (auto ended = wait(); !ended) return tl::unexpected(ended.error());
  Result<RoundTimes> after = part_->time_graphs({});
  if (!after) return after;

  RoundTimes times = std::move(*before);
  times.sentinel_drift = std::abs(after->sentinel_us / times.sentinel_us - 1);
  times.sentinel_us = (times.sentinel_us + after->sentinel_us) / 2;
  if (times.throttle.empty()) times.throttle = after->throttle;
  note_states(times);
  times.us.assign(graphs.size(), 0);
  for (int rank = 0; rank < case_->ranks(); ++rank) {
    const CurrentContext scope = case_->enter(rank);
    const auto& events = events_[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      const Result<double> elapsed = elapsed_us(events[i], events[i + 1]);
      if (!elapsed) return tl::unexpected(elapsed.error());
      times.us[i] = std::max(times.us[i], *elapsed / part_->rotation().launches);
    }
  }
  return times;
}

}  // namespace v1
}  // namespace leanattn
