// names.hpp -- Python's names for the enumerators of the C interface, and numbers and texts read from Python objects.
// Called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>

#include "generator/feature_table.hpp"
#include "leanattn/leanattn.h"

namespace leanattn::python {

/// The name of an enumerator.
struct Name {
  const char* text;
  std::int32_t value;
};

inline constexpr Name kDataTypes[] = {{"bf16", LEANATTN_BF16}, {"fp16", LEANATTN_FP16}};
inline constexpr Name kCacheLayouts[] = {{"HND", LEANATTN_KV_CONTIGUOUS}, {"NHD", LEANATTN_KV_STRIDED}};
inline constexpr Name kProvenances[] = {{"exact", LEANATTN_EXACT},       {"bucket", LEANATTN_BUCKET},
                                        {"nearest", LEANATTN_NEAREST},   {"model", LEANATTN_MODEL},
                                        {"fallback", LEANATTN_FALLBACK}, {"without_pdl", LEANATTN_WITHOUT_PDL}};

/// The enumerators of a feature.
template <class Enum>
inline constexpr auto kNames = [] {
  std::array<Name, std::size(Enumeration<Enum>::kAll)> names{};
  for (std::size_t i = 0; i < names.size(); ++i)
    names[i] = {Enumeration<Enum>::kAll[i].name, static_cast<std::int32_t>(i)};
  return names;
}();

/// The name of a value; "unknown" where it has none.
const char* name_of(std::span<const Name> names, std::int32_t value);

/// Whether an optional argument was given.
inline bool given(nanobind::handle value) { return !value.is_none(); }

/// Each reads an object, and raises an error that names the argument where it has another type or no such value.
std::int32_t number_of(std::span<const Name> names, nanobind::handle text, const char* argument);
std::int64_t int64_of(nanobind::handle value, const char* argument);
int int_of(nanobind::handle value, const char* argument);
/// A pointer or a handle as an integer, 0 to 2^64 - 1.
std::uintptr_t address_of(nanobind::handle value, const char* argument);
double float_of(nanobind::handle value, const char* argument);
bool bool_of(nanobind::handle value, const char* argument);
std::string text_of(nanobind::handle value, const char* argument);

}  // namespace leanattn::python
