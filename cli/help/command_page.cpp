#include "cli/help/command_page.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/flags/device_flags.hpp"
#include "cli/models/model_catalogue.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// The words that a value may be. A value is named after them ("bf16|fp16") or by what it is ("MODEL").
std::vector<std::string> choices_of(const std::string& value) {
  std::vector<std::string> choices;
  if (value == "MODEL") {
    for (const ModelShape& model : model_catalogue()) choices.push_back(model.name);
  } else if (value == "GPU") {
    choices = gpu_names();
  } else if (value.find('|') != std::string::npos) {
    choices = split(value, '|');
  }
  return choices;
}

Completes completes(const std::string& value) {
  if (value == "FILE" || value == "PATH") return Completes::file;
  return value == "DIR" ? Completes::directory : Completes::nothing;
}

FlagText describe_option(const CLI::Option& option) {
  FlagText flag;
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  if (option.get_type_size_max() > 0) flag.value = option.get_type_name();
  if (flag.names.empty()) flag.names.push_back(flag.value);
  flag.text = option.get_description();
  flag.choices = choices_of(flag.value);
  flag.completes = completes(flag.value);
  return flag;
}

/// The flags of a command by their groups, in the order in which they were added.
std::vector<FlagGroup> groups_of(const CLI::App& command) {
  std::vector<FlagGroup> groups;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->nonpositional() || option->get_group().empty()) continue;
    const std::string name = option->get_group() == "Options" ? "Flags" : option->get_group();
    auto group = std::find_if(groups.begin(), groups.end(), [&](const FlagGroup& known) { return known.name == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
    group->flags.push_back(describe_option(*option));
  }
  return groups;
}

/// What set_examples() put into the footer.
std::vector<Example> examples_of(const CLI::App& command) {
  std::vector<Example> examples;
  const std::vector<std::string> lines = split(command.get_footer(), '\n');
  for (std::size_t i = 0; i + 1 < lines.size(); i += 2) examples.push_back({lines[i], lines[i + 1]});
  return examples;
}

}  // namespace

const std::vector<ExitCodeText>& exit_code_texts() {
  static const std::vector<ExitCodeText> kTexts = {
      {0, "ok"},
      {1, "another failure, such as a compile error or a full disk"},
      {2, "usage"},
      {3, "no usable device, driver or NVRTC"},
      {4, "nothing found"},
      {5, "a result was wrong"},
      {6, "database or cache directory"},
      {130, "interrupted"},
  };
  return kTexts;
}

// CLI11 keeps one text of free use for each command, its footer.
void set_examples(CLI::App& command, std::initializer_list<Example> examples) {
  std::string text;
  for (const Example& example : examples) text += example.says + "\n" + example.line + "\n";
  command.footer(text);
}

CommandPage describe_command(const CLI::App& command, const std::string& parents) {
  CommandPage page;
  page.name = (parents.empty() ? "" : parents + " ") + command.get_name();
  page.summary = command.get_description();
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) page.arguments.push_back(describe_option(*option));
  }
  page.groups = groups_of(command);
  const auto shown = [](const CLI::App* below) { return !below->get_group().empty(); };
  for (const CLI::App* below : command.get_subcommands(shown))
    page.commands.push_back(describe_command(*below, page.name));
  page.examples = examples_of(command);
  return page;
}

}  // namespace v1
}  // namespace leanattn
