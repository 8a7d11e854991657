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

// Head counts are those of published config.json files. All norms and gates are as models have them.
// Those of Nemotron-H are in NVIDIA's Megatron Bridge (NemotronHModel8BProvider), those of MiniMax-Text-01 on its model
// card (MiniMax-AI/MiniMax-01).
std::span<const RecurrentModel> recurrent_catalogue() {
  const auto gated_delta = [](int v_heads) {
    RecurrentProblem problem = usual_problem(RecurrentKind::gated_delta);
    problem.v_heads = v_heads, problem.output_gate = OutputGate::silu;
    return problem;
  };
  const auto kda = [](int heads, Gates gates) {
    RecurrentProblem problem = usual_problem(RecurrentKind::kda);
    problem.qk_heads = problem.v_heads = heads, problem.gates = gates, problem.output_gate = OutputGate::sigmoid;
    return problem;
  };
  const auto mamba2 = [](int groups, int heads, int head_dim, int state) {
    RecurrentProblem problem = usual_problem(RecurrentKind::mamba2);
    problem.qk_heads = groups, problem.v_heads = heads, problem.key_dim = state, problem.value_dim = head_dim;
    problem.output_gate = OutputGate::silu_first, problem.norm_heads = heads / groups;
    return problem;
  };
  const auto lightning = [](int heads) {
    RecurrentProblem problem = usual_problem(RecurrentKind::lightning);
    problem.qk_heads = problem.v_heads = heads;
    return problem;
  };
  static const std::array kModels = {
      RecurrentModel{"qwen3-next-80b-a3b", gated_delta(32)},
      RecurrentModel{"qwen3.5-4b", gated_delta(32)},
      RecurrentModel{"qwen3.5-9b", gated_delta(32)},
      RecurrentModel{"qwen3.5-27b", gated_delta(48)},
      RecurrentModel{"qwen3.5-35b-a3b", gated_delta(32)},
      RecurrentModel{"qwen3.5-122b-a10b", gated_delta(64)},
      RecurrentModel{"qwen3.5-397b-a17b", gated_delta(64)},
      RecurrentModel{"kimi-linear-48b-a3b", kda(32, Gates::softplus)},
      RecurrentModel{"kimi-k3", kda(96, Gates::bounded)},
      RecurrentModel{"glm-5.3-flash", kda(64, Gates::bounded)},
      RecurrentModel{"mamba-codestral-7b", mamba2(8, 128, 64, 128)},
      RecurrentModel{"nemotron-h-8b", mamba2(8, 128, 64, 128)},
      RecurrentModel{"minimax-text-01", lightning(64)},
  };
  return kModels;
}

namespace {

bool same_name(std::string_view a, std::string_view b) {
  const auto same_letters = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_letters);
}

}  // namespace

Result<RecurrentProblem> find_recurrent_model(std::string_view name) {
  std::vector<std::string> known;
  for (const RecurrentModel& model : recurrent_catalogue()) {
    if (same_name(model.name, name)) return model.problem;
    known.push_back(model.name);
  }
  return fail(ErrorCode::invalid_argument,
              fmt::format("--model '{}' is not a built-in model with a recurrent state", name),
              fmt::format("{}`leanattn models` lists the built-in ones. For any other, give --model-config config.json "
                          "or --kind, --qk-heads and --v-heads.",
                          did_you_mean(name, known)));
}

Result<ModelShape> find_model(std::string_view name) {
  std::vector<std::string> known;
  for (const ModelShape& model : model_catalogue()) {
    if (same_name(model.name, name)) return model;
    known.push_back(model.name);
  }
  if (find_recurrent_model(name))
    return fail(ErrorCode::invalid_argument,
                fmt::format("--model '{}' is built in for its layers with a recurrent state alone", name),
                "These are for `leanattn recurrent`. For its layers with attention, give --model-config config.json or "
                "--heads, --kv-heads and --head-dim.");
  return fail(ErrorCode::invalid_argument, fmt::format("--model '{}' is not a built-in model", name),
              fmt::format("{}`leanattn models` lists the built-in ones. For any other, give --model-config config.json "
                          "or --heads, --kv-heads and --head-dim.",
                          did_you_mean(name, known)));
}

}  // namespace v1
}  // namespace leanattn
