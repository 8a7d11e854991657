#include "cli/help/completion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>

namespace leanattn {
inline namespace v1 {
namespace {

/// The command's name without the names of its parents.
std::string last_name(const CommandPage& page) { return page.name.substr(page.name.rfind(' ') + 1); }

/// Calls `visit` with a command and all below it.
void walk(const CommandPage& page, const std::function<void(const CommandPage&)>& visit) {
  visit(page);
  for (const CommandPage& command : page.commands) walk(command, visit);
}

std::vector<FlagText> flags_of(const CommandPage& page) {
  std::vector<FlagText> flags;
  for (const FlagGroup& group : page.groups) flags.insert(flags.end(), group.flags.begin(), group.flags.end());
  return flags;
}

/// The flags of a command and of those above it, which it takes as well. Of flags with the same name the command's own
/// counts.
std::vector<FlagText> flags_taken(const CommandPage& program, const CommandPage& page) {
  std::vector<FlagText> flags = flags_of(page);
  walk(program, [&](const CommandPage& above) {
    if (!page.name.starts_with(above.name + " ")) return;
    for (FlagText& flag : flags_of(above)) {
      const auto same = [&](const FlagText& own) { return own.names.front() == flag.names.front(); };
      if (std::none_of(flags.begin(), flags.end(), same)) flags.push_back(std::move(flag));
    }
  });
  return flags;
}

std::vector<std::string> names_below(const CommandPage& page) {
  std::vector<std::string> names;
  for (const CommandPage& command : page.commands) names.push_back(last_name(command));
  return names;
}

/// A text within single quotes, in which `quote` is how a shell writes a single quote.
std::string quoted(std::string_view text, std::string_view quote) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += quote;
    } else {
      out += c;
    }
  }
  return out + "'";
}

/// A text in an _arguments specification of zsh, where brackets and colons have a meaning.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const FlagText& flag) {
  if (flag.completes == Completes::file) return "_files";
  if (flag.completes == Completes::directory) return "_files -/";
  return flag.choices.empty() ? " " : fmt::format("({})", fmt::join(flag.choices, " "));
}

/// One specification for each name of a flag.
std::string zsh_flags(const std::vector<FlagText>& flags) {
  std::string text;
  for (const FlagText& flag : flags) {
    for (const std::string& name : flag.names) {
      std::string spec = fmt::format("({}){}[{}]", fmt::join(flag.names, " "), name, zsh_text(flag.text));
      if (!flag.value.empty()) spec += fmt::format(":{}:{}", zsh_text(flag.value), zsh_action(flag));
      text += " \\\n        " + quoted(spec, "'\\''");
    }
  }
  return text;
}

std::string zsh_commands(const CommandPage& page) {
  std::string list;
  for (const CommandPage& command : page.commands)
    list += fmt::format("{}{}\\:\"{}\"", list.empty() ? "" : " ", last_name(command), zsh_text(command.summary));
  return quoted(fmt::format("1:command:(({}))", list), "'\\''");
}

}  // namespace

// The function walks over the words before the cursor to find the command, and then looks at the word before it.
std::string bash_completion(const CommandPage& program) {
  std::string commands, flags, values;
  walk(program, [&](const CommandPage& page) {
    const std::string path =
        page.name.substr(page.name.find(' ') == std::string::npos ? page.name.size() : page.name.find(' ') + 1);
    for (const std::string& name : names_below(page))
      commands +=
          fmt::format("      \"{}:{}\") command=\"{}{}{}\" ;;\n", path, name, path, path.empty() ? "" : " ", name);
    std::vector<std::string> words = names_below(page);
    const std::string files = page.arguments.empty() ? "" : "; files=1";
    for (const FlagText& flag : flags_taken(program, page)) {
      words.insert(words.end(), flag.names.begin(), flag.names.end());
      if (flag.value.empty()) continue;
      std::string action = "return";
      if (flag.completes == Completes::file) action = "COMPREPLY=($(compgen -f -- \"$current\")); return";
      if (flag.completes == Completes::directory) action = "COMPREPLY=($(compgen -d -- \"$current\")); return";
      if (!flag.choices.empty())
        action = fmt::format("COMPREPLY=($(compgen -W \"{}\" -- \"$current\")); return", fmt::join(flag.choices, " "));
      for (const std::string& name : flag.names) values += fmt::format("    \"{}:{}\") {} ;;\n", path, name, action);
    }
    flags += fmt::format("    \"{}\") words=\"{}\"{} ;;\n", path, fmt::join(words, " "), files);
  });
  return fmt::format(
      "# Completion of leanattn for bash, written by `leanattn completion bash`.\n"
      "_leanattn() {{\n"
      "  local current=\"${{COMP_WORDS[COMP_CWORD]}}\" before=\"${{COMP_WORDS[COMP_CWORD - 1]}}\" command=\"\" "
      "words=\"\""
      " files=0 i\n"
      "  COMPREPLY=()\n"
      "  if [[ $current == \"=\" ]]; then current=\"\"; fi\n"
      "  if [[ $before == \"=\" ]]; then before=\"${{COMP_WORDS[COMP_CWORD - 2]}}\"; fi\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$command:${{COMP_WORDS[i]}}\" in\n{}    esac\n"
      "  done\n"
      "  case \"$command:$before\" in\n{}  esac\n"
      "  case \"$command\" in\n{}  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  if ((files)) && [[ $current != -* ]]; then COMPREPLY+=($(compgen -f -- \"$current\")); fi\n"
      "}}\n"
      "complete -o filenames -F _leanattn leanattn\n",
      commands, values, flags);
}

