// graph_themes.cpp -- the themes whose launches are captured into CUDA graphs.
#include <algorithm>
#include <cstring>
#include <random>

#include "tuner/verify/themes.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kBatch = 4;
constexpr int kCapacity = 1200;
constexpr int kLengthSets = 20;
constexpr int kReplays = 1000;
constexpr int kReplaysInFlight = 50;  // enqueued before the host compares results

/// Sets of lengths for one batch. Some requests are empty, and some reach the capacity.
std::vector<std::vector<int>> length_sets(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int>> sets(kLengthSets, std::vector<int>(kBatch));
  for (auto& set : sets) {
    for (int& length : set) {
      const auto draw = random() % 8;
      length = draw == 0 ? 0 : draw == 1 ? kCapacity : static_cast<int>(random() % kCapacity);
    }
  }
  return sets;
}

/// What one set of lengths must give: the oracle's answer, and the bits of the first replay that passed.
struct Expected {
  Reference reference;
  std::vector<std::uint8_t> bits;
};

/// Records that a launch could not be captured. Only a lost context ends the run.
Result<void> stream_capture_failed(VerifyGroup& group, const LoadedKernel& kernel, const Error& error) {
  if (error.code == ErrorCode::context_lost) return tl::unexpected(error);
  ++group.cases;
  VerifyRunner::record_failure(group, kernel_name(kernel.spec()) + ": the stream capture failed: " + error.message);
  return {};
}

/// Replays a graph whose launches write the case's outputs, and compares the outputs of every replay with the oracle.
Result<void> replay_and_compare(VerifyRunner& runner, VerifyGroup& group, DecodeCase& decode_case,
                                const LoadedKernel& kernel, LaunchGrid grid, const Graph& graph, int rounds) {
  CUstream_st* stream = runner.stream();
  const auto reference = decode_case.reference(stream);
  if (!reference) return tl::unexpected(reference.error());
  auto outputs = PinnedBuffer::allocate(decode_case.o_bytes() + decode_case.lse_bytes());
  if (!outputs) return tl::unexpected(outputs.error());
  auto* out = outputs->as<std::uint8_t>();
  for (int round = 0; round < rounds && !runner.cancelled(); ++round) {
    auto ok = decode_case.reset_outputs(stream);
    if (ok) ok = graph.launch(stream);
    if (ok) ok = copy_to_host_async(out, decode_case.o_buffer().data(), decode_case.o_bytes(), stream);
    if (ok)
      ok = copy_to_host_async(out + decode_case.o_bytes(), decode_case.lse_buffer().data(), decode_case.lse_bytes(),
                              stream);
    if (ok) ok = runner.stream_object().synchronize();
    if (!ok) return ok;
    runner.record(group, decode_case.compare_raw(**reference, out, out + decode_case.o_bytes(), kernel.spec().lse),
                  decode_case, decode_case.context_lengths(), kernel, grid);
  }
  return {};
}

}  // namespace

Result<void> verify_graph_replays(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  CUstream_st* stream = runner.stream();
  const LaunchGrid grid = runner.usable_grid(kernel, 132);
  const auto sets = length_sets(runner.options().seed);
  auto decode_case = runner.make_case(kernel.spec(), {.kv_heads = 2,
                                                      .context_lengths = sets[0],
                                                      .context_capacity = kCapacity,
                                                      .padded = false,
                                                      .data = DataKind::uniform});
  if (!decode_case) return tl::unexpected(decode_case.error());

  std::vector<Expected> expected;
  auto lengths = PinnedBuffer::allocate(std::int64_t{kLengthSets} * kBatch * 4);
  if (!lengths) return tl::unexpected(lengths.error());
  for (std::size_t set = 0; set < sets.size(); ++set) {
    if (auto ok = decode_case->set_context_lengths(sets[set], stream); !ok) return ok;
    const auto reference = decode_case->reference(stream);
    if (!reference) return tl::unexpected(reference.error());
    expected.push_back({**reference, {}});
    std::copy(sets[set].begin(), sets[set].end(), lengths->as<int>() + set * kBatch);
  }

  const auto args = decode_case->bind(kernel.spec(), grid, runner.workspace(), stream);
  if (!args) return tl::unexpected(args.error());
  const auto graph = Graph::capture(runner.stream_object(), [&](CUstream_st* capturing) {
    return kernel.launch(*args, grid.ctas, capturing, grid.l2_promotion);
  });
  if (!graph) return stream_capture_failed(group, kernel, graph.error());

  const std::int64_t output_bytes = decode_case->o_bytes() + decode_case->lse_bytes();
  auto outputs = PinnedBuffer::allocate(kReplaysInFlight * output_bytes);
  if (!outputs) return tl::unexpected(outputs.error());
  std::mt19937_64 random(runner.options().seed + 1);
  const int replays = runner.options().quick ? kReplays / 10 : kReplays;
  for (int first = 0; first < replays && !runner.cancelled(); first += kReplaysInFlight) {
    std::vector<std::size_t> used;
    for (int i = 0; i < kReplaysInFlight; ++i) {
      const std::size_t set = random() % sets.size();
      used.push_back(set);
      auto* out = outputs->as<std::uint8_t>() + i * output_bytes;
      // The new lengths arrive in stream order, outside the graph. K, V and the NaN behind them are written anew.
      auto ok = copy_to_device_async(decode_case->lengths_on_device(), lengths->as<int>() + set * kBatch,
                                     std::int64_t{kBatch} * 4, stream);
      if (ok) ok = decode_case->plant_kv(stream);
      if (ok) ok = decode_case->reset_outputs(stream);
      if (ok) ok = graph->launch(stream);
      if (ok) ok = copy_to_host_async(out, decode_case->o_buffer().data(), decode_case->o_bytes(), stream);
      if (ok)
        ok = copy_to_host_async(out + decode_case->o_bytes(), decode_case->lse_buffer().data(),
                                decode_case->lse_bytes(), stream);
      if (!ok) return ok;
    }
    if (auto ok = runner.stream_object().synchronize(); !ok) return ok;
    for (std::size_t i = 0; i < used.size(); ++i) {
      Expected& want = expected[used[i]];
      const auto* out = outputs->as<std::uint8_t>() + static_cast<std::int64_t>(i) * output_bytes;
      const auto bytes = static_cast<std::size_t>(output_bytes);
      if (want.bits.size() == bytes && std::memcmp(want.bits.data(), out, bytes) == 0) {
        ++group.cases;
        continue;
      }
      ComparisonReport report =
          decode_case->compare_raw(want.reference, out, out + decode_case->o_bytes(), kernel.spec().lse);
      if (want.bits.empty()) {
        if (report.passed()) want.bits.assign(out, out + output_bytes);
      } else {
        for (std::size_t byte = 0; byte < bytes; ++byte) report.unequal_repeats += want.bits[byte] != out[byte];
        if (report.first_failure.empty()) report.first_failure = "replays with the same lengths gave different bits";
      }
      runner.record(group, report, *decode_case, sets[used[i]], kernel, grid);
    }
  }
  // One ordinary check shows that the replays left outputs, guard and tickets as they must be.
  if (auto ok = decode_case->set_context_lengths(sets[1], stream); !ok) return ok;
  return runner.check(group, *decode_case, kernel, grid);
}

