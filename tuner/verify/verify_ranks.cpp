// verify_ranks.cpp -- checks kernels of groups with ranks on this GPU and those like it, each on a stream of its own.
#include <algorithm>

#include "tuner/oracle/group_case.hpp"
#include "tuner/verify/rank_plan.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kRankBoundMs = 5000;

/// Launches of one graph a rank, while lengths change in between.
Result<ComparisonReport> replay(GroupCase& ranks, const LoadedKernel& kernel, LaunchGrid grid,
                                const std::vector<std::vector<int>>& lengths) {
  std::vector<Graph> graphs;
  for (int rank = 0; rank < ranks.ranks(); ++rank) {
    const auto bound = ranks.bind(rank, kernel.spec(), grid);
    if (!bound) return tl::unexpected(bound.error());
    const CurrentContext scope = ranks.enter(rank);
    auto graph =
        Graph::capture(ranks.stream(rank), [&](CUstream_st*) { return ranks.launch(rank, kernel, grid, *bound); });
    if (!graph) return tl::unexpected(graph.error());
    graphs.push_back(*std::move(graph));
  }
  ComparisonReport report;
  for (std::size_t round = 0; round < 4; ++round) {
    if (auto ok = ranks.set_context_lengths(lengths[(round + 1) % lengths.size()]); !ok)
      return tl::unexpected(ok.error());
    if (auto ok = ranks.reset_outputs(); !ok) return tl::unexpected(ok.error());
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (int rank = 0; rank < ranks.ranks(); ++rank)
        if (auto ok = graphs[static_cast<std::size_t>(rank)].launch(ranks.stream(rank).get()); !ok)
          return tl::unexpected(ok.error());
    }
    for (int rank = 0; rank < ranks.ranks(); ++rank) {
      if (auto ok = ranks.stream(rank).synchronize(); !ok) return tl::unexpected(ok.error());
    }
    auto one = ranks.compare(kernel.spec());
    if (!one) return one;
    merge(report, *one);
    if (!report.passed()) break;
  }
  if (!report.passed()) {
    if (auto ok = ranks.reset(); !ok) return tl::unexpected(ok.error());
  }
  return report;
}

}  // namespace

Result<void> verify_ranks(VerifyRunner& runner, std::span<const VerifyKernel> kernels, CompileQueue& queue,
                          const std::function<std::vector<std::vector<int>>(const KernelSpec&)>& lengths_of) {
  VerifyGroup group;
  for (std::size_t i = 0; i < kernels.size() && !runner.cancelled(); ++i) {
    const auto choice = queue.next();
    if (!choice) break;
    if (group.name != choice->kernel->group) {
      if (!group.name.empty()) runner.finish(std::move(group));
      group = {};
      group.name = choice->kernel->group;
    }
    const auto kernel = runner.load(group, *choice);
    if (!kernel) return tl::unexpected(kernel.error());
    if (*kernel == nullptr) continue;
    const KernelSpec& spec = (*kernel)->spec();
    const auto run = [&]() -> Result<void> {
      const auto lengths = lengths_of(spec);
      auto whole = runner.make_case(
          whole_spec(spec),
          {.kv_heads = rank_kv_heads(spec), .context_lengths = lengths.front(), .context_capacity = kRankCapacity});
      if (!whole) return tl::unexpected(whole.error());
      auto ranks = GroupCase::create(std::move(*whole), group_of(spec.features), kRankBoundMs, runner.stream(),
                                     {.layout = spec.layout, .merged_here = !in_group(spec.features)});
      if (!ranks) return tl::unexpected(ranks.error());
      const std::int64_t most = ranks->most_ctas(**kernel);
      for (const std::int64_t ctas : {std::int64_t{7}, most}) {
        const LaunchGrid grid(std::clamp<std::int64_t>(ctas, 1, most), static_cast<int>(ctas % 3));
        const auto report = ranks->check(**kernel, grid, 3);
        if (!report) return tl::unexpected(report.error());
        runner.record(group, *report, ranks->whole(), ranks->whole().context_lengths(), **kernel, grid);
      }
      const LaunchGrid grid(most, 1);
      const auto report = replay(*ranks, **kernel, grid, lengths);
      if (!report) return tl::unexpected(report.error());
      runner.record(group, *report, ranks->whole(), ranks->whole().context_lengths(), **kernel, grid);
      return {};
    };
    if (auto ok = run(); !ok) {
      if (ok.error().code == ErrorCode::context_lost || ok.error().code == ErrorCode::out_of_memory) return ok;
      ++group.cases;
      VerifyRunner::record_failure(group, kernel_name(spec) + ": " + ok.error().message);
    }
  }
  if (!group.name.empty()) runner.finish(std::move(group));
  return {};
}

}  // namespace v1
}  // namespace leanattn
