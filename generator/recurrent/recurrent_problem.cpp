#include "generator/recurrent/recurrent_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "generator/parse_enum.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr Gates kGatesOfHead[] = {Gates::softplus, Gates::given},
                kGatesOfKda[] = {Gates::softplus, Gates::bounded, Gates::given}, kConstantGates[] = {Gates::constant},
                kGivenGates[] = {Gates::given}, kGatesOfRwkv[] = {Gates::bounded, Gates::given};

constexpr RecurrentUpdate kUpdates[] = {
    {.kind = RecurrentKind::gated_delta,
     .name = "gated_delta",
     .decay = Decay::head,
     .erasure = Erasure::key,
     .weight = UpdateWeight::beta,
     .skip = false,
     .normalises = true,
     .scales = true,
     .gates = kGatesOfHead},
    {.kind = RecurrentKind::kda,
     .name = "kda",
     .decay = Decay::channel,
     .erasure = Erasure::key,
     .weight = UpdateWeight::beta,
     .skip = false,
     .normalises = true,
     .scales = true,
     .gates = kGatesOfKda},
    {.kind = RecurrentKind::mamba2,
     .name = "mamba2",
     .decay = Decay::head,
     .erasure = Erasure::none,
     .weight = UpdateWeight::step,
     .skip = true,
     .normalises = false,
     .scales = false,
     .gates = kGatesOfHead},
    {.kind = RecurrentKind::lightning,
     .name = "lightning",
     .decay = Decay::head,
     .erasure = Erasure::none,
     .weight = UpdateWeight::one,
     .skip = false,
     .normalises = false,
     .scales = false,
     .gates = kConstantGates},
    {.kind = RecurrentKind::gla,
     .name = "gla",
     .decay = Decay::channel,
     .erasure = Erasure::none,
     .weight = UpdateWeight::one,
     .skip = false,
     .normalises = false,
     .scales = true,
     .gates = kGivenGates},
    {.kind = RecurrentKind::gdn2,
     .name = "gdn2",
     .decay = Decay::channel,
     .erasure = Erasure::channels,
     .weight = UpdateWeight::one,
     .skip = false,
     .normalises = true,
     .scales = true,
     .gates = kGatesOfKda},
    {.kind = RecurrentKind::rwkv7,
     .name = "rwkv7",
     .decay = Decay::channel,
     .erasure = Erasure::vectors,
     .weight = UpdateWeight::one,
     .skip = false,
     .normalises = false,
     .scales = false,
     .gates = kGatesOfRwkv},
};

tl::unexpected<Error> invalid_problem(std::string message, std::string hint) {
  return fail(ErrorCode::invalid_argument, std::move(message), std::move(hint));
}

}  // namespace

std::span<const RecurrentUpdate> recurrent_updates() { return kUpdates; }
const RecurrentUpdate& update_of(RecurrentKind kind) { return kUpdates[static_cast<std::size_t>(kind)]; }

std::string_view to_string(RecurrentKind v) { return update_of(v).name; }
std::string_view to_string(Gates v) {
  switch (v) {
    case Gates::given: return "given";
    case Gates::softplus: return "softplus";
    case Gates::bounded: return "bounded";
    case Gates::constant: return "constant";
  }
  return "given";
}
std::string_view to_string(OutputGate v) {
  switch (v) {
    case OutputGate::none: return "none";
    case OutputGate::silu: return "silu";
    case OutputGate::sigmoid: return "sigmoid";
    case OutputGate::silu_first: return "silu_first";
  }
  return "none";
}
std::string_view to_string(StateType v) { return v == StateType::fp32 ? "fp32" : "bf16"; }
Result<RecurrentKind> parse_recurrent_kind(std::string_view text) { return parse_enum("kind", text, kRecurrentKinds); }
Result<Gates> parse_gates(std::string_view text) { return parse_enum("form of gates", text, kGates); }
Result<OutputGate> parse_output_gate(std::string_view text) { return parse_enum("output gate", text, kOutputGates); }
Result<StateType> parse_state_type(std::string_view text) { return parse_enum("state type", text, kStateTypes); }

RecurrentProblem usual_problem(RecurrentKind kind) {
  const RecurrentUpdate& update = update_of(kind);
  return {.kind = kind, .gates = update.gates.front(), .normalises = update.normalises};
}

