#include "cli/flags/recurrent_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <tuple>

#include "cli/flags/sizes.hpp"
#include "cli/models/model_catalogue.hpp"
#include "cli/models/model_config.hpp"
#include "generator/parse_enum.hpp"
#include "generator/recurrent/recurrent_spec.hpp"

namespace leanattn {
inline namespace v1 {

Result<void> read_number(const char* flag, const std::string& text, int& out) {
  const auto number = parse_size(flag, text, 1, 1 << 20);
  if (!number) return tl::unexpected(number.error());
  out = static_cast<int>(*number);
  return {};
}

namespace {

/// What one of so many GPUs has of the heads. A head of q and k is repeated where there are fewer of them than GPUs.
Result<void> divide_heads(int gpus, RecurrentProblem& problem) {
  const bool repeats = gpus % problem.qk_heads == 0;
  if (problem.v_heads % gpus != 0 || (problem.qk_heads % gpus != 0 && !repeats))
    return fail(ErrorCode::invalid_argument,
                fmt::format("--tensor-parallel {}: {} heads of q and k and {} of v cannot be divided by it", gpus,
                            problem.qk_heads, problem.v_heads),
                "Give a divisor of the heads of v that divides those of q and k, or is a multiple of them.");
  problem.v_heads /= gpus;
  problem.qk_heads = std::max(1, problem.qk_heads / gpus);
  return {};
}

/// Reads what a flag names into `out`, which stays as it is where the flag was left out. Errors name flag and value.
template <class T>
Result<void> read_choice(const char* flag, const std::string& text, Result<T> (*parse)(std::string_view), T& out) {
  if (text.empty()) return {};
  const Result<T> choice = parse(text);
  if (!choice) {
    Error error = choice.error();
    error.message = fmt::format("{} {}: {}", flag, text, error.message);
    return tl::unexpected(std::move(error));
  }
  out = *choice;
  return {};
}

Result<RecurrentProblem> problem_by_numbers(const RecurrentFlags& flags) {
  RecurrentKind kind{};
  if (auto ok = read_choice("--kind", flags.kind, parse_recurrent_kind, kind); !ok) return tl::unexpected(ok.error());
  RecurrentProblem problem = usual_problem(kind);
  if (auto ok = read_choice("--gates", flags.gates, parse_gates, problem.gates); !ok) return tl::unexpected(ok.error());
  for (const auto& [flag, text, number] : {std::tuple{"--qk-heads", &flags.qk_heads, &problem.qk_heads},
                                           {"--v-heads", &flags.v_heads, &problem.v_heads},
                                           {"--key-dim", &flags.key_dim, &problem.key_dim},
                                           {"--value-dim", &flags.value_dim, &problem.value_dim}}) {
    if (auto ok = read_number(flag, *text, *number); !ok) return tl::unexpected(ok.error());
  }
  return problem;
}

/// What a flag says of the output is not left to the engine.
bool may_leave_output(const RecurrentFlags& flags) { return flags.output_gate.empty() && flags.norm_heads.empty(); }

}  // namespace

Result<RecurrentProblem> problem_of(const RecurrentFlags& flags) {
  auto problem = !flags.model.empty()          ? find_recurrent_model(flags.model)
                 : !flags.model_config.empty() ? recurrent_from_config_file(flags.model_config)
                                               : problem_by_numbers(flags);
  if (!problem) return problem;
  int gpus = 1;
  if (auto ok = read_number("--tensor-parallel", flags.tensor_parallel, gpus); !ok) return tl::unexpected(ok.error());
  if (auto ok = divide_heads(gpus, *problem); !ok) return tl::unexpected(ok.error());
  if (auto ok = read_choice("--state", flags.state, parse_state_type, problem->state); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = read_choice("--dtype", flags.dtype, parse_dtype, problem->dtype); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = read_choice("--output-gate", flags.output_gate, parse_output_gate, problem->output_gate); !ok)
    return tl::unexpected(ok.error());
  if (!flags.output_gate.empty() && problem->output_gate != OutputGate::silu_first) problem->norm_heads = 1;
  if (auto ok = read_number("--tokens", flags.tokens, problem->tokens); !ok) return tl::unexpected(ok.error());
  for (const auto& [flag, text, number] : {std::tuple{"--norm-heads", &flags.norm_heads, &problem->norm_heads},
                                           {"--conv-width", &flags.conv_width, &problem->conv_width},
                                           {"--ring", &flags.ring, &problem->ring}}) {
    if (text->empty()) continue;
    if (auto ok = read_number(flag, *text, *number); !ok) return tl::unexpected(ok.error());
  }
  problem->ragged = flags.ragged, problem->snapshots = flags.snapshots;
  problem->keys_first = flags.keys_first;
  RecurrentProblem checked = *problem;
  if (may_leave_output(flags)) checked.output_gate = OutputGate::none, checked.norm_heads = 1;
  if (auto ok = validate(checked); !ok) return tl::unexpected(ok.error());
  return problem;
}

Result<ServedProblem> served_problem(const RecurrentFlags& flags, const RecurrentProblem& asked, Arch arch) {
  ServedProblem served{.problem = asked, .left = {}};
  const RecurrentProblem& problem = served.problem;
  if (may_leave_output(flags)) served.left = leave_output(served.problem, arch);
  if (recurrent_search_space(arch, problem).empty())
    return fail(ErrorCode::unsupported, fmt::format("{} has no kernel of {}", to_string(arch), describe(problem)),
                problem.output_gate == OutputGate::none ? "Give fewer tokens, or another K or V."
                                                        : "Leave norm and gate to the engine: --output-gate none.");
  return served;
}

Result<std::vector<int>> batches_of(const RecurrentFlags& flags, const std::string& batches) {
  const auto sizes = parse_size_list("--batch", flags.batch.empty() ? batches : flags.batch, 1, 65535);
  if (!sizes) return tl::unexpected(sizes.error());
  return std::vector<int>(sizes->begin(), sizes->end());
}

void add_recurrent_flags(CLI::App& command, RecurrentFlags& flags, const std::string& batches) {
  const std::string kinds = names_of(kRecurrentKinds, "|"), forms = names_of(kGates, "|");
  CLI::Option* const model =
      command.add_option("--model", flags.model, "A built-in model with such layers; see `leanattn models`")
          ->type_name("NAME");
  CLI::Option* const config =
      command.add_option("--model-config", flags.model_config, "The Hugging Face config.json of any other model")
          ->type_name("FILE")
          ->excludes(model);
  for (CLI::Option* option :
       {command.add_option("--kind", flags.kind, "How a token changes the state; default gated_delta")
            ->type_name(kinds),
        command
            .add_option("--gates", flags.gates, "Where decays and weights come from; default: the kind's usual form")
            ->type_name(forms),
        command.add_option("--qk-heads", flags.qk_heads, "Heads of q and k; default 16")->type_name("N"),
        command.add_option("--v-heads", flags.v_heads, "Heads of v and of the state; default 32")->type_name("N"),
        command.add_option("--key-dim", flags.key_dim, "K, the columns of a head's state; default 128")->type_name("N"),
        command.add_option("--value-dim", flags.value_dim, "V, the rows of a head's state; default 128")
            ->type_name("N")})
    option->excludes(model)->excludes(config);
  command.add_option("--tensor-parallel", flags.tensor_parallel, "GPUs among which the heads are divided; default 1")
      ->type_name("N");
  command.add_option("--state", flags.state, "The type of the state in memory; default fp32")->type_name("fp32|bf16");
  command.add_option("--dtype", flags.dtype, "The type of q, k, v and o; default the model's, or bf16")
      ->type_name("bf16|fp16");
  command
      .add_option("--output-gate", flags.output_gate,
                  "Normalise the output, and multiply it by this function of z; default the model's, or none")
      ->type_name(names_of(kOutputGates, "|"));
  command
      .add_option("--norm-heads", flags.norm_heads,
                  "Heads of v that silu_first normalises together; default the model's, or 1")
      ->type_name("N");
  command.add_option("--tokens", flags.tokens, "Tokens of a request in a step, 1 to 16; default 1")->type_name("N");
  command
      .add_option("--conv-width", flags.conv_width,
                  "Send q, k and v through a short convolution of so many tokens, 2 to 4; default: none")
      ->type_name("N");
  command.add_flag("--ragged", flags.ragged, "Each request has its own number of tokens");
  command.add_flag("--snapshots", flags.snapshots, "Store the state after each token, in slots of their own");
  command
      .add_option(
          "--ring", flags.ring,
          "Keep what so many tokens do to a state in a ring, up to 16, and seldom store the state; default: none")
      ->type_name("N");
  command.add_flag("--keys-first", flags.keys_first, "States lie [slots, heads, K, V], not [slots, heads, V, K]");
  command.add_option("--batch", flags.batch, "Requests of a step; default " + batches)->type_name("LIST");
}

}  // namespace v1
}  // namespace leanattn
