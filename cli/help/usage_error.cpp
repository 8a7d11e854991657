#include "cli/help/usage_error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string_view>

#include "cli/console/suggestions.hpp"
#include "cli/help/command_page.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

Error wrong(std::string message, std::string hint) {
  return {ErrorCode::invalid_argument, std::move(message), std::move(hint), {}};
}

std::vector<std::string> flag_names(const CommandPage& page) {
  std::vector<std::string> names;
  for (const FlagGroup& group : page.groups) {
    for (const FlagText& flag : group.flags) names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  return names;
}

std::vector<std::string> command_names(const CommandPage& page) {
  std::vector<std::string> names;
  for (const CommandPage& command : page.commands) names.push_back(command.name.substr(command.name.rfind(' ') + 1));
  return names;
}

/// The page of the command that was given, and all flags that it takes with those of the commands above it.
struct Given {
  CommandPage page;
  std::vector<std::string> flags;
};

Given given_command(const CLI::App& program) {
  Given given{describe_command(program), {}};
  given.flags = flag_names(given.page);
  for (const CLI::App* app = &program; !app->get_subcommands().empty();) {
    app = app->get_subcommands().front();
    given.page = describe_command(*app, given.page.name);
    for (std::string& name : flag_names(given.page)) given.flags.push_back(std::move(name));
  }
  return given;
}

/// Adds the commands below `page` that take a flag which the given one does not take: "emit", "recurrent emit".
void add_takers(const CommandPage& page, const std::string& flag, std::vector<std::string>& names) {
  for (const CommandPage& command : page.commands) {
    const std::vector<std::string> flags = flag_names(command);
    if (std::find(flags.begin(), flags.end(), flag) != flags.end())
      names.push_back(command.name.substr(command.name.find(' ') + 1));
    add_takers(command, flag, names);
  }
}

Error unknown_flag(const CLI::App& program, const Given& given, const std::string& flag) {
  std::vector<std::string> takers;
  add_takers(describe_command(program), flag, takers);
  if (!takers.empty()) {
    return wrong(fmt::format("{} does not take {}", given.page.name, flag),
                 fmt::format("These commands take it: {}.", fmt::join(takers, ", ")));
  }
  std::string hint = did_you_mean(flag, given.flags);
  if (hint.empty()) hint = did_you_mean("--" + flag.substr(flag.find_first_not_of('-')), given.flags);
  return wrong(fmt::format("{} has no flag {}", given.page.name, flag),
               fmt::format("{}{} --help lists the flags.", hint, given.page.name));
}

/// The error of a flag's value in this program's words. CLI11's are "--seed: 1 required N missing" and "Could not
/// convert: --seed = x"; nullopt: it has others.
std::optional<Error> wrong_value(const std::string& message, const std::string& hint) {
  constexpr std::string_view kConvert = "Could not convert: ";
  if (const std::size_t equals = message.find(" = "); message.starts_with(kConvert) && equals != std::string::npos) {
    const std::string flag = message.substr(kConvert.size(), equals - kConvert.size());
    return wrong(fmt::format("{} '{}' is not a number", flag, message.substr(equals + 3)), hint);
  }
  if (const std::size_t colon = message.find(": 1 required "); colon != std::string::npos)
    return wrong(fmt::format("{} needs a value", message.substr(0, colon)), hint);
  return std::nullopt;
}

/// What to say of words that nothing took.
Error unknown_word(const CLI::App& program, const std::vector<std::string>& words) {
  const Given given = given_command(program);
  const auto flag = std::find_if(words.rbegin(), words.rend(), [](const std::string& word) {
    return word.size() > 1 && word.front() == '-' && word.find_first_not_of('-') != std::string::npos;
  });
  if (flag != words.rend()) return unknown_flag(program, given, flag->substr(0, flag->find('=')));
  const std::string& word = words.front();
  if (!given.page.commands.empty()) {
    const std::string hint = did_you_mean(word, command_names(given.page));
    return wrong(fmt::format("{} has no command '{}'", given.page.name, word),
                 fmt::format("{}{} --help lists the commands.", hint, given.page.name));
  }
  return wrong(fmt::format("{} does not expect '{}'", given.page.name, word),
               fmt::format("{}{} --help says what it takes.", did_you_mean("--" + word, given.flags), given.page.name));
}

}  // namespace

Error usage_error(const CLI::App& program, const CLI::ParseError& error) {
  // CLI11 says that a command is missing before it names the word that it does not know. The word helps more.
  const std::vector<std::string> words = program.remaining(/*recurse=*/true);
  if (!words.empty()) return unknown_word(program, words);
  const Given given = given_command(program);
  const std::string hint = fmt::format("{} --help says how it is called.", given.page.name);
  if (error.get_name() == "RequiredError" && !given.page.commands.empty()) {
    return wrong(fmt::format("{} needs a command", given.page.name),
                 fmt::format("Give {}. {}", fmt::join(command_names(given.page), ", "), hint));
  }
  // The message is "A excludes B".
  const std::string message = error.what();
  if (const std::size_t at = message.find(" excludes "); error.get_name() == "ExcludesError" && at != std::string::npos)
    return wrong(fmt::format("{} and {} cannot be given together", message.substr(0, at), message.substr(at + 10)),
                 fmt::format("Leave one of them out. {}", hint));
  return wrong_value(message, hint).value_or(wrong(message, hint));
}

}  // namespace v1
}  // namespace leanattn
