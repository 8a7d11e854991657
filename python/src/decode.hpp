// decode.hpp -- leanattn.decode and leanattn.merge_partials: Python arguments to one launch. GIL held.
#pragma once

#include <nanobind/nanobind.h>

namespace leanattn::python {

void bind_decode(nanobind::module_& module);
void bind_merge(nanobind::module_& module);

}  // namespace leanattn::python
