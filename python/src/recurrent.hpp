// recurrent.hpp -- leanattn.recurrent: Python arguments to one launch of a layer with a recurrent state. GIL held.
#pragma once

#include <nanobind/nanobind.h>

namespace leanattn::python {

void bind_recurrent(nanobind::module_& module);

}  // namespace leanattn::python
