// errors.cpp -- has leanattn.errors make the exception.
#include "errors.hpp"

#include "leanattn/leanattn.h"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

/// `make` in leanattn.errors makes the exception, because its classes are written in Python.
[[noreturn]] void raise_made(const char* kind, const std::string& message, const std::string& hint,
                             const std::string& log) {
  const nb::object exception =
      nb::module_::import_("leanattn.errors").attr("make")(kind, message.c_str(), hint.c_str(), log.c_str());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

}  // namespace

void raise(const Error& error) {
  raise_made(leanattn_status_name(static_cast<leanattn_status>(error.code)), error.message, error.hint, error.log);
}

void bad_value(const char* argument, const std::string& what, const std::string& hint) {
  raise_made("invalid_argument", std::string(argument) + " " + what, hint, {});
}

void bad_type(const char* argument, const std::string& what, const std::string& hint) {
  raise_made("invalid_argument_type", std::string(argument) + " " + what, hint, {});
}

}  // namespace leanattn::python
