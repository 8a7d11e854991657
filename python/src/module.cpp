// module.cpp -- leanattn._leanattn, the compiled half of the package.
#include <nanobind/nanobind.h>

#include "decode.hpp"
#include "engine_object.hpp"
#include "generator/generator.hpp"
#include "group_object.hpp"
#include "leanattn/leanattn.h"
#include "page_rows.hpp"
#include "problem.hpp"
#include "recurrent.hpp"
#include "tuning.hpp"

NB_MODULE(_leanattn, module) {
  module.doc() = "The compiled half of leanattn; everything public is in the package itself.";
  // The engines of decode() live as long as the process and are no leaks.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = leanattn_version();
  // Of the kernels and the generator, for records of measurements.
  module.attr("_revision") = leanattn::generator_revision().c_str();
  leanattn::python::bind_engine(module);
  leanattn::python::bind_group(module);
  leanattn::python::bind_decode(module);
  leanattn::python::bind_merge(module);
  leanattn::python::bind_recurrent(module);
  leanattn::python::bind_tuning(module);
  leanattn::python::bind_page_table(module);
  leanattn::python::bind_problem(module);
}