Result<void> verify_back_to_back(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  constexpr int kLaunches = 8;
  constexpr int kRounds = 25;
  CUstream_st* stream = runner.stream();
  const LaunchGrid grid = runner.usable_grid(kernel, 132);
  const auto cached = runner.cached_case(kernel.spec(), {.kv_heads = 2,
                                                         .context_lengths = {1800, 3, 0, 640},
                                                         .context_capacity = 0,
                                                         .padded = true,
                                                         .data = DataKind::uniform});
  if (!cached) return tl::unexpected(cached.error());
  DecodeCase& decode_case = **cached;
  const auto args = decode_case.bind(kernel.spec(), grid, runner.workspace(), stream);
  if (!args) return tl::unexpected(args.error());
  // With programmatic dependent launch each one starts while its predecessor still merges on the same workspace.
  const auto graph = Graph::capture(runner.stream_object(), [&](CUstream_st* capturing) -> Result<void> {
    for (int i = 0; i < kLaunches; ++i) {
      if (auto ok = kernel.launch(*args, grid.ctas, capturing, grid.l2_promotion); !ok) return ok;
    }
    return {};
  });
  if (!graph) return stream_capture_failed(group, kernel, graph.error());
  if (auto ok = replay_and_compare(runner, group, decode_case, kernel, grid, *graph, kRounds); !ok) return ok;
  return runner.check(group, decode_case, kernel, grid);
}

Result<void> verify_dependent_chain(VerifyRunner& runner, VerifyGroup& group, const LoadedKernel& kernel) {
  constexpr int kLinks = 3;
  constexpr int kRounds = 10;
  if (!kernel.spec().pdl) return {};
  CUstream_st* stream = runner.stream();
  // The last tokens lie at the beginning, in the middle and at the end of a LeanTile, or alone in one. One request is
  // empty. Padded rows are aligned to 16 bytes only, so that a sector of L2 has parts of two tokens.
  const auto cached = runner.cached_case(kernel.spec(), {.kv_heads = 2,
                                                         .context_lengths = {1800, 3, 0, 641, 1, 64, 65, 2048},
                                                         .context_capacity = 0,
                                                         .padded = true,
                                                         .data = DataKind::uniform});
  if (!cached) return tl::unexpected(cached.error());
  DecodeCase& decode_case = **cached;
  const auto chain = runner.chain();
  if (!chain) return tl::unexpected(chain.error());
  if (auto ok = (*chain)->take(decode_case, stream); !ok) return ok;
  const auto produce = [&](CUstream_st* to) { return (*chain)->produce(to); };
  for (const std::int64_t wanted : {std::int64_t{7}, std::int64_t{132}, std::int64_t{400}}) {
    if (runner.cancelled()) return {};
    const LaunchGrid grid = runner.usable_grid(kernel, wanted);
    if (auto ok = runner.check(group, decode_case, kernel, grid, 4, [&] { return produce(stream); }); !ok) return ok;
    // Two launches follow each other. The first one lets the second start before it has itself waited, so that the
    // second may begin while the rows are still NaN.
    const auto args = decode_case.bind(kernel.spec(), grid, runner.workspace(), stream);
    if (!args) return tl::unexpected(args.error());
    const auto graph = Graph::capture(runner.stream_object(), [&](CUstream_st* capturing) -> Result<void> {
      for (int link = 0; link < kLinks; ++link) {
        if (auto ok = produce(capturing); !ok) return ok;
        for (int i = 0; i < 2; ++i) {
          if (auto ok = kernel.launch(*args, grid.ctas, capturing, grid.l2_promotion); !ok) return ok;
        }
      }
      return {};
    });
    if (!graph) return stream_capture_failed(group, kernel, graph.error());
    if (auto ok = replay_and_compare(runner, group, decode_case, kernel, grid, *graph, kRounds); !ok) return ok;
    if (auto ok = runner.check(group, decode_case, kernel, grid); !ok) return ok;
  }
  return {};
}

}  // namespace v1
}  // namespace leanattn
