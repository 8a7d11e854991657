// model_type.hpp -- ModelType: what is known of the configurations of a model type, from data/model_types.json. Any
// thread. Internal to this folder.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace leanattn {
inline namespace v1 {

/// One entry of data/model_types.json, which docs/model-types.md explains. It lives as long as the process.
struct ModelType {
  std::string name;      ///< empty: the general one, for types that the data does not have
  nlohmann::json entry;  ///< an object

  bool is_general() const { return name.empty(); }
  /// The type has no layer that decodes.
  bool encodes() const { return entry.contains("encodes"); }
  /// The field that describes the decoder, if it is one level further down; else empty.
  std::string decoder() const { return entry.value("decoder", std::string()); }
};

/// The type of this name, or the general one.
const ModelType& model_type(std::string_view name);

/// The version of Transformers that the data was made from.
std::string_view model_types_version();

}  // namespace v1
}  // namespace leanattn
