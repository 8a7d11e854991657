// score_expression.hpp -- the language of score expressions: text in, CUDA source of the same meaning out. A text is
// parsed into a tree and the source is printed from the tree, so that no text of a user reaches a compiler. Pure
// functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// Longest score expression in characters.
inline constexpr std::size_t kMostScoreCharacters = 512;

/// The CUDA expression that a score expression stands for, in terms of `float score` and `int q_index, kv_index, head`.
/// The language has C's precedence and its types int and float:
///   numbers      3, 0x10 (int); 0.5, 2e-3, 1.0f (float)
///   names        score (float), q_index, kv_index, head (int)
///   operators    + - * / % (of ints), comparisons, && || !, ?: and parentheses
///   conversions  (float)x, (int)x, float(x), int(x)
///   functions    those of score_functions(), of floats also without the f at the end: tanh(score)
/// An int that meets a float becomes one. Equal trees print as equal texts, and what is printed is read as the same
/// tree again. Errors: invalid_argument; the message says at which character, and shows the place with a caret.
Result<std::string> score_source(std::string_view text);

/// The names of the functions, separated by ", ": for messages and documentation.
std::string score_functions();

}  // namespace v1
}  // namespace leanattn
