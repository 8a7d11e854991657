// model_config.cpp -- the fields of config.json under the names that model families use.
#include "cli/flags/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "generator/parse_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLargestFile = std::size_t{16} << 20;

tl::unexpected<Error> bad(std::string_view name, std::string message) {
  return fail(ErrorCode::invalid_argument, fmt::format("{}: {}", name, message),
              "Give a config.json as Hugging Face transformers writes it, or --heads, --kv-heads and --head-dim.");
}

/// The first of these keys that is present and not null.
template <std::size_t N>
const Json* first_of(const Json& object, const std::array<const char*, N>& keys, const char** found = nullptr) {
  for (const char* key : keys) {
    const auto it = object.find(key);
    if (it != object.end() && !it->is_null()) {
      if (found != nullptr) *found = key;
      return &*it;
    }
  }
  return nullptr;
}

/// The number under the first of these keys that is present; 0 when none is.
template <std::size_t N>
Result<int> positive(const Json& object, std::string_view name, const std::array<const char*, N>& keys) {
  const char* key = "";
  const Json* value = first_of(object, keys, &key);
  if (value == nullptr) return 0;
  if (!value->is_number_integer())
    return bad(name, fmt::format("\"{}\" is {}, not a whole number", key, value->dump()));
  const std::optional<int> number = integer_of<int>(*value);
  if (!number || *number < 1) return bad(name, fmt::format("\"{}\" is {}, which is out of range", key, value->dump()));
  return *number;
}

bool flag(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

/// The type of the weights as the file names it; empty: it does not say.
std::string dtype_name_of(const Json& object) {
  const Json* value = first_of(object, std::array{"torch_dtype", "dtype"});
  return value == nullptr || !value->is_string() ? std::string() : value->get<std::string>();
}

/// The number of KV heads, under the names of the families. 0: the file does not say, so that every query head has its
/// own.
Result<int> kv_heads_of(const Json& object, std::string_view name) {
  // In Falcon's first generation and in GPT-BigCode "multi_query" means one KV head, whatever num_kv_heads says.
  if (flag(object, "multi_query") && !flag(object, "new_decoder_architecture")) return 1;
  // ChatGLM calls its KV heads groups.
  if (flag(object, "multi_query_attention")) {
    return positive(object, name, std::array{"multi_query_group_num", "num_key_value_heads"});
  }
  const auto attention = object.find("attn_config");  // as in MPT and DBRX
  if (attention != object.end() && attention->is_object()) {
    Result<int> nested = positive(*attention, name, std::array{"kv_n_heads"});
    if (!nested || *nested != 0) return nested;
  }
  return positive(object, name, std::array{"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"});
}

/// The sliding window that every layer has, or the one that only some layers have; 0: none.
struct Windows {
  int every = 0, some = 0;
};

Result<Windows> windows_of(const Json& object, std::string_view name) {
  const auto switched = object.find("use_sliding_window");
  if (switched != object.end() && switched->is_boolean() && !switched->get<bool>()) return Windows{};
  const Result<int> window = positive(object, name, std::array{"sliding_window"});
  if (!window) return tl::unexpected(window.error());
  if (*window == 0) return Windows{};
  const Windows of_every{.every = *window}, of_some{.some = *window};
  if (const auto layers = object.find("layer_types"); layers != object.end() && layers->is_array()) {
    const auto slides = [](const Json& layer) { return layer == "sliding_attention"; };
    if (std::none_of(layers->begin(), layers->end(), slides)) return Windows{};
    return std::all_of(layers->begin(), layers->end(), slides) ? of_every : of_some;
  }
  // Without a list of layers, only the family says which layers have the window. In these families all have it.
  constexpr std::array kEveryLayer = {"mistral", "mixtral", "phi3", "starcoder2"};
  const auto family = object.find("model_type");
  const bool every = family != object.end() && std::any_of(kEveryLayer.begin(), kEveryLayer.end(),
                                                           [&](const char* known) { return *family == known; });
  return every ? of_every : of_some;
}

Result<Features> features_of(const Json& object, std::string_view name, int head_dim, int window) {
  Features features;
  features.window = window;
  if (const Json* cap = first_of(object, std::array{"attn_logit_softcapping"})) {
    if (!cap->is_number()) return bad(name, fmt::format("\"attn_logit_softcapping\" is {}, not a number", cap->dump()));
    features.soft_cap = cap->get<double>();
  }
  const Result<int> v_head_dim = positive(object, name, std::array{"v_head_dim"});
  if (!v_head_dim) return tl::unexpected(v_head_dim.error());
  if (*v_head_dim != head_dim) features.v_head_dim = *v_head_dim;
  const auto attention = object.find("attn_config");  // as in MPT
  features.alibi =
      flag(object, "alibi") || (attention != object.end() && attention->is_object() && flag(*attention, "alibi"));
  const auto family = object.find("model_type");
  features.sink_logits = family != object.end() && *family == "gpt_oss";
  return features;
}

}  // namespace

