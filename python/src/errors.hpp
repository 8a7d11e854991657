// errors.hpp -- leanattn's errors as Python exceptions with code, hint and log. Called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "leanattn/error.hpp"

namespace leanattn::python {

/// Raises the exception class of leanattn.errors that stands for the error's code.
[[noreturn]] void raise(const Error& error);

/// An argument whose value cannot be: leanattn.ArgumentError, which is a ValueError. The message begins with its name.
[[noreturn]] void bad_value(const char* argument, const std::string& what, const std::string& hint = {});

/// An argument of the wrong kind: leanattn.ArgumentTypeError, which is a TypeError.
[[noreturn]] void bad_type(const char* argument, const std::string& what, const std::string& hint = {});

template <class T>
T unwrap(Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace leanattn::python
