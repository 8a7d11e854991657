// completion.hpp -- scripts that complete commands, flags and their values in shells. Pure functions; any thread.
#pragma once

#include <string>

#include "cli/help/command_page.hpp"

namespace leanattn {
inline namespace v1 {

std::string bash_completion(const CommandPage& program);
std::string zsh_completion(const CommandPage& program);
std::string fish_completion(const CommandPage& program);

}  // namespace v1
}  // namespace leanattn
