// parse_json.hpp -- text from files that anyone may have written, as JSON. Pure; any thread. Internal: not installed.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// Where a text is nested so deeply that walking it could exhaust the stack; npos: nowhere. Nothing that this project
/// writes is nested more than a few levels.
inline std::size_t too_deep_at(std::string_view text) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted) {
      i += c == '\\' ? 1 : 0;  // an escaped quote does not end the text
      continue;
    }
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    if (depth > kDeepest) return i;
  }
  return std::string_view::npos;
}

/// The parsed value. It is a discarded one if the text is no JSON or is nested too deeply.
inline nlohmann::json parse_json(std::string_view text) {
  if (too_deep_at(text) != std::string_view::npos) return nlohmann::json::value_t::discarded;
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

/// What reading JSON threw, as people may read it: without the JSON library's name and number of the error, which stand
/// in brackets in front of its texts, and in other words where its own are about C++.
inline std::string json_reason(const std::exception& error) {
  std::string why = error.what();
  const auto* of_library = dynamic_cast<const nlohmann::json::exception*>(&error);
  if (of_library == nullptr) return why;
  if (const std::size_t bracket = why.find("] "); why.starts_with('[') && bracket != std::string::npos)
    why.erase(0, bracket + 2);
  constexpr std::string_view kMust = "type must be ", kBut = ", but is ", kKey = "key '", kWith = " with ";
  const auto one = [](const std::string& type) {
    if (type == "null") return type;
    return (type.starts_with('a') || type.starts_with('o') ? "an " : "a ") + type;
  };
  const auto behind = [&](std::string_view words) { return one(why.substr(why.rfind(words) + words.size())); };
  if (why.starts_with(kMust) && why.find(kBut) != std::string::npos)  // "type must be string, but is number"
    return one(why.substr(kMust.size(), why.find(kBut) - kMust.size())) + " is expected, and not " + behind(kBut);
  if (why.starts_with(kKey))  // "key 'calls' not found"
    return why.substr(kKey.size() - 1, why.rfind('\'') + 2 - kKey.size()) + " is missing";
  if (why.starts_with("cannot use ") && why.find(kWith) != std::string::npos)  // "cannot use at() with string"
    return "an object or an array is expected, and not " + behind(kWith);
  return why;
}

/// What `read` makes of the value under a key. What it throws, and that the object has no such key, becomes a
/// std::out_of_range whose text names the key, and with it those that the value lies under: "'device': 'name' is
/// missing".
template <class Json, class Read>
auto read_key(const Json& object, const char* key, Read read) {
  const std::string name = std::string("'") + key + "'";
  if (!object.is_object()) throw std::out_of_range("an object with " + name + " is expected");
  const auto found = object.find(key);
  if (found == object.end()) throw std::out_of_range(name + " is missing");
  try {
    return read(*found);
  } catch (const std::exception& error) {
    throw std::out_of_range(name + ": " + json_reason(error));
  }
}

/// The value under a key as a T.
template <class T, class Json>
T require(const Json& object, const char* key) {
  return read_key(object, key, [](const Json& value) { return value.template get<T>(); });
}

/// Calls `read` with each element of the array under a key. What it throws names the key and the number of the element.
template <class Json, class Read>
void read_elements(const Json& object, const char* key, Read read) {
  read_key(object, key, [&](const Json& array) {
    if (!array.is_array()) throw std::out_of_range("an array is expected");
    std::size_t number = 0;
    for (const Json& element : array) {
      try {
        read(element);
      } catch (const std::exception& error) {
        throw std::out_of_range("element " + std::to_string(number) + ": " + json_reason(error));
      }
      ++number;
    }
  });
}

/// The whole number that a value is. nullopt if it is not a whole number, or outside the range of Integer: get() of the
/// JSON library would cut or wrap such a number, and has undefined behaviour for a fraction that is too large.
template <std::integral Integer, class Json>
std::optional<Integer> integer_of(const Json& value) {
  using Limits = std::numeric_limits<Integer>;
  if (value.is_number_unsigned()) {
    const auto number = value.template get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(Limits::max())) return std::nullopt;
    return static_cast<Integer>(number);
  }
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.template get<std::int64_t>();
  if (std::cmp_less(number, Limits::min()) || std::cmp_greater(number, Limits::max())) return std::nullopt;
  return static_cast<Integer>(number);
}

/// The same, where the value must be such a number. Throws std::out_of_range with a message that quotes the value.
template <std::integral Integer, class Json>
Integer require_integer(const Json& value) {
  if (const std::optional<Integer> number = integer_of<Integer>(value)) return *number;
  throw std::out_of_range(value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80) +
                          " is not a whole number of the expected range");
}

/// The same for a number that counts: not negative.
template <std::integral Integer, class Json>
Integer require_count(const Json& value) {
  const Integer number = require_integer<Integer>(value);
  if (std::cmp_less(number, 0)) throw std::out_of_range(std::to_string(number) + " is not a count");
  return number;
}

/// A number that a measurement can have: finite and not negative. Throws json::exception or std::out_of_range.
template <class Json>
double require_measured(const Json& value) {
  const auto number = value.template get<double>();
  if (!std::isfinite(number) || number < 0) throw std::out_of_range(std::to_string(number) + " is not a measurement");
  return number;
}

/// An error as JSON, and back. Throws json::exception or std::out_of_range for what is no error.
inline nlohmann::json error_json(const Error& error) {
  return {{"code", static_cast<int>(error.code)}, {"message", error.message}, {"hint", error.hint}, {"log", error.log}};
}
inline Error require_error(const nlohmann::json& json) {
  const int code = require_count<int>(json.at("code"));
  if (code == 0 || code > static_cast<int>(ErrorCode::internal))
    throw std::out_of_range(std::to_string(code) + " is no code of an error");
  return {static_cast<ErrorCode>(code), json.at("message").get<std::string>(), json.at("hint").get<std::string>(),
          json.at("log").get<std::string>()};
}

/// Why parse_json() discards a text, and where: "line 3, column 7: syntax error while parsing value - ...".
inline std::string json_fault(std::string_view text) {
  std::size_t at = too_deep_at(text);
  std::string why = "it is nested too deeply";
  if (at == std::string_view::npos) {
    try {
      [[maybe_unused]] const nlohmann::json parsed = nlohmann::json::parse(text);
      return "it is JSON";
    } catch (const nlohmann::json::parse_error& error) {
      // The position is that behind the last byte that was read. The message begins with it, too.
      at = std::min(text.size(), error.byte > 0 ? error.byte - 1 : 0);
      why = json_reason(error);
      if (const std::size_t colon = why.find(": "); colon != std::string::npos) why.erase(0, colon + 2);
    } catch (const nlohmann::json::out_of_range& error) {
      // A number that no double holds. The message has no position: "number overflow parsing '1e999'".
      why = json_reason(error);
      const std::size_t quote = std::min(why.find('\''), why.size()), end = std::min(why.rfind('\''), why.size());
      const std::string number = quote < end ? why.substr(quote + 1, end - quote - 1) : std::string();
      at = std::min(text.find(number), text.size());
    }
  }
  const std::string_view before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t column = at - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
  return "line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + why;
}

}  // namespace v1
}  // namespace leanattn
