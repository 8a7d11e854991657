// thoroughness.hpp -- how much a test tries: a part of it on every change, all of it at night. Any thread.
#pragma once

#include <cstdlib>
#include <string_view>

namespace leanattn {

/// Whether tests should try all they have, which takes long. LEANATTN_TEST_THOROUGH=1 in the environment says so, and
/// `scripts/test --nightly` sets it.
inline bool thorough() {
  const char* text = std::getenv("LEANATTN_TEST_THOROUGH");
  return text != nullptr && std::string_view(text) == "1";
}

/// How many times something is tried: `full` in a thorough run, else `brief`.
template <class Number>
Number tries(Number brief, Number full) {
  return thorough() ? full : brief;
}

}  // namespace leanattn
