#include "tuner/backend/recurrent_backend.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tuner/measure/graph_timer.hpp"
#include "tuner/measure/statistics.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kStatesOverL2 = 4;
constexpr double kRoomShare = 0.8;   // of the free memory that states may take
constexpr double kBytesPerUs = 3e6;  // a guess, by which graphs are made long enough
constexpr int kCopyRounds = 5;       // by which the fastest way to copy is chosen

}  // namespace

Result<std::unique_ptr<RecurrentBackend>> RecurrentBackend::create(const DeviceFacts& device,
                                                                   const RecurrentProblem& problem, L2Policy policy,
                                                                   CubinCache* cubins) {
  if (auto ok = validate(problem); !ok) return tl::unexpected(ok.error());
  auto context = Context::retain(device.ordinal);
  if (!context) return tl::unexpected(context.error());
  auto stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  auto copies = CopyLimit::load(device, cubins);
  if (!copies) return tl::unexpected(copies.error());
  // Every other slot is null. Spans of a ring are drawn, and some requests have entries to replay.
  const int requests = problem.ring > 0 ? 6 : 2;
  auto checks = RecurrentCase::create(problem, {.batch = requests, .padded = true, .null_slots = true}, *stream);
  if (!checks) return tl::unexpected(checks.error());
  return std::unique_ptr<RecurrentBackend>(new RecurrentBackend(device, problem, policy, cubins, *std::move(context),
                                                                *std::move(stream), *std::move(copies),
                                                                *std::move(checks)));
}

Result<RecurrentKernel> RecurrentBackend::prepare(const RecurrentTunables& tunables) const {
  return RecurrentKernel::prepare({.arch = device_.arch, .problem = problem_, .tunables = tunables}, cubins_);
}

Result<std::string> RecurrentBackend::check(const RecurrentKernel& kernel) const {
  auto outcome = checks_.check(kernel, stream_);
  if (!outcome) return tl::unexpected(outcome.error());
  return std::move(outcome->first_failure);
}

Result<void> RecurrentBackend::begin_batch(int batch) {
  // The old states go first, because two of them may not fit into the memory.
  memory_.reset();
  const auto free = device_memory();
  if (!free) return tl::unexpected(free.error());
  batch_ = batch;
  const std::int64_t held = batch * (state_bytes(problem_) * (problem_.snapshots ? problem_.tokens : 1) +
                                     ring_entry_bytes(problem_) * problem_.ring);
  rotation_ = rotation_for(
      held, device_.l2_bytes, static_cast<std::int64_t>(static_cast<double>(free->free_bytes) * kRoomShare),
      2 + static_cast<double>(state_traffic(problem_, batch)) / kBytesPerUs, policy_ == L2Policy::cold, kStatesOverL2);
  auto memory = RecurrentMemory::make(problem_, batch, rotation_.copies, stream_);
  if (!memory) return tl::unexpected(memory.error());
  memory_ = std::make_unique<RecurrentMemory>(*std::move(memory));
  return {};
}

Result<TimedGraph> RecurrentBackend::graph(const RecurrentKernel& kernel) const {
  return TimedGraph::make(rotation_.launches, stream_, [&](int launch, CUstream_st* capturing) {
    return kernel.launch(memory_->args(launch % rotation_.copies), batch_, capturing);
  });
}

Result<CopyGraph> RecurrentBackend::fastest_copy(int writes) const {
  std::vector<CopyGraph> ways;
  std::vector<const TimedGraph*> graphs;
  for (const CopyVariant& variant : CopyLimit::variants()) {
    auto graph = TimedGraph::make(rotation_.launches, stream_, [&](int launch, CUstream_st* capturing) {
      return copies_.launch(variant, memory_->states(launch % rotation_.copies), memory_->state_bytes_of_launch(),
                            writes, capturing);
    });
    if (!graph) return tl::unexpected(graph.error());
    ways.push_back({variant, *std::move(graph)});
  }
  graphs.reserve(ways.size());
  for (const CopyGraph& way : ways) graphs.push_back(&way.graph);
  GraphTimer timer;
  std::vector<std::vector<double>> samples(ways.size());
  for (int round = 0; round < kCopyRounds; ++round) {
    const auto us = timer.time(*graphs.back(), graphs, stream_);
    if (!us) return tl::unexpected(us.error());
    for (std::size_t i = 0; i < ways.size(); ++i) samples[i].push_back((*us)[i]);
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < ways.size(); ++i) {
    if (median(samples[i]) < median(samples[best])) best = i;
  }
  return std::move(ways[best]);
}

}  // namespace v1
}  // namespace leanattn
