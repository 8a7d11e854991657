// aliases.hpp -- names under which other programs know what this one calls otherwise. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace leanattn {
inline namespace v1 {

/// The name that this program gives to a type, a layout or a kind of rotary embedding: "fp16" for "float16",
/// "half_split" for "neox". A name that is no alias is returned as it is. Upper and lower case of an alias are the
/// same.
std::string without_alias(std::string_view name);

}  // namespace v1
}  // namespace leanattn
