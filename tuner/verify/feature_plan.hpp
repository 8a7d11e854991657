// feature_plan.hpp -- the kernels and shapes with which `verify` checks one feature after the other. Pure functions of
// the architecture; any thread; no GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tuner/oracle/oracle.hpp"
#include "tuner/verify/plan.hpp"

namespace leanattn {
inline namespace v1 {

/// A score expression: the text that kernels compile, and the same as a function.
struct VerifyScore {
  std::string text;
  ScoreFunction function;
};
const std::vector<VerifyScore>& verify_scores();
/// The function of one of these texts; empty for any other text.
ScoreFunction score_function(const std::string& text);

/// A feature, and settings of it that make a kernel do different things.
struct VerifyFeature {
  std::string name;
  struct Setting {
    Features features;
    int head_dim = 0;  ///< that the setting needs; 0: any
  };
  std::vector<Setting> settings;
};
const std::vector<VerifyFeature>& verify_features();

/// A kernel for every setting of every feature on every load path that has it. Heads, dtype and tunables are taken in
/// rotation. The groups are named "feature: " and the feature's name.
std::vector<VerifyKernel> feature_kernels(Arch arch);
/// The shapes on which such a kernel runs.
std::vector<PlannedCase> feature_cases(const KernelSpec& spec);

}  // namespace v1
}  // namespace leanattn
