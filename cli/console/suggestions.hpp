// suggestions.hpp -- what a misspelt word may have been meant to be. Pure functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace leanattn {
inline namespace v1 {

/// How many letters have to be inserted, left out, replaced or exchanged with their neighbour to make one word of the
/// other. Upper and lower case are the same.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that is closest to the word, or that the word begins; nullopt when all are far. Of equal ones the
/// first.
std::optional<std::string> closest(std::string_view word, std::span<const std::string> candidates);

/// "Did you mean X? " or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

}  // namespace v1
}  // namespace leanattn
