// model_config.hpp -- the attention shapes and recurrent states of a model from its Hugging Face config.json. Any
// thread.
#pragma once

#include <filesystem>
#include <string_view>

#include "cli/models/model_shapes.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// Reads a config.json as Hugging Face transformers writes it, of any version. What fields are called, what they are
/// where the file leaves them out, and which layers are what follows from its model_type (data/model_types.json). A
/// model of several parts is read for the part that decodes text. Other files are read by the names that most families
/// use. `name` becomes the model's name and stands in messages.
/// Errors: invalid_argument (the text is no JSON, or a field, which the message names, is missing, is no number, fits
/// no other or is not known), unsupported (the model does not decode, or none of its layers is attention).
Result<ModelShapes> model_from_config(std::string_view json_text, std::string_view name);

/// Reads the file and does the same. Errors: also invalid_argument, when the file cannot be read.
Result<ModelShapes> model_from_config_file(const std::filesystem::path& file);

/// The step of those layers that have a recurrent state. Errors: as above, but unsupported where there are none, where
/// nothing is known of them, or where they differ.
Result<RecurrentProblem> recurrent_from_config(std::string_view json_text, std::string_view name);
Result<RecurrentProblem> recurrent_from_config_file(const std::filesystem::path& file);

}  // namespace v1
}  // namespace leanattn
