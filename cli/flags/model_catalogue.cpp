#include "cli/flags/model_catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace leanattn {
inline namespace v1 {

// The numbers are those of the models' published config.json files. Every other layer of gemma-2 also has a window of
// 4096 tokens. --window gives the problem of those layers.
std::span<const ModelShape> model_catalogue() {
  static const std::array<ModelShape, 9> kModels = {{
      {"llama-2-7b", 32, 32, 128, DType::fp16},
      {"llama-3-8b", 32, 8, 128, DType::bf16},
      {"llama-3-70b", 64, 8, 128, DType::bf16},
      {"mistral-7b", 32, 8, 128, DType::bf16},
      {"qwen2.5-7b", 28, 4, 128, DType::bf16},
      {"phi-3-medium", 40, 10, 128, DType::bf16},
      {"gemma-2-9b", 16, 8, 256, DType::bf16, {.soft_cap = 50}},
      {"opt-1.3b", 32, 32, 64, DType::fp16},
      {"opt-6.7b", 32, 32, 128, DType::fp16},
  }};
  return kModels;
}

Result<ModelShape> find_model(std::string_view name) {
  const auto same_letters = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  std::string known;
  for (const ModelShape& model : model_catalogue()) {
    if (std::equal(model.name.begin(), model.name.end(), name.begin(), name.end(), same_letters)) return model;
    known += (known.empty() ? "" : ", ") + model.name;
  }
  return fail(
      ErrorCode::invalid_argument, fmt::format("--model '{}' is not a built-in model", name),
      fmt::format(
          "The built-in models are {}. For any other, give --model-config config.json or --heads, --kv-heads and "
          "--head-dim.",
          known));
}

}  // namespace v1
}  // namespace leanattn
