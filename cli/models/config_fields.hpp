// config_fields.hpp -- ConfigFields: the fields of a config.json as each layer sees them. Any thread. Internal to this
// folder.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/models/model_type.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// A field of a layer is that of its entry in per_layer_config, else that of the file, under its own name or one that
/// stands for it, else the default of the model type. Where a field is a list, the layer has its entry of it. The
/// object and the type must outlive this.
class ConfigFields {
 public:
  /// Errors: invalid_argument, when per_layer_config is no map from layers to fields.
  static Result<ConfigFields> of(const nlohmann::json& object, const ModelType& type, std::string_view file);

  /// A field of the whole model, lists as they are; "outer.inner" goes into objects. nullptr: absent or null.
  const nlohmann::json* whole(std::string_view path) const;
  /// A field of one layer, and not a list. Errors: invalid_argument, when a list is too short.
  Result<const nlohmann::json*> of_layer(std::string_view path, int layer) const;

  /// What an expression gives for a layer; nullopt: null. data/model_types.json has expressions: "field", "a / b"
  /// (floored), "2 * a / b", "a + 1", a number, and "flag ? expression" or "!flag ? expression". Errors:
  /// invalid_argument, naming a field that is not a number from 0 to INT_MAX.
  Result<std::optional<double>> evaluate(std::string_view expression, int layer) const;
  /// What is behind the flags of an expression; nullopt: one of them is not as it should be. Errors: invalid_argument.
  Result<std::optional<std::string_view>> behind_flags(std::string_view expression, int layer) const;
  /// The first of these expressions that is not null.
  Result<std::optional<double>> first_of(const nlohmann::json& expressions, int layer) const;

  const ModelType& type() const { return *type_; }
  const nlohmann::json& object() const { return *object_; }
  std::string_view file() const { return file_; }

 private:
  const nlohmann::json* present(const nlohmann::json& object, std::string_view name) const;
  const nlohmann::json* find(std::string_view path, int layer) const;
  Result<std::optional<double>> number(std::string_view word, int layer) const;

  const nlohmann::json* object_ = nullptr;
  const ModelType* type_ = nullptr;
  std::string file_;
  std::map<int, const nlohmann::json*> per_layer_;
};

}  // namespace v1
}  // namespace leanattn
