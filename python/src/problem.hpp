// problem.hpp -- leanattn.Problem, which is a dataclass, as the struct of C++, and the check that it runs when it is
// made. Called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include "leanattn/leanattn.hpp"
#include "runtime/problem.hpp"

namespace leanattn::python {

/// The fields of a leanattn.Problem. Raises an error that names the field where one has another type or no such value.
DecodeProblem read_problem(nanobind::handle problem);
/// The same for calls of the C interface. It points to the score expression of `problem`, and is valid as long as that.
leanattn_problem to_c(const DecodeProblem& problem);

/// The fields of a leanattn.Shape. Raises an error that names the field where one is no integer.
PlanShape read_plan_shape(nanobind::handle shape);

void bind_problem(nanobind::module_& module);

}  // namespace leanattn::python
