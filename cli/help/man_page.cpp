#include "cli/help/man_page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace leanattn {
inline namespace v1 {
namespace {

/// A text in which troff sees nothing but characters: backslashes and hyphens are written out, and no line begins with
/// a control character.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string flag_entry(const FlagText& flag) {
  std::vector<std::string> names;
  for (auto name = flag.names.rbegin(); name != flag.names.rend(); ++name)
    names.push_back(fmt::format("\\fB{}\\fR", roff(*name)));
  const bool named = flag.value.empty() || flag.value == flag.names[0];
  return fmt::format(".TP\n{}{}\n{}.\n", fmt::join(names, ", "), named ? "" : " \\fI" + roff(flag.value) + "\\fR",
                     roff(flag.text));
}

std::string flag_entries(const CommandPage& page) {
  std::string text;
  for (const FlagText& argument : page.arguments) text += flag_entry(argument);
  for (const FlagGroup& group : page.groups) {
    for (const FlagText& flag : group.flags) {
      if (flag.names.front() != "--help") text += flag_entry(flag);
    }
  }
  return text;
}

std::string example_entries(const CommandPage& page) {
  std::string text;
  for (const Example& example : page.examples)
    text += fmt::format(".PP\n{}:\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n", roff(example.says), roff(example.line));
  return text;
}

/// A command's section, and those of the commands below it. Flags that other commands share are written out for each,
/// because a reader looks for one command.
std::string command_sections(const CommandPage& page) {
  std::string text =
      fmt::format(".SS {}\n{}.\n{}{}", roff(page.name), roff(page.summary), flag_entries(page), example_entries(page));
  for (const CommandPage& below : page.commands) text += command_sections(below);
  return text;
}

}  // namespace

std::string to_man(const CommandPage& program, std::string_view version) {
  std::string text = fmt::format(
      ".TH LEANATTN 1 \"\" \"leanattn {}\" \"User Commands\"\n.SH NAME\nleanattn \\- {}\n"
      ".SH SYNOPSIS\n\\fBleanattn\\fR \\fICOMMAND\\fR [\\fIFLAGS\\fR]\n.SH DESCRIPTION\n"
      "Data goes to stdout, messages to stderr. Sizes take the binary suffixes k, m and g.\n"
      ".SH FLAGS OF EVERY COMMAND\n{}.SH COMMANDS\n",
      roff(version), roff(program.summary), flag_entries(program));
  for (const CommandPage& command : program.commands) text += command_sections(command);
  text += ".SH EXIT STATUS\n";
  for (const ExitCodeText& code : exit_code_texts()) text += fmt::format(".TP\n{}\n{}.\n", code.code, roff(code.text));
  text += fmt::format(
      ".SH ENVIRONMENT\n.TP\nLEANATTN_CACHE_DIR\nThe cache directory.\n.TP\nNO_COLOR\nNo colour.\n.PP\n"
      "{}\n.SH FILES\n.TP\n~/.cache/leanattn/tuning.db\nWhat was measured.\n.TP\n~/.cache/leanattn/cubin.db\n"
      "Compiled kernels, which may be deleted at any time.\n.SH EXAMPLES\n{}",
      roff("`leanattn doctor` says what every other LEANATTN_ variable that is set is worth."),
      example_entries(program));
  return text;
}

}  // namespace v1
}  // namespace leanattn
