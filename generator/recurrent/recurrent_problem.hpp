// recurrent_problem.hpp -- RecurrentProblem: a layer that keeps a matrix for each head instead of KV (linear
// attention), and the table of its kinds. Plain data; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// The rule by which a token changes the state S [V, K] of its head. docs/how-to/recurrent.md has the formulas.
///   gated_delta  Qwen3-Next, Qwen3.5: S decays, and v replaces what S had at k
///   kda          Kimi Linear: the same with a decay for each channel of K
///   mamba2       S decays, and dt x B^T is added; D x is added to the output
///   lightning    also RetNet: S decays by a constant of its head, and v k^T is added
///   gla          S decays for each channel of K, and v k^T is added
///   gdn2         Gated DeltaNet-2: kda with a beta for each channel, of K for what is taken out and of V for what
///   comes in rwkv7        S decays for each channel of K and is corrected by vectors of its own; v k^T is added
enum class RecurrentKind : std::uint8_t { gated_delta, kda, mamba2, lightning, gla, gdn2, rwkv7 };
inline constexpr std::array kRecurrentKinds{RecurrentKind::gated_delta, RecurrentKind::kda, RecurrentKind::mamba2,
                                            RecurrentKind::lightning,   RecurrentKind::gla, RecurrentKind::gdn2,
                                            RecurrentKind::rwkv7};

/// Whether a state decays before an update: as a whole, or each channel of K by a factor of its own.
enum class Decay : std::uint8_t { none, head, channel };
/// What an update takes out of the state before v comes in.
///   none      nothing
///   key       what the decayed state has at k, weighed as v is: the delta rule
///   channels  what it has at erase * k, where v comes in as write * v; both are factors of channels
///   vectors   what the state had at `erase` before it decayed is added at `write`
enum class Erasure : std::uint8_t { none, key, channels, vectors };
/// What an update is weighed with: nothing, the delta rule's beta, or the step dt by which it decays, too.
enum class UpdateWeight : std::uint8_t { one, beta, step };

/// Where the factors of a decay and the weights come from. A = -e^a_log.
///   given     fp32: the logarithms of factors, and weights as they are
///   softplus  A softplus(a + dt_bias); beta = sigmoid(b); dt = softplus(a + dt_bias)
///   bounded   lower_bound sigmoid(e^a_log (a + dt_bias)); beta = sigmoid(b)
///   constant  a_log: the logarithm of a factor for each head, the same for all tokens
enum class Gates : std::uint8_t { given, softplus, bounded, constant };
inline constexpr std::array kGates{Gates::given, Gates::softplus, Gates::bounded, Gates::constant};

/// One kind's update, of which kernels, the oracle and checks of arguments are made.
struct RecurrentUpdate {
  RecurrentKind kind;
  std::string_view name;  ///< as in JSON and on the command line
  Decay decay;
  Erasure erasure;
  UpdateWeight weight;
  bool skip;                     ///< D v is added to the output
  bool normalises;               ///< models L2-normalise q and k
  bool scales;                   ///< models multiply q by K^-0.5
  std::span<const Gates> gates;  ///< the first one is the usual one
};
/// All kinds, in the order of RecurrentKind.
std::span<const RecurrentUpdate> recurrent_updates();
const RecurrentUpdate& update_of(RecurrentKind kind);

/// What becomes of the output of a head: nothing, or it is divided by its root mean square and multiplied by a weight
/// and by a function of z, silu (Qwen3-Next) or sigmoid (KDA). With silu_first (Mamba-2) it is multiplied by silu(z)
/// before the mean is taken, which is over norm_heads heads, and each head has weights of its own.
enum class OutputGate : std::uint8_t { none, silu, sigmoid, silu_first };
inline constexpr std::array kOutputGates{OutputGate::none, OutputGate::silu, OutputGate::sigmoid,
                                         OutputGate::silu_first};

/// What elements of the state are in memory. Arithmetic is in fp32.
enum class StateType : std::uint8_t { fp32, bf16 };
inline constexpr std::array kStateTypes{StateType::fp32, StateType::bf16};
inline int bytes_of(StateType type) { return type == StateType::fp32 ? 4 : 2; }

