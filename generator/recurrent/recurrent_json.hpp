// recurrent_json.hpp -- specs and problems of operation `recurrent` as JSON, and back, for databases that anyone may
// have written. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "generator/recurrent/recurrent_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// {"arch":"sm_90a","operation":"recurrent","problem":{...},"warps":4,...}; keys sorted, one line.
std::string to_json(const RecurrentSpec& spec);

/// What to_json() writes. Keys that are missing have their defaults, but for `kind` and `operation`. A key or value
/// that this version does not know is refused, because kernels would be for another problem. Errors: invalid_argument,
/// those of validate().
Result<RecurrentProblem> recurrent_problem_from_json(std::string_view text);
Result<RecurrentSpec> recurrent_spec_from_json(std::string_view text);

/// The size of a step, of which a problem has several: {"batch":16}, and back. Errors: invalid_argument.
std::string batch_to_json(int batch);
Result<int> batch_from_json(std::string_view text);

}  // namespace v1
}  // namespace leanattn
