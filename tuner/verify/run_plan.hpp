// run_plan.hpp -- RunPlan: everything that one run of `verify` checks, in order. A pure function of architecture and
// options; any thread; no GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tuner/verify/covering.hpp"
#include "tuner/verify/planned_run.hpp"
#include "tuner/verify/verify.hpp"

namespace leanattn {
inline namespace v1 {

/// Kernels of a plan that follow each other and are checked in one way.
struct RunPart {
  std::size_t begin = 0, end = 0;  ///< in RunPlan::kernels
  PlannedRun run = {};             ///< on one GPU
  /// Of kernels of groups, instead: the lengths of their contexts.
  std::function<std::vector<std::vector<int>>(const KernelSpec&)> rank_lengths = {};

  std::span<const VerifyKernel> of(const std::vector<VerifyKernel>& kernels) const {
    return std::span(kernels).subspan(begin, end - begin);
  }
};

struct RunPlan {
  std::vector<VerifyKernel> kernels;  ///< in one list, so that one queue compiles them in order
  std::size_t representatives = 0;    ///< how many of them, the first, the themes run on
  std::vector<RunPart> parts;         ///< of those behind them
  std::optional<Coverage> coverage;   ///< of these, if quick: how much of the plan without that they are
};

/// The kernels that `options` ask for. If quick, those of a cross-section.
RunPlan plan_run(Arch arch, const VerifyOptions& options);

}  // namespace v1
}  // namespace leanattn