std::string zsh_completion(const CommandPage& program) {
  std::string text =
      "#compdef leanattn\n"
      "# Completion of leanattn for zsh, written by `leanattn completion zsh`.\n"
      "_leanattn() {\n"
      "  local curcontext=\"$curcontext\" state line\n"
      "  typeset -A opt_args\n";
  text += fmt::format("  _arguments -C{} \\\n        {} '*::argument:->argument'\n", zsh_flags(flags_of(program)),
                      zsh_commands(program));
  text += "  [[ $state == argument ]] || return\n  case $words[1] in\n";
  for (const CommandPage& command : program.commands) {
    const std::string flags = zsh_flags(flags_taken(program, command));
    text += fmt::format("    {})\n", last_name(command));
    if (command.commands.empty()) {
      text += fmt::format("      _arguments{}{}\n", flags, command.arguments.empty() ? "" : " '*:file:_files'");
    } else {
      text += fmt::format("      _arguments -C{} \\\n        {} '*::argument:->below'\n", flags, zsh_commands(command));
      text += "      [[ $state == below ]] || return\n      case $words[1] in\n";
      for (const CommandPage& below : command.commands) {
        text += fmt::format("        {}) _arguments{}{} ;;\n", last_name(below), zsh_flags(flags_taken(program, below)),
                            below.arguments.empty() ? "" : " '*:file:_files'");
      }
      text += "      esac\n";
    }
    text += "      ;;\n";
  }
  return text + "  esac\n}\n_leanattn \"$@\"\n";
}

std::string fish_completion(const CommandPage& program) {
  std::string text =
      "# Completion of leanattn for fish, written by `leanattn completion fish`.\n"
      "complete -c leanattn -f\n";
  const auto add = [&](const std::string& condition, const std::string& rest) {
    text += fmt::format("complete -c leanattn{}{}\n", condition.empty() ? "" : " -n " + quoted(condition, "\\'"), rest);
  };
  walk(program, [&](const CommandPage& page) {
    // The words of the path, each of which has to be on the command line.
    std::string condition;
    for (std::size_t at = page.name.find(' '); at != std::string::npos; at = page.name.find(' ', at + 1)) {
      const std::string word = page.name.substr(at + 1, page.name.find(' ', at + 1) - at - 1);
      condition += fmt::format("{}__fish_seen_subcommand_from {}", condition.empty() ? "" : "; and ", word);
    }
    std::string open = condition.empty() ? "__fish_use_subcommand" : condition;
    if (!condition.empty() && !page.commands.empty())
      open += fmt::format("; and not __fish_seen_subcommand_from {}", fmt::join(names_below(page), " "));
    for (const CommandPage& command : page.commands)
      add(open, fmt::format(" -a {} -d {}", last_name(command), quoted(command.summary, "\\'")));
    if (!page.arguments.empty()) add(condition, " -F");
    for (const FlagText& flag : flags_of(page)) {
      std::string rest;
      for (const std::string& name : flag.names)
        rest += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      rest += " -d " + quoted(flag.text, "\\'");
      if (!flag.value.empty()) rest += flag.completes == Completes::nothing ? " -x" : " -r -F";
      if (!flag.choices.empty()) rest += fmt::format(" -a '{}'", fmt::join(flag.choices, " "));
      add(condition, rest);
    }
  });
  return text;
}

}  // namespace v1
}  // namespace leanattn
