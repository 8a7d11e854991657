// integers.hpp -- quotients and multiples that are rounded up. Any thread.
#pragma once

#include <concepts>
#include <type_traits>

namespace leanattn {
inline namespace v1 {

/// The smallest integer that is at least value / by. `value` is not negative and `by` is positive.
template <std::integral Value>
constexpr Value divide_up(Value value, std::type_identity_t<Value> by) {
  return value / by + (value % by != 0);
}

/// The smallest multiple of `to` that is at least `value`. `value` is not negative and `to` is positive.
template <std::integral Value>
constexpr Value round_up(Value value, std::type_identity_t<Value> to) {
  return divide_up(value, to) * to;
}

}  // namespace v1
}  // namespace leanattn
