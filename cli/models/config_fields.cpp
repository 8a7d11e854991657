#include "cli/models/config_fields.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "cli/models/read_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

/// Transformers writes Infinity as {"__float__": "Infinity"}.
bool is_special_float(const Json& value) {
  return value.is_object() && value.size() == 1 && value.contains("__float__");
}

std::optional<double> number_of(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

/// In front of a field: only where per_layer_config has it.
constexpr std::string_view kOwn = "own:";

std::string short_dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80);
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

}  // namespace

Result<ConfigFields> ConfigFields::of(const Json& object, const ModelType& type, std::string_view file) {
  ConfigFields fields;
  fields.object_ = &object;
  fields.type_ = &type;
  fields.file_ = file;
  const auto listed = object.find("per_layer_config");
  if (listed == object.end() || listed->is_null()) return fields;
  if (!listed->is_object())
    return bad_config(file, fmt::format("\"per_layer_config\" is {}, not an object", short_dump(*listed)));
  for (const auto& [key, overrides] : listed->items()) {
    const std::optional<double> layer = number_of(key);  // padded with zeros to the width of the last one
    if (!layer || *layer < 0 || *layer != std::floor(*layer) || !overrides.is_object())
      return bad_config(file, fmt::format("\"per_layer_config\" has \"{}\": {}, which are not the fields of a layer",
                                          key.substr(0, 80), short_dump(overrides)));
    fields.per_layer_[static_cast<int>(std::min(*layer, 1e9))] = &overrides;
  }
  return fields;
}

const Json* ConfigFields::present(const Json& object, std::string_view name) const {
  if (const auto it = object.find(name); it != object.end()) return &*it;
  const auto names = type_->entry.find("names");
  if (names == type_->entry.end()) return nullptr;
  const auto others = names->find(name);
  if (others == names->end()) return nullptr;
  for (const Json& other : *others) {
    if (const auto it = object.find(other.get_ref<const std::string&>()); it != object.end()) return &*it;
  }
  return nullptr;
}

const Json* ConfigFields::find(std::string_view path, int layer) const {
  const std::string_view first = path.substr(0, path.find('.'));
  const Json* value = nullptr;
  if (const auto own = per_layer_.find(layer); own != per_layer_.end()) value = present(*own->second, first);
  if (value == nullptr) value = present(*object_, first);
  if (const auto defaults = type_->entry.find("defaults"); defaults != type_->entry.end()) {
    // A default of "outer.inner" stands for that one field, and is asked where the file has no such field.
    const bool inner = path.size() > first.size();
    const bool given =
        value != nullptr && (!inner || (value->is_object() && value->contains(path.substr(first.size() + 1))));
    if (!given) {
      const auto it = defaults->find(path);
      if (it != defaults->end()) return &*it;
    }
  }
  std::string_view rest = path.substr(std::min(first.size() + 1, path.size()));
  while (value != nullptr && !rest.empty()) {
    if (value->is_array() && layer >= 0)
      value = static_cast<std::size_t>(layer) < value->size() ? &(*value)[static_cast<std::size_t>(layer)] : nullptr;
    if (value == nullptr || !value->is_object()) return nullptr;
    const std::string_view name = rest.substr(0, rest.find('.'));
    const auto it = value->find(name);
    value = it == value->end() ? nullptr : &*it;
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
  }
  return value;
}

const Json* ConfigFields::whole(std::string_view path) const {
  const Json* value = find(path, -1);
  return value == nullptr || value->is_null() || is_special_float(*value) ? nullptr : value;
}

Result<const Json*> ConfigFields::of_layer(std::string_view path, int layer) const {
  const Json* value = find(path, layer);
  if (value != nullptr && value->is_array() && layer >= 0) {
    if (static_cast<std::size_t>(layer) >= value->size())
      return bad_config(file_, fmt::format("\"{}\" has {} entries, and none for layer {}", path, value->size(), layer));
    value = &(*value)[static_cast<std::size_t>(layer)];
  }
  return value == nullptr || value->is_null() || is_special_float(*value) ? nullptr : value;
}

Result<std::optional<double>> ConfigFields::number(std::string_view word, int layer) const {
  if (const auto constant = number_of(word)) return constant;
  const bool own = word.starts_with(kOwn);
  if (own) word.remove_prefix(kOwn.size());
  if (own && (!per_layer_.contains(layer) || present(*per_layer_.at(layer), word) == nullptr)) return std::nullopt;
  const auto value = of_layer(word, layer);
  if (!value) return tl::unexpected(value.error());
  if (*value == nullptr) return std::nullopt;
  if (!(*value)->is_number())
    return bad_config(file_, fmt::format("\"{}\" is {}, not a whole number", word, short_dump(**value)));
  const auto number = (*value)->get<double>();
  if (!std::isfinite(number) || number < 0 || number > std::numeric_limits<int>::max())
    return bad_config(file_, fmt::format("\"{}\" is {}, which is out of range", word, short_dump(**value)));
  return number;
}

Result<std::optional<std::string_view>> ConfigFields::behind_flags(std::string_view expression, int layer) const {
  for (std::size_t question; (question = expression.find(" ? ")) != std::string_view::npos;) {
    std::string_view flag = expression.substr(0, question);
    const bool wanted = !flag.starts_with('!');
    if (!wanted) flag.remove_prefix(1);
    const auto value = of_layer(flag, layer);
    if (!value) return tl::unexpected(value.error());
    const bool set = *value != nullptr && !(**value == false) && !(**value == 0);
    if (set != wanted) return std::nullopt;
    expression.remove_prefix(question + 3);
  }
  return expression;
}

Result<std::optional<double>> ConfigFields::evaluate(std::string_view expression, int layer) const {
  const auto plain = behind_flags(expression, layer);
  if (!plain) return tl::unexpected(plain.error());
  if (!*plain) return std::nullopt;
  const std::vector<std::string_view> words = words_of(**plain);
  Result<std::optional<double>> result = number(words.front(), layer);
  for (std::size_t i = 1; result && *result && i + 1 < words.size(); i += 2) {
    const auto operand = number(words[i + 1], layer);
    if (!operand) return operand;
    if (!*operand) return std::nullopt;
    double& value = **result;
    if (words[i] == "+") value += **operand;
    if (words[i] == "*") value *= **operand;
    if (words[i] == "/") {
      if (**operand == 0) return bad_config(file_, fmt::format("\"{}\" is 0, which is out of range", words[i + 1]));
      // What other types do where a division leaves a rest is not known.
      if (type_->is_general() && std::fmod(value, **operand) != 0)
        return bad_config(file_, fmt::format("\"{}\" is {}, which is not a multiple of \"{}\", {}", words[i - 1], value,
                                             words[i + 1], **operand));
      value = std::floor(value / **operand);
    }
  }
  return result;
}

Result<std::optional<double>> ConfigFields::first_of(const Json& expressions, int layer) const {
  for (const Json& expression : expressions) {
    auto value = evaluate(expression.get_ref<const std::string&>(), layer);
    if (!value || *value) return value;
  }
  return std::nullopt;
}

}  // namespace v1
}  // namespace leanattn