Result<ModelShape> model_from_config(std::string_view json_text, std::string_view name) {
  const Json document = parse_json(json_text);
  if (document.is_discarded()) return bad(name, "the file is not valid JSON: " + json_fault(json_text));
  if (!document.is_object()) return bad(name, "the file is not a JSON object");

  constexpr std::array kHeadKeys = {"num_attention_heads", "n_head", "n_heads", "num_heads"};
  const Json* config = &document;
  // Multimodal models describe their language model one level further down.
  if (first_of(document, kHeadKeys) == nullptr) {
    const Json* nested = first_of(document, std::array{"text_config", "llm_config", "language_config"});
    if (nested != nullptr && nested->is_object()) config = nested;
  }
  const Result<int> q_heads = positive(*config, name, kHeadKeys);
  if (!q_heads) return tl::unexpected(q_heads.error());
  if (*q_heads == 0) return bad(name, "\"num_attention_heads\" is missing");
  std::string dtype_name = dtype_name_of(*config);
  if (dtype_name.empty()) dtype_name = dtype_name_of(document);
  std::optional<DType> dtype;
  if (dtype_name == "bfloat16") dtype = DType::bf16;
  if (dtype_name == "float16") dtype = DType::fp16;

  const Result<int> latent = positive(*config, name, std::array{"kv_lora_rank"});
  if (!latent) return tl::unexpected(latent.error());
  if (*latent != 0) {
    // With absorbed projections the query heads share one row a token: the latent vector, then the rotated columns.
    const Result<int> rotated = positive(*config, name, std::array{"qk_rope_head_dim"});
    if (!rotated) return tl::unexpected(rotated.error());
    return ModelShape{.name = std::string(name),
                      .q_heads = *q_heads,
                      .kv_heads = 1,
                      .head_dim = *latent + *rotated,
                      .dtype = dtype,
                      .features = {.v_head_dim = *rotated == 0 ? 0 : *latent, .latent = true}};
  }
  Result<int> kv_heads = kv_heads_of(*config, name);
  if (!kv_heads) return tl::unexpected(kv_heads.error());
  if (*kv_heads == 0) kv_heads = *q_heads;
  if (*q_heads % *kv_heads != 0) {
    return bad(name, fmt::format("{} query heads are not a multiple of {} KV heads", *q_heads, *kv_heads));
  }

  Result<int> head_dim = positive(*config, name, std::array{"head_dim", "attention_head_dim", "kv_channels"});
  if (!head_dim) return tl::unexpected(head_dim.error());
  if (*head_dim == 0) {
    const Result<int> width = positive(*config, name, std::array{"hidden_size", "n_embd", "d_model", "dim"});
    if (!width) return tl::unexpected(width.error());
    if (*width == 0) return bad(name, "\"head_dim\" and \"hidden_size\" are both missing");
    if (*width % *q_heads != 0) {
      return bad(name, fmt::format("hidden size {} is not a multiple of {} query heads", *width, *q_heads));
    }
    head_dim = *width / *q_heads;
  }

  const Result<Windows> windows = windows_of(*config, name);
  if (!windows) return tl::unexpected(windows.error());
  Result<Features> features = features_of(*config, name, *head_dim, windows->every);
  if (!features) return tl::unexpected(features.error());
  return ModelShape{.name = std::string(name),
                    .q_heads = *q_heads,
                    .kv_heads = *kv_heads,
                    .head_dim = *head_dim,
                    .dtype = dtype,
                    .features = *std::move(features),
                    .layer_window = windows->some,
                    .other_dtype = dtype ? std::string() : dtype_name};
}

Result<ModelShape> model_from_config_file(const std::filesystem::path& file) {
  std::error_code status;
  if (std::filesystem::is_directory(file, status)) {
    return bad(file.string(), "this is a directory, not a config.json");
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return bad(file.string(), "the file cannot be read");
  std::string text(kLargestFile + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kLargestFile) return bad(file.string(), "the file is larger than 16 MiB");
  return model_from_config(text, file.string());
}

}  // namespace v1
}  // namespace leanattn
