// thoroughness.hpp -- how much a test tries: a part of it on every change, all of it at night; and which part. Any
// thread.
#pragma once

#include <cstddef>
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

/// LEANATTN_TEST_SEED, which scripts/test takes from the sources, so that the parts change with them; 0 without it.
inline std::size_t run_seed() {
  const char* text = std::getenv("LEANATTN_TEST_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

/// Whether number `i` of `count` is tried: each in a thorough run, else the one that the seed of the run says.
inline bool in_turn(std::size_t i, std::size_t count) { return thorough() || i == run_seed() % count; }

}  // namespace leanattn
