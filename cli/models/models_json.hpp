// models_json.hpp -- the layers of a model as JSON. Any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/models/model_shapes.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// {"name", "model_type", "layers", "shapes": [{"layers", "which", "kind", "q_heads", ...}], "others": [{"layers",
/// "what"}]}. A shape has "unsupported", the reason, where there is no kernel for it.
nlohmann::ordered_json to_json(const ModelShapes& model);

/// The problem of a shape's layers without what flags add. Errors: those of validate().
Result<DecodeProblem> problem_of(const ModelShapes& model, const LayerShape& shape);

}  // namespace v1
}  // namespace leanattn
