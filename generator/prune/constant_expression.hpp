// constant_expression.hpp -- the value of a constant expression, as far as it is known. Any thread.
// Internal to this folder.
#pragma once

#include <optional>
#include <string_view>
#include <unordered_map>

namespace leanattn {
inline namespace v1 {
namespace prune {

using Value = std::optional<double>;
using Constants = std::unordered_map<std::string_view, double>;

/// The value of an expression of numbers, names of constants and operators; nullopt where that depends on anything
/// else. Divisions are of integers.
Value constant_value(std::string_view expression, const Constants& constants);

}  // namespace prune
}  // namespace v1
}  // namespace leanattn
