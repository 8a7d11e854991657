#include "cli/models/layer_kinds.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/models/read_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Json = nlohmann::json;

constexpr int kMostLayers = 4096;

/// Published files have names that Transformers replaces when it loads them.
std::string present_name(const Json& entry, const std::string& kind) {
  const auto renamed = entry.find("renamed");
  if (renamed == entry.end()) return kind;
  return renamed->value(kind, kind);
}

Result<bool> holds(const ConfigFields& fields, const Json& rule, int layer, int layers) {
  const auto number = [&](const char* key) { return fields.first_of(rule.at(key), -1); };
  if (rule.contains("every")) {
    const auto period = number("every");
    if (!period) return tl::unexpected(period.error());
    const auto offset = rule.contains("offset") ? number("offset") : std::optional<double>(0);
    if (!offset) return tl::unexpected(offset.error());
    const int from = layer + rule.value("plus", 0) - static_cast<int>(offset->value_or(0));
    return *period && **period >= 1 && from % static_cast<int>(**period) == 0;
  }
  if (rule.contains("from")) {
    const auto first = number("from");
    if (!first) return tl::unexpected(first.error());
    return *first && layer >= **first;
  }
  if (rule.contains("last")) return layer >= layers - rule.at("last").get<int>();
  if (rule.contains("listed")) {
    const Json* list = fields.whole(rule.at("listed").get_ref<const std::string&>());
    const int origin = rule.value("origin", 0);
    return list != nullptr && list->is_array() &&
           std::any_of(list->begin(), list->end(), [&](const Json& one) { return one == layer + origin; });
  }
  if (rule.contains("of") && layers != rule.at("of").get<int>()) return false;
  if (rule.contains("at")) {
    const Json& at = rule.at("at");
    return std::find(at.begin(), at.end(), layer) != at.end();
  }
  if (rule.contains("nonzero")) {
    const auto value = number("nonzero");
    if (!value) return tl::unexpected(value.error());
    return *value && **value != 0;
  }
  if (rule.contains("given")) return fields.whole(rule.at("given").get_ref<const std::string&>()) != nullptr;
  if (rule.contains("absent")) return fields.whole(rule.at("absent").get_ref<const std::string&>()) == nullptr;
  if (rule.contains("flag")) {
    const auto flag = fields.of_layer(rule.at("flag").get_ref<const std::string&>(), layer);
    if (!flag) return tl::unexpected(flag.error());
    return *flag != nullptr && !(**flag == false) && !(**flag == 0);
  }
  return true;
}

/// The kinds that a list or a string of letters names.
Result<std::vector<std::string>> listed_kinds(const ConfigFields& fields, const std::string& field, const Json& list) {
  const Json& entry = fields.type().entry;
  std::vector<std::string> kinds;
  const auto add = [&](const std::string& word) -> Result<void> {
    const std::string kind = present_name(entry, word);
    if (!entry.at("kinds").contains(kind))
      return bad_config(
          fields.file(),
          fmt::format("\"{}\" has \"{}\", which is not a kind of layers that this version knows{}", field,
                      word.substr(0, 80), fields.type().is_general() ? "" : " of model_type " + fields.type().name));
    kinds.push_back(kind);
    return {};
  };
  if (list.is_string()) {
    for (const char letter : list.get_ref<const std::string&>()) {
      if (const auto added = add(std::string(1, letter)); !added) return tl::unexpected(added.error());
    }
    return kinds;
  }
  if (!list.is_array()) return bad_config(fields.file(), fmt::format("\"{}\" is not a list of kinds of layers", field));
  for (const Json& one : list) {
    if (!one.is_string())
      return bad_config(fields.file(), fmt::format("\"{}\" is not a list of kinds of layers", field));
    if (const auto added = add(one.get<std::string>()); !added) return tl::unexpected(added.error());
  }
  return kinds;
}

Result<int> number_of_layers(const ConfigFields& fields) {
  const Json& entry = fields.type().entry;
  const auto expressions = entry.find("layers");
  if (expressions == entry.end()) return 0;
  for (const Json& expression : *expressions) {
    const auto& field = expression.get_ref<const std::string&>();
    if (const Json* list = fields.whole(field); list != nullptr && list->is_array()) {
      if (!list->empty() && list->size() <= kMostLayers) return static_cast<int>(list->size());
    }
    const auto count = fields.evaluate(field, -1);
    if (!count) return tl::unexpected(count.error());
    if (!*count) continue;
    if (**count < 1 || **count > kMostLayers)
      return bad_config(fields.file(), fmt::format("\"{}\" is {}, which is out of range", field, **count));
    return static_cast<int>(**count);
  }
  return 0;
}

}  // namespace

Result<std::vector<std::string>> layer_kinds(const ConfigFields& fields) {
  const Json& entry = fields.type().entry;
  const Result<int> layers = number_of_layers(fields);
  if (!layers) return tl::unexpected(layers.error());
  if (const auto lists = entry.find("lists"); lists != entry.end()) {
    for (const Json& list : *lists) {
      const auto& field = list.get_ref<const std::string&>();
      const Json* value = fields.whole(field);
      if (value == nullptr || value->empty()) continue;
      Result<std::vector<std::string>> kinds = listed_kinds(fields, field, *value);
      if (!kinds) return kinds;
      if (kinds->size() > kMostLayers)
        return bad_config(fields.file(),
                          fmt::format("\"{}\" has {} layers, which is out of range", field, kinds->size()));
      // A list that is shorter repeats, as in RecurrentGemma; one that is longer tells of the layers that are there.
      const bool repeats = entry.value("repeats", std::string()) == field;
      if (repeats && *layers > 0) {
        const std::size_t period = kinds->size();
        kinds->resize(static_cast<std::size_t>(*layers));
        for (std::size_t i = period; i < kinds->size(); ++i) (*kinds)[i] = (*kinds)[i - period];
      }
      return kinds;
    }
  }
  const int count = std::max(1, *layers);
  const auto pattern = entry.find("pattern");
  if (pattern == entry.end())
    return std::vector<std::string>(static_cast<std::size_t>(count), entry.at("kinds").begin().key());
  std::vector<std::string> kinds;
  for (int layer = 0; layer < count; ++layer) {
    for (const Json& rule : *pattern) {
      const Result<bool> applies = holds(fields, rule, layer, count);
      if (!applies) return tl::unexpected(applies.error());
      if (!*applies) continue;
      if (rule.contains("unknown"))
        return bad_config(fields.file(), fmt::format("\"{}\" is missing, and nothing else says which of the {} layers "
                                                     "of this {} are of which kind",
                                                     rule.at("unknown").get<std::string>(), count,
                                                     fields.type().is_general() ? "model" : fields.type().name));
      kinds.push_back(rule.at("kind"));
      break;
    }
  }
  return kinds;
}

}  // namespace v1
}  // namespace leanattn
