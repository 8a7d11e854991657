// names.hpp -- Python's names for the enumerators of the C interface, and numbers and texts read from Python objects.
// Called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>

#include "leanattn/leanattn.h"

namespace leanattn::python {

/// The name of an enumerator.
struct Name {
  const char* text;
  std::int32_t value;
};

inline constexpr Name kDataTypes[] = {{"bf16", LEANATTN_BF16}, {"fp16", LEANATTN_FP16}};
inline constexpr Name kCacheLayouts[] = {{"HND", LEANATTN_KV_CONTIGUOUS}, {"NHD", LEANATTN_KV_STRIDED}};
inline constexpr Name kMasks[] = {
    {"causal", LEANATTN_MASK_CAUSAL}, {"tree", LEANATTN_MASK_TREE}, {"full", LEANATTN_MASK_FULL}};
inline constexpr Name kCacheFormats[] = {{"same", LEANATTN_KV_SAME},
                                         {"fp8_e4m3", LEANATTN_KV_FP8_E4M3},
                                         {"fp8_e5m2", LEANATTN_KV_FP8_E5M2},
                                         {"int8", LEANATTN_KV_INT8},
                                         {"fp8_ds_mla", LEANATTN_KV_FP8_DS_MLA}};
inline constexpr Name kCacheScales[] = {
    {"tensor", LEANATTN_SCALE_TENSOR}, {"head", LEANATTN_SCALE_HEAD}, {"token", LEANATTN_SCALE_TOKEN}};
inline constexpr Name kRopes[] = {
    {"none", LEANATTN_ROPE_NONE}, {"half_split", LEANATTN_ROPE_HALF_SPLIT}, {"interleaved", LEANATTN_ROPE_INTERLEAVED}};
inline constexpr Name kProvenances[] = {{"exact", LEANATTN_EXACT},       {"bucket", LEANATTN_BUCKET},
                                        {"nearest", LEANATTN_NEAREST},   {"model", LEANATTN_MODEL},
                                        {"fallback", LEANATTN_FALLBACK}, {"without_pdl", LEANATTN_WITHOUT_PDL}};

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
