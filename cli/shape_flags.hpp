// shape_flags.hpp -- the flags that say what to run: model or heads, dtype, layout, features, batches, context lengths.
// Main thread.
#pragma once

#include <string>
#include <vector>

#include "cli/feature_flags.hpp"
#include "runtime/problem.hpp"

namespace CLI {
class App;
}

namespace leanattn {
inline namespace v1 {

/// The text of every shape flag as typed; empty where it was not given.
struct ShapeFlags {
  std::string model, model_config;
  std::string heads, kv_heads, head_dim;
  std::string dtype, layout;
  bool lse = false;
  bool pdl = false;
  FeatureFlags features;
  std::string batch, max_batch, context;
};

/// A problem and the shapes to run it at: every batch with every context, batch-major.
struct Workload {
  std::string model;  ///< as named on the command line; empty for plain heads
  DecodeProblem problem;
  std::vector<Shape> shapes;
};

/// Registers the flags. `flags` must live until the program has been parsed and run. `batch_default` and
/// `context_default` are what --batch and --context mean when they are not given.
void add_shape_flags(CLI::App& command, ShapeFlags& flags, const std::string& batch_default,
                     const std::string& context_default);

/// Errors: invalid_argument and unsupported, naming the flag and its value.
Result<Workload> resolve(const ShapeFlags& flags, const std::string& batch_default, const std::string& context_default);

/// "32/8 heads x 128, bf16, p16, win4096": for headings.
std::string describe(const DecodeProblem& problem);
/// "batch 1, context 64k".
std::string describe(const Shape& shape);

}  // namespace v1
}  // namespace leanattn
