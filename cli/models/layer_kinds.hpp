// layer_kinds.hpp -- which layer of a model is of which kind. Any thread. Internal to this folder.
#pragma once

#include <string>
#include <vector>

#include "cli/models/config_fields.hpp"

namespace leanattn {
inline namespace v1 {

/// Of every layer the name of its kind, as the type's "kinds" have it. The file lists them (layer_types), or they
/// follow from a pattern of the type. Errors: invalid_argument, naming the field that is missing or says what is not
/// known.
Result<std::vector<std::string>> layer_kinds(const ConfigFields& fields);

}  // namespace v1
}  // namespace leanattn
