// recurrent_flags.hpp -- RecurrentFlags: the problem that a command of `leanattn recurrent` is about. Main thread.
#pragma once

#include <string>
#include <vector>

#include "generator/recurrent/recurrent_problem.hpp"

namespace CLI {
class App;
}

namespace leanattn {
inline namespace v1 {

/// What was given, as text. Empty: what the model has, or without a model the default.
struct RecurrentFlags {
  std::string model, model_config, tensor_parallel = "1";
  std::string kind = "gated_delta", gates, dtype, output_gate, qk_heads = "16", v_heads = "32", key_dim = "128",
              value_dim = "128";
  std::string state = "fp32", tokens = "1", batch, conv_width, ring, norm_heads;
  bool ragged = false, snapshots = false, keys_first = false;
};

/// Registers them. The help names `batches` as the default of --batch. `flags` must live until the program has run.
void add_recurrent_flags(CLI::App& command, RecurrentFlags& flags, const std::string& batches);

/// What is asked for, on any GPU. Errors: invalid_argument, unsupported.
Result<RecurrentProblem> problem_of(const RecurrentFlags& flags);

/// What kernels of a GPU have of a problem.
struct ServedProblem {
  RecurrentProblem problem;
  std::string left;  ///< a sentence: what of a model's output is the engine's; empty: nothing
};
/// All that flags say of the output is served, or refused. Errors: unsupported.
Result<ServedProblem> served_problem(const RecurrentFlags& flags, const RecurrentProblem& problem, Arch arch);

/// What --batch says, or its default. Errors: invalid_argument.
Result<std::vector<int>> batches_of(const RecurrentFlags& flags, const std::string& batches);

/// Reads a flag's number into `out`. Errors: invalid_argument.
Result<void> read_number(const char* flag, const std::string& text, int& out);

}  // namespace v1
}  // namespace leanattn
