// integers.hpp -- quotients and multiples that are rounded up; sums and products that do not overflow. Any thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
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

/// a + b for terms that are not negative, at most INT64_MAX.
constexpr std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}

/// a * b for factors that are not negative, at most INT64_MAX.
constexpr std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

}  // namespace v1
}  // namespace leanattn
