// problem.hpp -- leanattn.Problem, which is a dataclass, as the struct of C++, and the check that it runs when it is
// made. Called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include "leanattn/leanattn.hpp"

namespace leanattn::python {

/// The fields of a leanattn.Problem. Raises an error that names the field where one has another type or no such value.
Problem read_problem(nanobind::handle problem);

void bind_problem(nanobind::module_& module);

}  // namespace leanattn::python
