// help_page.hpp -- the text of --help. Pure functions; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cli/help/command_page.hpp"

namespace CLI {
class FormatterBase;
}

namespace leanattn {
inline namespace v1 {

/// The most columns that a line of help has.
inline constexpr std::size_t kHelpColumns = 80;

/// The words of a text in lines of at most `columns`, of which those after the first begin with `indent` blanks.
/// `at` is the column at which the first line begins. A word that is longer than a line stays whole.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent, std::size_t at);

/// The help of a command. The program's own also has the exit codes.
std::string to_help(const CommandPage& page);

/// What CLI11 calls to print help.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace v1
}  // namespace leanattn
