// ptxas_log.hpp -- reading compiler logs. Pure functions; any thread. parse_ptxas_log is declared in compiler.hpp.
#pragma once

#include <string>
#include <string_view>

namespace leanattn {
inline namespace v1 {

/// The first line of a compiler log that reports an error, or its first line, or "no log".
std::string first_error(std::string_view log);

}  // namespace v1
}  // namespace leanattn
