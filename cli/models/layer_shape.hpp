// layer_shape.hpp -- the shape of one layer from the fields of a config.json: attention, or a recurrent state. Any
// thread. Internal to this folder.
#pragma once

#include <optional>
#include <string>

#include "cli/models/config_fields.hpp"
#include "cli/models/model_shapes.hpp"

namespace leanattn {
inline namespace v1 {

/// The shape of layer `layer`, which is of kind `kind`. nullopt: the kind is no attention. Errors: invalid_argument and
/// unsupported, naming a field.
Result<std::optional<LayerShape>> layer_shape(const ConfigFields& fields, const std::string& kind, int layer);

/// The step of layer `layer`, where it has a recurrent state, beside attention or in place of it. nullopt: it has none,
/// or one of which nothing is known. Errors: invalid_argument, naming a field.
Result<std::optional<RecurrentProblem>> recurrent_layer(const ConfigFields& fields, const std::string& kind, int layer);

}  // namespace v1
}  // namespace leanattn