Result<void> validate(const RecurrentProblem& problem) {
  const RecurrentUpdate& update = update_of(problem.kind);
  for (const auto& [name, heads] : {std::pair{"qk_heads", problem.qk_heads}, {"v_heads", problem.v_heads}}) {
    if (heads < 1 || heads > 65535) return invalid_problem(fmt::format("{} is {}", name, heads), "Give 1 to 65535.");
  }
  if (problem.v_heads % problem.qk_heads != 0)
    return invalid_problem(fmt::format("{} heads of v for {} of q and k", problem.v_heads, problem.qk_heads),
                           "v_heads is a multiple of qk_heads.");
  for (const auto& [name, dim] : {std::pair{"key_dim", problem.key_dim}, {"value_dim", problem.value_dim}}) {
    if (dim < 32 || dim > 256 || dim % 32 != 0)
      return fail(ErrorCode::unsupported, fmt::format("{} is {}", name, dim), "Give a multiple of 32 from 32 to 256.");
  }
  // Other widths lie over few lanes, whose registers do not hold the vectors that these kinds have beside q and k.
  if (update.erasure >= Erasure::channels && !std::has_single_bit(static_cast<unsigned>(problem.key_dim)))
    return fail(ErrorCode::unsupported, fmt::format("key_dim is {} of kind {}", problem.key_dim, update.name),
                "Give 32, 64, 128 or 256.");
  if (problem.tokens < 1 || problem.tokens > kMostRecurrentTokens)
    return fail(ErrorCode::unsupported, fmt::format("{} tokens a step", problem.tokens),
                fmt::format("Give 1 to {}. Prompts are the engine's.", kMostRecurrentTokens));
  if (problem.norm_heads < 1 || problem.v_heads % problem.norm_heads != 0)
    return invalid_problem(fmt::format("{} heads of {} are normalised together", problem.norm_heads, problem.v_heads),
                           "Give a number that divides v_heads.");
  if (problem.norm_heads > 1 && problem.output_gate != OutputGate::silu_first)
    return fail(ErrorCode::unsupported,
                fmt::format("{} heads are normalised together with the output gate {}", problem.norm_heads,
                            to_string(problem.output_gate)),
                "The gate silu_first has groups of heads.");
  if (problem.conv_width != 0 && (problem.conv_width < 2 || problem.conv_width > kMostConvWidth))
    return fail(ErrorCode::unsupported, fmt::format("conv_width is {}", problem.conv_width),
                fmt::format("Give 2 to {}, or 0 where q, k and v have gone through it.", kMostConvWidth));
  if (problem.ring != 0 && (problem.ring < 2 * problem.tokens || problem.ring > kMostRingEntries))
    return fail(ErrorCode::unsupported, fmt::format("a ring of {} for {} tokens a step", problem.ring, problem.tokens),
                fmt::format("Give at least twice the tokens, and at most {}.", kMostRingEntries));
  if (problem.ring > 0 && problem.snapshots)
    return invalid_problem("a ring and snapshots", "With a ring no state is stored for a token that may be rejected.");
  if (problem.ring > 0 && update.erasure == Erasure::vectors)
    return fail(ErrorCode::unsupported, fmt::format("a ring of kind {}", update.name),
                "An entry has one vector, and this update adds two.");
  if (problem.ring > 0 && problem.tokens > 1 && problem.conv_width > 0)
    return fail(
        ErrorCode::unsupported, fmt::format("a ring and a convolution of {} tokens a step", problem.tokens),
        "The convolution's state has no tokens that may be rejected without snapshots. Leave it to the engine.");
  if (std::find(update.gates.begin(), update.gates.end(), problem.gates) == update.gates.end()) {
    std::string choices;
    for (const Gates gates : update.gates)
      choices += fmt::format("{}{}", choices.empty() ? "" : ", ", to_string(gates));
    return fail(ErrorCode::unsupported, fmt::format("{} gates of kind {}", to_string(problem.gates), update.name),
                "Choose one of: " + choices);
  }
  return {};
}

std::int64_t gates_of_token(const RecurrentProblem& problem) {
  return std::int64_t{problem.v_heads} * (update_of(problem.kind).decay == Decay::channel ? problem.key_dim : 1);
}

std::int64_t erases_of_token(const RecurrentProblem& problem) {
  const bool corrects = update_of(problem.kind).erasure >= Erasure::channels;
  return corrects ? std::int64_t{problem.v_heads} * problem.key_dim : 0;
}

