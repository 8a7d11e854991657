// environment_variable.hpp -- the one way in which the library reads its environment. Any thread, as getenv.
#pragma once

#include <string>

namespace leanattn {
inline namespace v1 {

/// What the environment says for `name`. Empty where it says nothing, and in a set-user-id or set-group-id program
/// (secure_getenv(3)): whoever starts such a program does not choose what it loads, reads or writes.
std::string environment_variable(const char* name);

}  // namespace v1
}  // namespace leanattn
