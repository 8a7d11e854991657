// errors.hpp -- errors of the library as Python exceptions with code, hint and log. Called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "leanattn/error.hpp"

namespace leanattn::python {

/// Raises the exception of leanattn.errors for the error's code.
[[noreturn]] void raise(const Error& error);

/// Raises leanattn.ArgumentError, a ValueError, about the value of an argument. The message begins with its name.
[[noreturn]] void bad_value(const char* argument, const std::string& what, const std::string& hint = {});

/// Raises leanattn.ArgumentTypeError, a TypeError, about the type of an argument.
[[noreturn]] void bad_type(const char* argument, const std::string& what, const std::string& hint = {});

/// The value, or the exception for the error.
template <class T>
T unwrap(Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace leanattn::python