std::int64_t writes_of_token(const RecurrentProblem& problem) {
  switch (update_of(problem.kind).erasure) {
    case Erasure::channels: return std::int64_t{problem.v_heads} * problem.value_dim;
    case Erasure::vectors: return std::int64_t{problem.v_heads} * problem.key_dim;
    case Erasure::none:
    case Erasure::key: break;
  }
  return 0;
}

bool has_weights(const RecurrentProblem& problem) {
  const UpdateWeight weight = update_of(problem.kind).weight;
  return weight == UpdateWeight::beta || (weight == UpdateWeight::step && problem.gates == Gates::given);
}

std::int64_t norm_weights(const RecurrentProblem& problem) {
  const bool of_all = problem.output_gate == OutputGate::silu_first;
  return std::int64_t{problem.value_dim} * (of_all ? problem.v_heads : 1);
}

int conv_tokens(const RecurrentProblem& problem) {
  return problem.conv_width - 1 + (problem.snapshots ? problem.tokens - 1 : 0);
}

std::int64_t state_bytes(const RecurrentProblem& problem) {
  return std::int64_t{problem.v_heads} * problem.value_dim * problem.key_dim * bytes_of(problem.state);
}

std::int64_t ring_entry_bytes(const RecurrentProblem& problem) {
  return 4 * (std::int64_t{problem.v_heads} * problem.value_dim + std::int64_t{problem.qk_heads} * problem.key_dim +
              gates_of_token(problem));
}

int ring_period(const RecurrentProblem& problem) { return problem.ring == 0 ? 1 : problem.ring / problem.tokens - 1; }

std::int64_t state_traffic(const RecurrentProblem& problem, int batch) {
  if (problem.ring > 0) {
    // A step of the period replays the tokens of 1, 2, .. steps, and writes those of its own.
    const std::int64_t period = ring_period(problem), entries = problem.tokens * period * (period + 3) / 2;
    return (state_bytes(problem) * (period + 1) + ring_entry_bytes(problem) * entries) * batch / period;
  }
  return state_bytes(problem) * batch * (1 + (problem.snapshots ? problem.tokens : 1));
}

std::string to_json(const RecurrentProblem& problem) {
  return nlohmann::json{{"kind", to_string(problem.kind)},
                        {"qk_heads", problem.qk_heads},
                        {"v_heads", problem.v_heads},
                        {"key_dim", problem.key_dim},
                        {"value_dim", problem.value_dim},
                        {"dtype", to_string(problem.dtype)},
                        {"state", to_string(problem.state)},
                        {"gates", to_string(problem.gates)},
                        {"normalises", problem.normalises},
                        {"output_gate", to_string(problem.output_gate)},
                        {"norm_heads", problem.norm_heads},
                        {"tokens", problem.tokens},
                        {"ragged", problem.ragged},
                        {"snapshots", problem.snapshots},
                        {"conv_width", problem.conv_width},
                        {"keys_first", problem.keys_first},
                        {"ring", problem.ring}}
      .dump();
}

std::string describe_output(const RecurrentProblem& problem) {
  if (problem.output_gate == OutputGate::none) return "";
  return fmt::format("RMSNorm x {}(z){}", to_string(problem.output_gate),
                     problem.norm_heads > 1 ? fmt::format(" over {} heads", problem.norm_heads) : "");
}

std::string describe(const RecurrentProblem& problem) {
  const std::string output = describe_output(problem);
  return fmt::format("{}, {}/{} heads of {} x {}, {}, {} state, {}{} gates{}{}{}{}{}{}{}", to_string(problem.kind),
                     problem.qk_heads, problem.v_heads, problem.value_dim, problem.key_dim, to_string(problem.dtype),
                     to_string(problem.state), problem.keys_first ? "[K, V], " : "", to_string(problem.gates),
                     problem.conv_width > 0 ? fmt::format(", convolution of {}", problem.conv_width) : "",
                     problem.normalises ? ", L2 norm" : "", output.empty() ? "" : ", " + output,
                     problem.tokens > 1 ? fmt::format(", {} tokens", problem.tokens) : "",
                     problem.ragged ? ", ragged" : "", problem.snapshots ? ", snapshots" : "",
                     problem.ring > 0 ? fmt::format(", a ring of {}", problem.ring) : "");
}

}  // namespace v1
}  // namespace leanattn
