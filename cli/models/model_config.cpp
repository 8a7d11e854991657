// model_config.cpp -- from a file to the part that decodes, and from its layers to shapes.
#include "cli/models/model_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "cache/files.hpp"
#include "cli/models/layer_kinds.hpp"
#include "cli/models/layer_shape.hpp"
#include "cli/models/read_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLargestFile = std::size_t{16} << 20;

const Json* object_in(const Json& object, std::string_view key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? &*it : nullptr;
}

std::string text_in(const Json& object, std::string_view key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

/// The part of a file that decodes, and its type.
struct Decoder {
  const Json* object;
  const ModelType* type;
};

/// Models of several parts describe their decoder one level further down, or two.
Decoder decoder_of(const Json& document) {
  static const Json kNothing = Json::object();
  Decoder decoder{&document, &model_type(text_in(document, "model_type"))};
  for (int level = 0; level < 8; ++level) {
    const Json* inner = nullptr;
    std::string default_type;
    if (const std::string field = decoder.type->decoder(); !field.empty()) {
      default_type = decoder.type->entry.value("decoder_type", std::string());
      inner = object_in(*decoder.object, field);
      if (inner == nullptr) {
        // Files of older versions have the fields of the decoder at the top.
        if (decoder.object->contains("num_attention_heads") || decoder.object->contains("hidden_size"))
          return {decoder.object, &model_type(default_type)};
        inner = object_in(decoder.type->entry, "decoder_fields");
        if (inner == nullptr) inner = &kNothing;
      }
    } else if (decoder.type->is_general()) {
      for (const Json& field : decoder.type->entry.at("decoders")) {
        if (inner == nullptr) inner = object_in(*decoder.object, field.get_ref<const std::string&>());
      }
      // A file that has heads at the top as well is about these.
      if (inner != nullptr &&
          std::any_of(decoder.type->entry.at("heads").begin(), decoder.type->entry.at("heads").end(),
                      [&](const Json& key) { return decoder.object->contains(key.get_ref<const std::string&>()); }))
        inner = nullptr;
    }
    if (inner == nullptr) break;
    const std::string own = text_in(*inner, "model_type");
    const ModelType& own_type = model_type(own);
    // Published files have types within others that Transformers does not know, and passes over.
    decoder = {inner, own_type.is_general() ? &model_type(default_type) : &own_type};
  }
  return decoder;
}

/// A field that may matter and that nothing is known of, in a file of an unknown type; empty: none.
std::string unknown_field(const Decoder& decoder) {
  if (!decoder.type->is_general()) return "";
  const Json& entry = decoder.type->entry;
  for (const auto& [key, value] : decoder.object->items()) {
    if (value.is_null() || value == false || value == 0 || value.empty()) continue;
    const auto is_part = [&name = key](const Json& part) {
      return name.find(part.get_ref<const std::string&>()) != std::string::npos;
    };
    const auto is_name = [&name = key](const Json& known) { return known == name; };
    if (std::any_of(entry.at("suspicious").begin(), entry.at("suspicious").end(), is_part) &&
        std::none_of(entry.at("known").begin(), entry.at("known").end(), is_name))
      return key;
  }
  return "";
}

std::string in_words(std::string kind) {
  std::replace(kind.begin(), kind.end(), '_', ' ');
  return kind;
}

/// Puts a layer to those that are like it.
void add(ModelShapes& model, LayerShape shape, int layer) {
  const auto alike = std::find_if(model.shapes.begin(), model.shapes.end(), [&](const LayerShape& other) {
    LayerShape same = other;
    same.layers = {};
    same.kind = shape.kind;
    return same == shape;
  });
  if (alike != model.shapes.end()) {
    alike->layers.push_back(layer);
  } else {
    shape.layers = {layer};
    model.shapes.push_back(std::move(shape));
  }
}

void add_recurrent(ModelShapes& model, const RecurrentProblem& problem, int layer) {
  const auto alike = std::find_if(model.recurrent.begin(), model.recurrent.end(),
                                  [&](const RecurrentLayers& other) { return other.problem == problem; });
  if (alike != model.recurrent.end()) {
    alike->layers.push_back(layer);
  } else {
    model.recurrent.push_back({.problem = problem, .layers = {layer}});
  }
}

void add_other(ModelShapes& model, const std::string& what) {
  const auto alike = std::find_if(model.others.begin(), model.others.end(),
                                  [&](const OtherLayers& other) { return other.what == what; });
  if (alike != model.others.end()) {
    ++alike->layers;
  } else {
    model.others.push_back({.layers = 1, .what = what});
  }
}

void read_dtype(const Json& document, const Json& decoder, ModelShapes& model) {
  std::string name;
  for (const Json* object : {&decoder, &document}) {
    for (const char* key : {"torch_dtype", "dtype"}) {
      if (name.empty()) name = text_in(*object, key);
    }
  }
  if (name == "bfloat16") model.dtype = DType::bf16;
  if (name == "float16") model.dtype = DType::fp16;
  if (!model.dtype) model.other_dtype = name;
}

tl::unexpected<Error> no_decoder(std::string_view name, std::string message) {
  return fail(
      ErrorCode::unsupported, fmt::format("{}: {}", name, message),
      "This is about attention to a KV cache while text is generated. If the model has a part that does so, give "
      "--heads, --kv-heads and --head-dim of that part. Layers with a recurrent state are for `leanattn recurrent`.");
}

/// All layers of a model, whether or not any of them is attention.
Result<ModelShapes> read_model(std::string_view json_text, std::string_view name) {
  const Result<Json> document = read_python_json(json_text, name);
  if (!document) return tl::unexpected(document.error());
  const Decoder decoder = decoder_of(*document);
  if (decoder.type->encodes())
    return no_decoder(name, fmt::format("a model of model_type \"{}\" does not decode", decoder.type->name));
  if (const std::string field = unknown_field(decoder); !field.empty()) {
    const std::string type = text_in(*decoder.object, "model_type");
    return bad_config(name,
                      fmt::format("\"{}\" is not known, and {}", field.substr(0, 80),
                                  type.empty() ? "there is no \"model_type\" to say what it means"
                                               : fmt::format("neither is the model_type \"{}\"", type.substr(0, 80))));
  }
  const Result<ConfigFields> fields = ConfigFields::of(*decoder.object, *decoder.type, name);
  if (!fields) return tl::unexpected(fields.error());
  const auto kinds = layer_kinds(*fields);
  if (!kinds) return tl::unexpected(kinds.error());

  ModelShapes model{.name = std::string(name), .model_type = decoder.type->name};
  model.layers = static_cast<int>(kinds->size());
  for (int layer = 0; layer < model.layers; ++layer) {
    const std::string& kind = (*kinds)[static_cast<std::size_t>(layer)];
    auto shape = layer_shape(*fields, kind, layer);
    if (!shape) return tl::unexpected(shape.error());
    const auto recurrent = recurrent_layer(*fields, kind, layer);
    if (!recurrent) return tl::unexpected(recurrent.error());
    if (*recurrent) add_recurrent(model, **recurrent, layer);
    if (*shape) {
      add(model, **std::move(shape), layer);
    } else {
      const Json& what = decoder.type->entry.at("kinds").at(kind);
      add_other(model, what.is_string() ? what.get<std::string>() : in_words(kind));
    }
  }
  std::stable_partition(model.shapes.begin(), model.shapes.end(),
                        [](const LayerShape& shape) { return shape.features.window == 0; });
  read_dtype(*document, *decoder.object, model);
  for (RecurrentLayers& layers : model.recurrent) layers.problem.dtype = model.dtype.value_or(DType::bf16);
  return model;
}

Result<std::string> text_of(const std::filesystem::path& file) {
  Result<std::string> text = detail::read_file(file, kLargestFile);
  if (!text) return fail(ErrorCode::invalid_argument, text.error().message, text.error().hint);
  return text;
}

int others_count(const ModelShapes& model) {
  int layers = 0;
  for (const OtherLayers& other : model.others) layers += other.layers;
  return layers;
}

/// "linear attention and MLPs".
std::string others_of(const ModelShapes& model) {
  std::vector<std::string> others;
  for (const OtherLayers& other : model.others) others.push_back(other.what);
  return fmt::format("{}", fmt::join(others, " and "));
}

}  // namespace

