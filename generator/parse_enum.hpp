// parse_enum.hpp -- one of an enum's values by its name. For the parse_* functions of this directory; any thread.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// The value whose to_string() is `text`. Errors: invalid_argument, naming the choices.
template <class Enum, std::size_t N>
Result<Enum> parse_enum(std::string_view what, std::string_view text, const std::array<Enum, N>& values) {
  std::string names;
  for (Enum value : values) {
    if (to_string(value) == text) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(value));
  }
  return fail(ErrorCode::invalid_argument, fmt::format("unknown {} '{}'", what, text),
              fmt::format("choose one of: {}", names));
}

}  // namespace v1
}  // namespace leanattn
