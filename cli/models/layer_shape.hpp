// layer_shape.hpp -- the shape of one attention layer from the fields of a config.json. Any thread. Internal to this
// folder.
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

}  // namespace v1
}  // namespace leanattn
