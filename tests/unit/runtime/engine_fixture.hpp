// engine_fixture.hpp -- parts of an engine on a fictional GPU, with winners and kernels of the test. Needs neither
// driver nor NVRTC.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "generator/kernel_layout.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {

inline const DecodeProblem kLlama{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
inline const Shape kMeasured{.batch = 4, .longest_context = 8192};
inline CUstream_st* const kStream = reinterpret_cast<CUstream_st*>(0x1000);

inline DeviceFacts fictional_gpu(Arch arch = {9, 0, true}, int sm_count = 132) {
  DeviceFacts device = facts_for_arch(arch, sm_count).value();
  device.name = "Fictional 1";
  return device;
}

/// The row of a winner, as a database returns it.
inline LayeredWinners::Entry winner(const DecodeProblem& problem, const Shape& shape, const Config& config,
                                    double median_us = 10, const std::string& policy = "cold",
                                    const std::string& layer = "user") {
  Winner row;
  row.problem = to_json(problem);
  row.shape = to_json(shape);
  row.policy = policy;
  row.config = to_json(config);
  row.median_us = median_us;
  return {row, layer};
}

/// A configuration that differs from the default and fits every head_dim and group.
inline Config tuned_config(const DecodeProblem& problem, std::int64_t grid, Arch arch = {9, 0, true}) {
  KernelSpec spec = base_spec(arch, problem);
  spec.load = LoadPath::bulk;
  spec.warps = 2;
  spec.stages = 2;
  spec.tile = 32;
  spec.ctas_per_sm = 1;
  return {spec, grid};
}

inline LayeredWinners layered(std::vector<LayeredWinners::Entry> entries) {
  LayeredWinners winners;
  winners.entries = std::move(entries);
  return winners;
}

inline WinnerTable table_of(std::vector<LayeredWinners::Entry> entries) {
  return WinnerTable::build(fictional_gpu(), layered(std::move(entries)));
}

inline PreparedKernel pretended(const KernelSpec& spec, int sm_count = 132) {
  PreparedKernel kernel;
  kernel.threads = spec.warps * 32;
  kernel.shared_bytes = layout_of(spec).shared_bytes;
  kernel.registers = 128;
  kernel.resident_ctas_per_sm = spec.ctas_per_sm;
  kernel.resident_ctas = std::int64_t{sm_count} * spec.ctas_per_sm;
  return kernel;
}

/// Parts without winners, which prepare every kernel.
inline EngineParts fictional_parts(LayeredWinners winners = {}) {
  EngineParts parts;
  parts.device = fictional_gpu();
  parts.open_winners = [winners] { return by_problem(winners); };
  parts.prepare = [](const KernelSpec& spec) -> Result<PreparedKernel> { return pretended(spec); };
  parts.is_capturing = [](CUstream_st*) -> Result<bool> { return false; };
  return parts;
}

}  // namespace leanattn