std::string_view to_string(RecurrentKind v);
std::string_view to_string(Gates v);
std::string_view to_string(OutputGate v);
std::string_view to_string(StateType v);
/// Errors: invalid_argument, naming the choices.
Result<RecurrentKind> parse_recurrent_kind(std::string_view text);
Result<Gates> parse_gates(std::string_view text);
Result<OutputGate> parse_output_gate(std::string_view text);
Result<StateType> parse_state_type(std::string_view text);

inline constexpr int kMostRecurrentTokens = 16, kMostConvWidth = 4, kMostRingEntries = 16;

/// What never changes in a model. The state lies as engines store it: [slots, v_heads, value_dim, key_dim], unless keys
/// are first.
struct RecurrentProblem {
  RecurrentKind kind = RecurrentKind::gated_delta;
  int qk_heads = 16;
  int v_heads = 32;  ///< a multiple of qk_heads; head h of v uses head h / (v_heads / qk_heads) of q and k
  int key_dim = 128;
  int value_dim = 128;
  DType dtype = DType::bf16;  ///< of q, k, v, o, and of gates that are not given
  StateType state = StateType::fp32;
  Gates gates = Gates::softplus;
  bool normalises = true;  ///< q and k are L2-normalised: x / sqrt(sum x^2 + eps)
  OutputGate output_gate = OutputGate::none;
  int norm_heads = 1;       ///< heads of v that are normalised together, neighbours; more than one with silu_first only
  int tokens = 1;           ///< the most of a request in a step, 1..16
  bool ragged = false;      ///< each request has its own number of tokens
  bool snapshots = false;   ///< the state after each token is stored in a slot of its own, not only the last one
  bool keys_first = false;  ///< states lie [slots, v_heads, key_dim, value_dim]
  int conv_width = 0;       ///< tokens of the short convolution that q, k and v go through first, 2..4; 0: none

  /// Entries of a slot's ring, at least two steps', 2..16; 0: none. A step writes what its tokens do to the state into
  /// the ring, replays what the ring has, and seldom stores the state.
  int ring = 0;

  bool operator==(const RecurrentProblem&) const = default;
};

/// The usual problem of a kind: its first form of gates, and whether models normalise q and k.
RecurrentProblem usual_problem(RecurrentKind kind);

/// Errors: invalid_argument (a value makes no sense), unsupported (a limit, which the message names).
Result<void> validate(const RecurrentProblem& problem);

/// The gates that a token brings: one for each head of v, or for each channel of each.
std::int64_t gates_of_token(const RecurrentProblem& problem);
/// What it brings for erasures of its own, of all heads: elements of `erase`, and of `write`.
std::int64_t erases_of_token(const RecurrentProblem& problem);
std::int64_t writes_of_token(const RecurrentProblem& problem);
/// Whether it also brings a weight for each head, or what one is made of.
bool has_weights(const RecurrentProblem& problem);

/// What the state of the short convolution has of each channel: the tokens that the next step needs, and with snapshots
/// those that it may find not to be accepted.
int conv_tokens(const RecurrentProblem& problem);

/// Weights of the output's norm: of a head, or of all of them.
std::int64_t norm_weights(const RecurrentProblem& problem);

/// Bytes of one request's state, of all heads.
std::int64_t state_bytes(const RecurrentProblem& problem);
/// Bytes of a ring's entry, of all heads.
std::int64_t ring_entry_bytes(const RecurrentProblem& problem);
/// Steps from one in which a ring's state is stored to the next, where all tokens are accepted. 1 without a ring.
int ring_period(const RecurrentProblem& problem);
/// Bytes of states that a step over `batch` requests reads and writes: each state once, or once for each token of a
/// problem with snapshots. With a ring they are the mean of a period, together with the entries.
std::int64_t state_traffic(const RecurrentProblem& problem, int batch);

/// Self-describing JSON object; keys sorted, one line.
std::string to_json(const RecurrentProblem& problem);
/// What becomes of the output, in words: "RMSNorm x silu_first(z) over 16 heads"; empty: nothing.
std::string describe_output(const RecurrentProblem& problem);
/// In words: "gated_delta, 16/32 heads of 128 x 128, fp32 state".
std::string describe(const RecurrentProblem& problem);

}  // namespace v1
}  // namespace leanattn
