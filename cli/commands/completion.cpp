#include "cli/help/completion.hpp"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands/commands.hpp"
#include "cli/help/man_page.hpp"

namespace leanattn {
inline namespace v1 {

Command add_completion(CLI::App& program) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app = program.add_subcommand("completion", "Print a script that completes commands, flags and values");
  app->add_option("shell", *shell, "The shell")->required()->type_name("bash|zsh|fish");
  set_examples(*app,
               {{"Complete in this bash", "source <(leanattn completion bash)"},
                {"Complete in every fish", "leanattn completion fish > ~/.config/fish/completions/leanattn.fish"}});
  return {app, [&program, shell](const Console&) {
            const CommandPage page = describe_command(program);
            if (*shell == "bash") {
              print(bash_completion(page));
            } else if (*shell == "zsh") {
              print(zsh_completion(page));
            } else if (*shell == "fish") {
              print(fish_completion(page));
            } else {
              return report_error({ErrorCode::invalid_argument,
                                   "'" + *shell + "' is no shell that is known",
                                   "Give bash, zsh or fish.",
                                   {}});
            }
            return kExitOk;
          }};
}

Command add_man(CLI::App& program) {
  CLI::App* app = program.add_subcommand("man", "Print the man page in troff's format");
  app->group("");  // left out of --help, because people read the installed page
  return {app, [&program](const Console&) {
            print(to_man(describe_command(program), program_version()));
            return kExitOk;
          }};
}

}  // namespace v1
}  // namespace leanattn
