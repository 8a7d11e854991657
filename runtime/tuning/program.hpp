// program.hpp -- finds the leanattn program, in which an engine tunes. Any thread; reads the environment at each call.
#pragma once

#include <filesystem>
#include <string>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// The program's file: `given`, else LEANATTN_PROGRAM, else bin/leanattn or ../bin/leanattn beside the file with this
/// library (its Python package, its installation), else the first leanattn of PATH. One that is named but cannot be run
/// is an error, and no other is looked for. Programs that are set-user-id get `given` and their own neighbour only.
/// Errors: invalid_argument (the named file cannot be run), not_found.
Result<std::filesystem::path> find_leanattn_program(const std::string& given);

}  // namespace v1
}  // namespace leanattn
