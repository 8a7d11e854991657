// names.cpp -- reads texts, numbers and truth values, or says what else was given.
#include "names.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <string_view>

#include "errors.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

[[noreturn]] void wrong_type(nb::handle value, const char* argument, const char* wanted) {
  bad_type(argument,
           fmt::format("is of type {}, not {}", nb::cast<std::string>(nb::str(nb::type_name(value.type()))), wanted));
}

/// Anything that stands for an integer will do, such as scalars of numpy and symbolic sizes of torch, but no truth
/// value.
nb::object index_of(nb::handle value, const char* argument) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) wrong_type(value, argument, "an integer");
  nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) nb::raise_python_error();
  return index;
}

std::string_view view_of_text(nb::handle value, const char* argument) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), &length) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    wrong_type(value, argument, "a string");
  }
  return {text, static_cast<std::size_t>(length)};
}

}  // namespace

const char* name_of(std::span<const Name> names, std::int32_t value) {
  for (const Name& name : names) {
    if (name.value == value) return name.text;
  }
  return "unknown";
}

std::int32_t number_of(std::span<const Name> names, nb::handle text, const char* argument) {
  const std::string_view given = view_of_text(text, argument);
  for (const Name& name : names) {
    if (given == name.text) return name.value;
  }
  std::string all;
  for (const Name& name : names) all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", name.text);
  bad_value(argument, fmt::format("is \"{}\", not one of {}", given, all));
}

std::int64_t int64_of(nb::handle value, const char* argument) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index_of(value, argument).ptr(), &overflow);
  if (overflow != 0) bad_value(argument, "does not fit in 64 bits");
  return number;
}

int int_of(nb::handle value, const char* argument) {
  const std::int64_t number = int64_of(value, argument);
  if (number < std::numeric_limits<int>::min() || number > std::numeric_limits<int>::max())
    bad_value(argument, fmt::format("is {}, which does not fit in 32 bits", number));
  return static_cast<int>(number);
}

std::uintptr_t address_of(nb::handle value, const char* argument) {
  const nb::object index = index_of(value, argument);
  const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    bad_value(argument, fmt::format("is {}, which is no address", nb::cast<std::string>(nb::str(index))),
              "Addresses and handles are 0 to 2^64 - 1.");
  }
  return number;
}

double float_of(nb::handle value, const char* argument) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    const bool overflow = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    PyErr_Clear();
    if (overflow) bad_value(argument, "does not fit in 64 bits of floating point");
    wrong_type(value, argument, "a number");
  }
  return number;
}

bool bool_of(nb::handle value, const char* argument) {
  if (!PyBool_Check(value.ptr())) wrong_type(value, argument, "True or False");
  return value.ptr() == Py_True;
}

std::string text_of(nb::handle value, const char* argument) {
  const std::string_view text = view_of_text(value, argument);
  // The C interface, through which it goes, would take what is in front of it.
  if (text.find('\0') != std::string_view::npos) bad_value(argument, "has a zero byte in it");
  return std::string(text);
}

}  // namespace leanattn::python
