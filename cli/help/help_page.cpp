#include "cli/help/help_page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kTextColumn = 24;  // where the texts of flags and commands begin

/// A term and its text, side by side where the term is short enough.
std::string entry(const std::string& term, std::string_view text) {
  std::string line = "  " + term;
  if (line.size() + 2 > kTextColumn) {
    line += "\n";
    line += std::string(kTextColumn, ' ');
  } else {
    line.resize(kTextColumn, ' ');
  }
  return line + wrapped(text, kHelpColumns, kTextColumn, kTextColumn) + "\n";
}

/// The short name first, as people write it: "-o, --out FILE".
std::string term_of(const FlagText& flag) {
  const std::vector<std::string> reversed(flag.names.rbegin(), flag.names.rend());
  return fmt::format("{}{}{}", fmt::join(reversed, ", "), flag.value.empty() || flag.value == flag.names[0] ? "" : " ",
                     flag.value == flag.names[0] ? "" : flag.value);
}

/// The full name of a command that has a parent: "leanattn tune".
bool is_program(const CommandPage& page) { return page.name.find(' ') == std::string::npos; }

class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override {
    std::string parents;
    for (const CLI::App* parent = app->get_parent(); parent != nullptr; parent = parent->get_parent())
      parents.insert(0, parents.empty() ? parent->get_name() : parent->get_name() + " ");
    return to_help(describe_command(*app, parents));
  }
};

}  // namespace

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent, std::size_t at) {
  std::string out;
  bool first = true;  // on its line
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (!first && at + 1 + word.size() > columns) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
      first = true;
    }
    out += first ? "" : " ";
    out += word;
    at += word.size() + (first ? 0 : 1);
    first = false;
  }
  return out;
}

std::string to_help(const CommandPage& page) {
  std::string text = wrapped(page.summary + ".", kHelpColumns, 0, 0) + "\n\nUsage: " + page.name;
  if (!page.commands.empty()) text += " COMMAND";
  for (const FlagText& argument : page.arguments) text += " " + argument.names[0];
  text += " [FLAGS]\n";
  if (!page.commands.empty()) {
    text += "\nCommands:\n";
    for (const CommandPage& command : page.commands)
      text += entry(command.name.substr(command.name.rfind(' ') + 1), command.summary);
  }
  if (!page.arguments.empty()) text += "\nArguments:\n";
  for (const FlagText& argument : page.arguments) text += entry(term_of(argument), argument.text);
  for (const FlagGroup& group : page.groups) {
    text += "\n" + group.name + ":\n";
    for (const FlagText& flag : group.flags) text += entry(term_of(flag), flag.text);
  }
  if (!page.examples.empty()) text += "\nExamples:\n";
  for (const Example& example : page.examples) text += fmt::format("  # {}\n  {}\n", example.says, example.line);
  if (!is_program(page)) return text + "\nFlags of every command: --json, --quiet, --db DIR (see leanattn --help).\n";
  text += "\nData goes to stdout, messages to stderr. Sizes take k, m and g (binary).\nExit codes:\n";
  for (const ExitCodeText& code : exit_code_texts()) text += fmt::format("  {:>3} {}\n", code.code, code.text);
  return text;
}

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace v1
}  // namespace leanattn
