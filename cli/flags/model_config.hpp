// model_config.hpp -- the attention shape of a model from its Hugging Face config.json. Any thread.
#pragma once

#include <filesystem>
#include <string_view>

#include "cli/flags/model_catalogue.hpp"

namespace leanattn {
inline namespace v1 {

/// Reads a config.json as Hugging Face transformers writes it: query heads, KV heads and head_dim under the names that
/// model families use, at the top or inside text_config. It also reads the features that every layer has: a logit soft
/// cap, ALiBi, sink logits, a head size of V, and a sliding window, which is layer_window where only some layers have
/// it. `name` becomes the model's name and stands in messages. Errors: invalid_argument (the text is no JSON, a field
/// is missing or has another type, query heads are no multiple of KV heads).
Result<ModelShape> model_from_config(std::string_view json_text, std::string_view name);

/// Reads the file and does the same. Errors: also invalid_argument, when the file cannot be read.
Result<ModelShape> model_from_config_file(const std::filesystem::path& file);

}  // namespace v1
}  // namespace leanattn
