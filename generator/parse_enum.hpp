// parse_enum.hpp -- one of an enum's values by its name, for the parse_* functions of this directory, and the names of
// all, for help; any thread.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// Their to_string(), one after the other.
template <class Enum, std::size_t N>
std::string names_of(const std::array<Enum, N>& values, std::string_view separator) {
  std::string names;
  for (const Enum value : values) names += fmt::format("{}{}", names.empty() ? "" : separator, to_string(value));
  return names;
}

/// The value whose to_string() is `text`. Errors: invalid_argument, naming the choices.
template <class Enum, std::size_t N>
Result<Enum> parse_enum(std::string_view what, std::string_view text, const std::array<Enum, N>& values) {
  for (const Enum value : values) {
    if (to_string(value) == text) return value;
  }
  return fail(ErrorCode::invalid_argument, fmt::format("unknown {} '{}'", what, text),
              "choose one of: " + names_of(values, ", "));
}

}  // namespace v1
}  // namespace leanattn
