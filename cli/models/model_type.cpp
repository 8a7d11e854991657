#include "cli/models/model_type.hpp"

#include <map>

namespace leanattn {
inline namespace v1 {

/// The text of data/model_types.json; defined in a file that the build writes.
std::string_view embedded_model_types();

namespace {

struct ModelTypes {
  std::string version;
  std::map<std::string, ModelType, std::less<>> types;
};

const ModelTypes& model_types() {
  static const ModelTypes types = [] {
    const nlohmann::json document = nlohmann::json::parse(embedded_model_types());
    ModelTypes read{.version = document.at("transformers"), .types = {}};
    for (const auto& [name, entry] : document.at("types").items()) read.types[name] = {.name = name, .entry = entry};
    for (const auto& name : document.at("encoders"))
      read.types[name] = {.name = name, .entry = nlohmann::json::object({{"encodes", true}})};
    return read;
  }();
  return types;
}

}  // namespace

const ModelType& model_type(std::string_view name) {
  const auto& types = model_types().types;
  const auto found = types.find(name);
  return found != types.end() ? found->second : types.at("");
}

std::string_view model_types_version() { return model_types().version; }

}  // namespace v1
}  // namespace leanattn