Result<ModelShapes> model_from_config(std::string_view json_text, std::string_view name) {
  auto model = read_model(json_text, name);
  if (model && model->shapes.empty())
    return no_decoder(name, fmt::format("no layer is attention to a KV cache; its {} layers are {}", model->layers,
                                        others_of(*model)));
  return model;
}

Result<ModelShapes> model_from_config_file(const std::filesystem::path& file) {
  const auto text = text_of(file);
  return text ? model_from_config(*text, file.string()) : tl::unexpected(text.error());
}

Result<RecurrentProblem> recurrent_from_config(std::string_view json_text, std::string_view name) {
  const std::string by_hand = "--kind, --qk-heads, --v-heads, --key-dim and --value-dim";
  auto model = read_model(json_text, name);
  if (!model) {
    model.error().hint =
        "Give a config.json as Hugging Face transformers writes it, or " + by_hand + " where it has such a state.";
    return tl::unexpected(std::move(model.error()));
  }
  if (model->recurrent.empty())
    return fail(ErrorCode::unsupported,
                model->others.empty()
                    ? fmt::format("{}: all of its layers are attention to a KV cache", name)
                    : fmt::format("{}: which recurrent state its layers have is not known; {} of {} are {}", name,
                                  others_count(*model), model->layers, others_of(*model)),
                "Give " + by_hand + " where it has such a state.");
  if (model->recurrent.size() > 1)
    return fail(ErrorCode::unsupported, fmt::format("{}: its layers have recurrent states of several sizes", name),
                "Give " + by_hand + " of each.");
  return model->recurrent.front().problem;
}

Result<RecurrentProblem> recurrent_from_config_file(const std::filesystem::path& file) {
  const auto text = text_of(file);
  return text ? recurrent_from_config(*text, file.string()) : tl::unexpected(text.error());
}

}  // namespace v1
}  // namespace leanattn
