// recurrent.hpp -- the C ABI of recurrent.h for C++17: layers that keep a recurrent state instead of KV. Header only.
// Any thread may call any function.
#pragma once

#include <cstdint>

#include "leanattn/leanattn.hpp"
#include "leanattn/recurrent.h"

namespace leanattn {
inline namespace v1 {

/// How a token changes the state of its head; see leanattn_recurrence.
enum class Recurrence : std::int32_t {
  gated_delta = LEANATTN_GATED_DELTA,
  kda = LEANATTN_KDA,
  mamba2 = LEANATTN_MAMBA2,
  lightning = LEANATTN_LIGHTNING,
  gla = LEANATTN_GLA,
  gdn2 = LEANATTN_GDN2,
  rwkv7 = LEANATTN_RWKV7
};

/// Where the factors of a decay and the weights of updates come from; see leanattn_gate_form.
enum class GateForm : std::int32_t {
  usual = LEANATTN_GATES_USUAL,
  given = LEANATTN_GATES_GIVEN,
  softplus = LEANATTN_GATES_SOFTPLUS,
  bounded = LEANATTN_GATES_BOUNDED,
  constant = LEANATTN_GATES_CONSTANT
};

/// What becomes of the output of a head; see leanattn_output_gate.
enum class HeadOutput : std::int32_t {
  plain = LEANATTN_OUTPUT_PLAIN,
  silu = LEANATTN_OUTPUT_SILU,
  sigmoid = LEANATTN_OUTPUT_SIGMOID,
  silu_first = LEANATTN_OUTPUT_SILU_FIRST
};

/// Element type of the state in memory.
enum class StateFormat : std::int32_t { fp32 = LEANATTN_STATE_FP32, bf16 = LEANATTN_STATE_BF16 };

/// What never changes in a model; see leanattn_recurrent_layer.
struct RecurrentLayer {
  Recurrence recurrence = Recurrence::gated_delta;  ///< how a token changes the state
  GateForm gates = GateForm::usual;                 ///< where decays and weights come from
  int qk_heads = 16;                                ///< heads of q and k
  int v_heads = 32;                                 ///< of v and of the state; a multiple of qk_heads
  int key_dim = 128;                                ///< K: columns of a head's state
  int value_dim = 128;                              ///< V: its rows
  DataType dtype = DataType::bf16;                  ///< of q, k, v and o
  StateFormat state = StateFormat::fp32;            ///< of elements of the state in memory
  HeadOutput output = HeadOutput::plain;            ///< what becomes of the output
  int norm_heads = 1;                               ///< heads that are normalised together
  int tokens = 1;                                   ///< the most of a request in a step, 1 to 16
  bool normalise = true;                            ///< q and k are L2-normalised
  bool ragged = false;                              ///< each request has its own number of tokens
  bool keys_first = false;                          ///< states lie [slots, v_heads, key_dim, value_dim]
  int conv_width = 0;                               ///< tokens of the short convolution in front; 0: none
  bool snapshots = false;                           ///< the state after each token is stored in a slot of its own
  int ring = 0;                                     ///< entries of a slot's ring; 0: none
};

/// The arguments of one step; see leanattn_recurrent_args. Make them with recurrent_args().
using RecurrentArgs = leanattn_recurrent_args;
/// Arguments in which everything is 0, to be filled in.
inline RecurrentArgs recurrent_args() {
  RecurrentArgs args;
  leanattn_recurrent_args_init(&args);
  return args;
}

/// A loaded kernel for one layer. A value that may be copied; the Engine owns what it stands for, and must outlive it.
class RecurrentPlan {
 public:
  /// Finds the kernel for steps of about `batch` requests; see leanattn_engine_recurrent_plan, which also has the
  /// errors.
  static Result<RecurrentPlan> make(const Engine& engine, const RecurrentLayer& layer, int batch,
                                    leanattn_stream stream) {
    leanattn_recurrent_layer c_layer;
    leanattn_recurrent_layer_init(&c_layer);
    c_layer.recurrence = static_cast<std::int32_t>(layer.recurrence);
    c_layer.gates = static_cast<std::int32_t>(layer.gates);
    c_layer.qk_heads = layer.qk_heads, c_layer.v_heads = layer.v_heads;
    c_layer.key_dim = layer.key_dim, c_layer.value_dim = layer.value_dim;
    c_layer.dtype = static_cast<std::int32_t>(layer.dtype);
    c_layer.state = static_cast<std::int32_t>(layer.state);
    c_layer.output = static_cast<std::int32_t>(layer.output);
    c_layer.tokens = layer.tokens, c_layer.conv_width = layer.conv_width;
    c_layer.norm_heads = layer.norm_heads, c_layer.ring = layer.ring;
    c_layer.flags =
        (layer.normalise ? LEANATTN_RECURRENT_NORMALISE : 0) | (layer.ragged ? LEANATTN_RECURRENT_RAGGED : 0) |
        (layer.snapshots ? LEANATTN_RECURRENT_SNAPSHOTS : 0) | (layer.keys_first ? LEANATTN_RECURRENT_KEYS_FIRST : 0);
    const leanattn_recurrent_plan* plan = nullptr;
    const leanattn_status status = leanattn_engine_recurrent_plan(engine.get(), &c_layer, batch, stream, &plan);
    if (status != LEANATTN_OK) return tl::unexpected<Error>(detail::last_error(status));
    return RecurrentPlan(plan);
  }

  /// Enqueues one step and returns; see leanattn_recurrent_plan_launch, which also has the errors.
  Result<void> launch(const RecurrentArgs& args, leanattn_stream stream) const {
    return detail::to_result(leanattn_recurrent_plan_launch(plan_, &args, stream));
  }

  /// The name of its kernel. Valid as long as the Engine.
  const char* kernel_name() const { return leanattn_recurrent_plan_kernel(plan_); }

 private:
  explicit RecurrentPlan(const leanattn_recurrent_plan* plan) : plan_(plan) {}
  const leanattn_recurrent_plan* plan_;
};

}  // namespace v1
}  // namespace leanattn
