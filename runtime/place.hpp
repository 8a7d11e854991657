// place.hpp -- Place: where a problem's shape lies among others, in octaves. Plain data; any thread.
#pragma once

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

struct Place {
  double outputs = 0;            ///< output tiles
  double tokens_per_output = 0;  ///< on average; in tokens, so that kernels with different tiles compare
  double raggedness = 0;         ///< longest over average context

  bool operator==(const Place&) const = default;
};

Place place_of(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec);
double distance(const Place& a, const Place& b);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
