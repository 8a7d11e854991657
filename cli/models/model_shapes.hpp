// model_shapes.hpp -- ModelShapes: the attention and the recurrent states of a model, which may differ from layer to
// layer. Plain data; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "generator/kernel_spec.hpp"
#include "generator/recurrent/recurrent_problem.hpp"

namespace leanattn {
inline namespace v1 {

/// Attention layers that are alike.
struct LayerShape {
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  Features features{};
  std::vector<int> layers{};  ///< their numbers, from 0; empty: not known
  std::string kind{};         ///< the model's word for them, such as "sliding_attention"; may be empty
  /// What these layers do beside `features`, which no kernel has: whole sentences for the user.
  std::vector<std::string> remarks{};
  int chunk = 0;               ///< tokens see those of their own chunk of so many tokens only; 0: all
  int selected = 0;            ///< tokens or blocks that an indexer selects for each query token; 0: none
  bool position_bias = false;  ///< scores get a learned bias by distance

  bool operator==(const LayerShape&) const = default;
};

/// Layers with a recurrent state that are alike.
struct RecurrentLayers {
  RecurrentProblem problem;   ///< of one token a step, with an fp32 state; its output may be more than kernels have
  std::vector<int> layers{};  ///< their numbers, from 0; empty: not known

  bool operator==(const RecurrentLayers&) const = default;
};

/// Layers that are no attention.
struct OtherLayers {
  int layers = 0;
  std::string what;  ///< in words, such as "linear attention"

  bool operator==(const OtherLayers&) const = default;
};

/// All layers of a model.
struct ModelShapes {
  std::string name;
  std::string model_type{};          ///< as the file says; empty: it does not
  int layers = 0;                    ///< attention and other layers; 0: not known
  std::vector<LayerShape> shapes{};  ///< those without a window first
  std::vector<OtherLayers> others{};
  std::vector<RecurrentLayers> recurrent{};  ///< among the others, or beside attention in the same layers
  std::optional<DType> dtype{};              ///< of the published weights; nullopt: neither bf16 nor fp16
  std::string other_dtype{};                 ///< the weights' type where `dtype` cannot say it, such as "float32"

  bool operator==(const ModelShapes&) const = default;
};

/// Which layers a shape is about: "25 of 30 layers". Empty where that is not known, or where it is all of them.
std::string describe_layers(const ModelShapes& model, const LayerShape& shape);
/// Leaves the norm and gate of the output to the engine where kernels of this GPU have all but them. Returns why, a
/// sentence for the user; empty: nothing is left.
std::string leave_output(RecurrentProblem& problem, Arch arch);
/// What the user should know of the layers that are no attention: "30 of 48 layers of NAME are linear attention."
std::vector<std::string> notes_of(const ModelShapes& model);

}  // namespace v1
}  // namespace leanattn
