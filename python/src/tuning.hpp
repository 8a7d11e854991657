// tuning.hpp -- the compiled part of leanattn.tune and leanattn.autotune. Called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

namespace leanattn::python {

void bind_tuning(nanobind::module_& module);

}  // namespace leanattn::python
