#include "cli/models/model_catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "cli/console/suggestions.hpp"

namespace leanattn {
inline namespace v1 {

// The numbers are those of the models' published config.json files. Every other layer of gemma-2 and gpt-oss has a
// window, and five of six layers of gemma-3. Models with latent attention are given with absorbed projections: one KV
// head as wide as the latent vector and the rotated columns, and for tensor parallelism (tp) a share of the query
// heads.
std::span<const ModelShape> model_catalogue() {
  static const std::array kModels = {
      ModelShape{"llama-2-7b", 32, 32, 128, DType::fp16},
      ModelShape{"llama-3-8b", 32, 8, 128, DType::bf16},
      ModelShape{"llama-3-70b", 64, 8, 128, DType::bf16},
      ModelShape{"llama-3.1-8b", 32, 8, 128, DType::bf16},
      ModelShape{"llama-3.1-70b", 64, 8, 128, DType::bf16},
      ModelShape{"llama-3.1-405b", 128, 8, 128, DType::bf16},
      ModelShape{"mistral-7b", 32, 8, 128, DType::bf16},
      ModelShape{"qwen2.5-7b", 28, 4, 128, DType::bf16},
      ModelShape{"qwen3-0.6b", 16, 8, 128, DType::bf16},
      ModelShape{"qwen3-1.7b", 16, 8, 128, DType::bf16},
      ModelShape{"qwen3-4b", 32, 8, 128, DType::bf16},
      ModelShape{"qwen3-8b", 32, 8, 128, DType::bf16},
      ModelShape{"qwen3-14b", 40, 8, 128, DType::bf16},
      ModelShape{"qwen3-32b", 64, 8, 128, DType::bf16},
      ModelShape{"qwen3-30b-a3b", 32, 4, 128, DType::bf16},
      ModelShape{"qwen3-235b-a22b", 64, 4, 128, DType::bf16},
      ModelShape{"phi-3-medium", 40, 10, 128, DType::bf16},
      ModelShape{"gemma-2-9b", 16, 8, 256, DType::bf16, {.soft_cap = 50}, 4096},
      ModelShape{"gemma-3-1b", 4, 1, 256, DType::bf16, {}, 512},
      ModelShape{"gemma-3-4b", 8, 4, 256, DType::bf16, {}, 1024},
      ModelShape{"gemma-3-12b", 16, 8, 256, DType::bf16, {}, 1024},
      ModelShape{"gemma-3-27b", 32, 16, 128, DType::bf16, {}, 1024},
      ModelShape{"gpt-oss-20b", 64, 8, 64, DType::bf16, {.sink_logits = true}, 128},
      ModelShape{"gpt-oss-120b", 64, 8, 64, DType::bf16, {.sink_logits = true}, 128},
      ModelShape{"deepseek-v2-lite", 16, 1, 576, DType::bf16, {.v_head_dim = 512, .latent = true}},
      ModelShape{"deepseek-v3", 128, 1, 576, DType::bf16, {.v_head_dim = 512, .latent = true}},
      ModelShape{"deepseek-v3-tp8", 16, 1, 576, DType::bf16, {.v_head_dim = 512, .latent = true}},
      ModelShape{"deepseek-v3-tp16", 8, 1, 576, DType::bf16, {.v_head_dim = 512, .latent = true}},
      ModelShape{"kimi-k2", 64, 1, 576, DType::bf16, {.v_head_dim = 512, .latent = true}},
      ModelShape{"kimi-k2-tp8", 8, 1, 576, DType::bf16, {.v_head_dim = 512, .latent = true}},
      ModelShape{"glm-4.7-flash", 20, 1, 576, DType::bf16, {.v_head_dim = 512, .latent = true}},
      ModelShape{"glm-5", 64, 1, 576, DType::bf16, {.v_head_dim = 512, .latent = true}},
      ModelShape{"glm-5-tp8", 8, 1, 576, DType::bf16, {.v_head_dim = 512, .latent = true}},
      ModelShape{"opt-1.3b", 32, 32, 64, DType::fp16},
      ModelShape{"opt-6.7b", 32, 32, 128, DType::fp16},
  };
  return kModels;
}

ModelShapes shapes_of(const ModelShape& model) {
  ModelShapes shapes{.name = model.name, .dtype = model.dtype};
  shapes.shapes.push_back(
      {.q_heads = model.q_heads, .kv_heads = model.kv_heads, .head_dim = model.head_dim, .features = model.features});
  if (model.layer_window > 0) {
    shapes.shapes.push_back(shapes.shapes.front());
    shapes.shapes.back().features.window = model.layer_window;
  }
  return shapes;
}

Result<ModelShape> find_model(std::string_view name) {
  const auto same_letters = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  std::vector<std::string> known;
  for (const ModelShape& model : model_catalogue()) {
    if (std::equal(model.name.begin(), model.name.end(), name.begin(), name.end(), same_letters)) return model;
    known.push_back(model.name);
  }
  return fail(ErrorCode::invalid_argument, fmt::format("--model '{}' is not a built-in model", name),
              fmt::format("{}`leanattn models` lists the built-in ones. For any other, give --model-config config.json "
                          "or --heads, --kv-heads and --head-dim.",
                          did_you_mean(name, known)));
}

}  // namespace v1
}  // namespace leanattn
