// command_page.hpp -- CommandPage: what there is to say of one command, read from the flags that it registered. Help,
// the man page and the completions of shells are all written from it. Plain data; main thread.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace leanattn {
inline namespace v1 {

/// What completes a flag's value.
enum class Completes {
  nothing,  ///< or one of FlagText::choices, if there are any
  file,
  directory,
};

/// One flag or argument.
struct FlagText {
  std::vector<std::string> names;    ///< "--out", "-o"; of an argument its name alone
  std::string value;                 ///< "FILE", "bf16|fp16"; empty: the flag takes none
  std::string text;                  ///< what it does
  std::vector<std::string> choices;  ///< words that the value may be
  Completes completes = Completes::nothing;
};

struct FlagGroup {
  std::string name;
  std::vector<FlagText> flags;
};

/// A command line that is an example, and what it is one of.
struct Example {
  std::string says;  ///< a phrase without a full stop: "Tune the decode of Llama-3-8B for a minute"
  std::string line;  ///< "leanattn tune --model llama-3-8b --budget 60s"
};

struct CommandPage {
  std::string name;     ///< "leanattn tune"
  std::string summary;  ///< a phrase without a full stop
  std::vector<FlagText> arguments;
  std::vector<FlagGroup> groups;
  std::vector<CommandPage> commands;
  std::vector<Example> examples;
};

/// One of the program's exit codes, as help and man page list them.
struct ExitCodeText {
  int code;
  std::string_view text;
};
const std::vector<ExitCodeText>& exit_code_texts();

/// Gives a command its examples. Commands that are added to it later inherit them, so this comes last.
void set_examples(CLI::App& command, std::initializer_list<Example> examples);

/// The page of a command and of those below it, without hidden ones. `parents` are the names before its own:
/// "leanattn".
CommandPage describe_command(const CLI::App& command, const std::string& parents = "");

}  // namespace v1
}  // namespace leanattn
