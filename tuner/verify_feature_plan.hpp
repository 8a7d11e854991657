// verify_feature_plan.hpp -- the kernels and shapes with which `verify` checks features: each of them alone, and random
// combinations of all. Pure functions of architecture and seed; any thread; no GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tuner/oracle.hpp"
#include "tuner/verify_plan.hpp"

namespace leanattn {
inline namespace v1 {

/// A score expression as kernels compile it, and what it means.
struct VerifyScore {
  std::string text;
  ScoreFunction function;
};
const std::vector<VerifyScore>& verify_scores();
/// What one of their texts means; empty for any other.
ScoreFunction score_function(const std::string& text);

/// A feature to check: a few settings of it that differ in what a kernel must do.
struct VerifyFeature {
  std::string name;
  struct Setting {
    Features features;
    int head_dim = 0;  ///< 0: any
  };
  std::vector<Setting> settings;
};
const std::vector<VerifyFeature>& verify_features();

/// Every setting of every feature on every load path that knows it, heads, dtype and tunables taken in rotation; groups
/// are called "feature: " and its name. quick: each setting on one load path.
std::vector<VerifyKernel> feature_kernels(Arch arch, bool quick);
/// What they run on.
std::vector<PlannedCase> feature_cases(const KernelSpec& spec);

/// `count` different kernels with random heads, features, load paths and tunables, as validate() accepts them: in one
/// group. The same for the same seed and arch.
std::vector<VerifyKernel> random_kernels(Arch arch, std::uint64_t seed, std::size_t count);
/// Random shapes for such a kernel: the same for the same seed, arch and kernel name, whatever else runs.
std::vector<PlannedCase> random_cases(const KernelSpec& spec, std::uint64_t seed);

inline constexpr std::size_t kRandomCasesPerKernel = 8;

}  // namespace v1
}  // namespace leanattn
