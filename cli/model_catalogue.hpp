// model_catalogue.hpp -- the attention shapes of well-known models, and those of any Hugging Face config.json. Any
// thread.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// What a model fixes about its attention layers.
struct ModelShape {
  std::string name;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::optional<DType> dtype;  ///< of the published weights; nullopt when neither bf16 nor fp16
  Features features{};         ///< what all of its attention layers have in common

  bool operator==(const ModelShape&) const = default;
};

/// The built-in models, in the order that --help lists them.
std::span<const ModelShape> model_catalogue();

/// By name, letter case ignored. Errors: not found is invalid_argument, naming the catalogue.
Result<ModelShape> find_model(std::string_view name);

/// Reads a config.json as Hugging Face transformers writes it: query heads, KV heads and head_dim under the names that
/// model families use, at the top or inside text_config. Of features those that every layer has: a logit soft cap,
/// ALiBi, sink logits, a width of V of its own, and a sliding window unless it is some layers' only. `name` goes into
/// the result and into messages. Errors: invalid_argument (no JSON, a missing or ill-typed field, heads that do not
/// divide), unsupported (latent attention).
Result<ModelShape> model_from_config(std::string_view json_text, std::string_view name);

/// The same from a file. Errors: also invalid_argument for a file that cannot be read.
Result<ModelShape> model_from_config_file(const std::filesystem::path& file);

}  // namespace v1
}  // namespace leanattn
