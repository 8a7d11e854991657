// model_catalogue.hpp -- the attention shapes and recurrent states of well-known models. Any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cli/models/model_shapes.hpp"

namespace leanattn {
inline namespace v1 {

/// What a well-known model fixes of its attention layers.
struct ModelShape {
  std::string name;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::optional<DType> dtype;  ///< of the published weights; nullopt: neither bf16 nor fp16
  Features features{};         ///< those that all of its attention layers have
  int layer_window = 0;        ///< the window of those layers that have one, where others have none; 0: all are alike

  bool operator==(const ModelShape&) const = default;
};

/// The built-in models, in the order that --help lists them.
std::span<const ModelShape> model_catalogue();

/// The shapes of its layers: that of those without a window, and that of those with one.
ModelShapes shapes_of(const ModelShape& model);

/// What a well-known model fixes of its layers with a recurrent state.
struct RecurrentModel {
  std::string name;
  RecurrentProblem problem;  ///< of one token a step, with an fp32 state

  bool operator==(const RecurrentModel&) const = default;
};

/// The built-in models that have such layers, in the order of `leanattn models`.
std::span<const RecurrentModel> recurrent_catalogue();
/// The one of this name. Upper and lower case are the same. Errors: invalid_argument, with the closest name.
Result<RecurrentProblem> find_recurrent_model(std::string_view name);

/// The built-in model of this name. Upper and lower case are the same. Errors: invalid_argument, with the closest name.
Result<ModelShape> find_model(std::string_view name);

}  // namespace v1
}  // namespace leanattn
