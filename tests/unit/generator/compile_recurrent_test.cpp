// Kernels of operation `recurrent` compile without spills or warnings on every arch: every kind with every form of its
// gates, and the tunables that need most registers.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "generator/recurrent/recurrent_spec.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "tests/thoroughness.hpp"
#include "tests/unit/generator/on_all_cores.hpp"

namespace leanattn {
namespace {

std::vector<RecurrentSpec> recurrent_matrix(Arch arch) {
  std::vector<RecurrentSpec> specs;
  const DeviceFacts device = facts_for_arch(arch, 132).value();
  for (const RecurrentUpdate& update : recurrent_updates()) {
    for (const Gates gates : update.gates) {
      RecurrentProblem problem = usual_problem(update.kind);
      problem.gates = gates;
      for (const int tokens : {1, 4}) {
        problem.tokens = tokens, problem.snapshots = problem.ragged = tokens > 1, problem.ring = 0;
        problem.state = tokens > 1 ? StateType::bf16 : StateType::fp32;
        problem.output_gate = tokens > 1 ? OutputGate::silu : OutputGate::none;
        problem.conv_width = update.gates.front() == gates ? 4 : 0;
        if (tokens > 1 && update.skip) problem.output_gate = OutputGate::silu_first;
        problem.norm_heads = tokens > 1 && update.skip && arch.major >= 9 ? 4 : 1;
        problem.keys_first = update.decay == Decay::channel;
        for (const int batch : {1, 128}) specs.push_back(default_spec(device, problem, batch));
        // The last of the search space with the fewest lanes has the most registers.
        const auto rows = [](const RecurrentTunables& of) { return of.warp_rows - 64 * of.row_lanes; };
        const auto largest = [&](const RecurrentProblem& of) {
          const std::vector<RecurrentTunables> space = recurrent_search_space(arch, of);
          return RecurrentSpec{arch, of,
                               *std::max_element(space.begin(), space.end(),
                                                 [&](const auto& a, const auto& b) { return rows(a) < rows(b); })};
        };
        specs.push_back(largest(problem));
        if (update.erasure == Erasure::vectors) continue;
        problem.snapshots = false, problem.ring = tokens > 1 ? kMostRingEntries : 9;
        problem.conv_width = tokens > 1 ? 0 : problem.conv_width;
        specs.push_back(default_spec(device, problem, 128));
        specs.push_back(largest(problem));
      }
    }
  }
  return specs;
}

TEST(CompileMatrix, RecurrentKernelsCompileWithoutSpills) {
  std::vector<RecurrentSpec> specs;
  for (const Arch arch : {Arch{8, 0, false}, Arch{9, 0, true}, Arch{10, 0, true}, Arch{12, 0, true}}) {
    const std::vector<RecurrentSpec> of_arch = recurrent_matrix(arch);
    for (std::size_t i = 0; i < of_arch.size(); ++i) {
      if (arch.major == 9 || in_turn(i % 6, 6)) specs.push_back(of_arch[i]);
    }
  }
  expect_no_failure(specs.size(), [&](std::size_t i) -> std::string {
    const auto kernel = emit(specs[i]);
    if (!kernel) return kernel.error().message;
    const auto compiled = compile_kernel(kernel->source, kernel->entry, specs[i].arch, nullptr);
    if (!compiled) return kernel->entry + ": " + compiled.error().message + "\n" + compiled.error().log;
    if (compiled->resources.spill_store_bytes > 0) return kernel->entry + " spills\n" + compiled->log;
    return compiled->log.find("warning") == std::string::npos ? "" : kernel->entry + " has warnings\n" + compiled->log;
  });
}

}  // namespace
}  // namespace leanattn
