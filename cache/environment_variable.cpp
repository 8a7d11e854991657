// environment_variable.cpp -- secure_getenv as a string.
#include "cache/environment_variable.hpp"

#include <cstdlib>

namespace leanattn {
inline namespace v1 {

std::string environment_variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace v1
}  // namespace leanattn
