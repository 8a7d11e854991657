// read_json.hpp -- JSON as Python writes it. Any thread. Internal to this folder.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// The object that a text is. Python writes Infinity and NaN, which are no JSON; no field that is read here has one, so
/// they become null. `name` stands in messages. Errors: invalid_argument.
Result<nlohmann::json> read_python_json(std::string_view text, std::string_view name);

/// An error about a file: "NAME: MESSAGE".
tl::unexpected<Error> bad_config(std::string_view name, std::string_view message);

}  // namespace v1
}  // namespace leanattn
