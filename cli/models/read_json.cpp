#include "cli/models/read_json.hpp"

#include <fmt/format.h>

#include "generator/parse_json.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// The text with null for each Infinity, -Infinity and NaN that is no part of a string. The places of all else stay,
/// unless a NaN is before them in their line.
std::string without_special_floats(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool quoted = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    if (!quoted) {
      std::string_view special;
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
        if (rest.starts_with(word)) special = word;
        if (!special.empty()) break;
      }
      if (!special.empty()) {
        result += "null";
        if (special.size() > 4) result.append(special.size() - 4, ' ');
        i += special.size();
        continue;
      }
    }
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\' && i + 1 < text.size()) result += text[i++];
    result += text[i++];
  }
  return result;
}

}  // namespace

tl::unexpected<Error> bad_config(std::string_view name, std::string_view message) {
  return fail(ErrorCode::invalid_argument, fmt::format("{}: {}", name, message),
              "Give a config.json as Hugging Face transformers writes it, or --heads, --kv-heads and --head-dim.");
}

Result<nlohmann::json> read_python_json(std::string_view text, std::string_view name) {
  const std::string plain = without_special_floats(text);
  nlohmann::json document = parse_json(plain);
  if (document.is_discarded()) return bad_config(name, "the file is not valid JSON: " + json_fault(plain));
  if (!document.is_object()) return bad_config(name, "the file is not a JSON object");
  return document;
}

}  // namespace v1
}  // namespace leanattn
