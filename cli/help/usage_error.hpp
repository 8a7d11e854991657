// usage_error.hpp -- what is wrong with a command line that CLI11 refuses, in this program's words. Main thread.
#pragma once

#include "leanattn/error.hpp"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace leanattn {
inline namespace v1 {

/// An invalid_argument error that names the word, and in its hint what may have been meant.
Error usage_error(const CLI::App& program, const CLI::ParseError& error);

}  // namespace v1
}  // namespace leanattn
