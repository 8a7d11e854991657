// shape_flags.hpp -- ShapeFlags: model or heads, dtype, layout, features, batches and context lengths, and the Workload
// that they describe. Main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/console/console.hpp"
#include "cli/flags/feature_flags.hpp"
#include "cli/models/model_shapes.hpp"
#include "runtime/problem.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace leanattn {
inline namespace v1 {

/// The text of every flag as typed. It is empty for flags that were not given.
struct ShapeFlags {
  std::string model, model_config, layers;
  std::string heads, kv_heads, head_dim;
  std::string dtype, layout;
  bool lse = false;
  bool pdl = false;
  FeatureFlags features;
  std::string batch, max_batch, context;
};

/// A problem and its shapes: every batch with every context, all contexts of a batch one after the other.
struct Workload {
  std::string model;  ///< as named on the command line; empty: only numbers of heads were given
  DecodeProblem problem;
  std::vector<Shape> shapes;
  std::string layers =
      {};  ///< which layers of the model these are, such as "25 of 30 layers"; empty: all, or not known
  std::vector<std::string> notes = {};  ///< what the flags leave open and how it was decided, for the user to read
};

/// Registers the flags. `flags` must live until the program has been parsed and run. `batch_default` and
/// `context_default` are what --batch and --context mean when they are not given.
void add_shape_flags(CLI::App& command, ShapeFlags& flags, const std::string& batch_default,
                     const std::string& context_default);

/// The options of a command that add_shape_flags() has registered.
std::vector<CLI::Option*> shape_options(CLI::App& command);

/// What the flags describe: a model, and a workload for each of its attention shapes that --layers does not leave out.
struct ModelWorkloads {
  std::optional<ModelShapes> model;  ///< nullopt: only numbers of heads were given
  std::vector<Workload> workloads;   ///< at least one; their problems differ
  std::vector<std::string> notes;    ///< as those of a workload, about all of them
};

/// The workloads that the flags describe. A shape for which there is no kernel is left out, with a note. Errors:
/// invalid_argument and unsupported, naming the flag and its value, or a field of the model's config.json.
Result<ModelWorkloads> resolve_all(const ShapeFlags& flags, const std::string& batch_default,
                                   const std::string& context_default);
/// The same for a command, which writes the notes to stderr.
Result<ModelWorkloads> resolve_all(const Console& console, const ShapeFlags& flags, const std::string& batch_default,
                                   const std::string& context_default);

/// For commands that are about one problem: the first of these workloads, and a note that tells of the others. Errors:
/// those of resolve_all().
Result<Workload> resolve(const ShapeFlags& flags, const std::string& batch_default, const std::string& context_default);
/// The same for a command, which writes the notes to stderr.
Result<Workload> resolve(const Console& console, const ShapeFlags& flags, const std::string& batch_default,
                         const std::string& context_default);

/// A problem as headings name it: "32/8 heads x 128, bf16, p16, win4096".
std::string describe(const DecodeProblem& problem);
/// A shape as messages name it: "batch 1, context 64k", "batch 4, context up to 64k, 70000 tokens in all", "64 x 1 of
/// 4k + 2048 of 8k".
std::string describe(const Shape& shape);
/// The contexts of a shape as tables have them beside its batch: "64k", of a mixed step as above.
std::string contexts_name(const Shape& shape);

}  // namespace v1
}  // namespace leanattn
