// man_page.hpp -- leanattn(1), in the man macros of troff. A pure function; any thread.
#pragma once

#include <string>
#include <string_view>

#include "cli/help/command_page.hpp"

namespace leanattn {
inline namespace v1 {

/// The man page of the program with all of its commands. `version` stands at the foot of each page.
std::string to_man(const CommandPage& program, std::string_view version);

}  // namespace v1
}  // namespace leanattn
