#include "cli/flags/aliases.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace leanattn {
inline namespace v1 {
namespace {

// PyTorch's names, NumPy's, and those that inference engines give to the two ways of pairing dimensions.
constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kAliases = {{
    {"float16", "fp16"},
    {"half", "fp16"},
    {"f16", "fp16"},
    {"bfloat16", "bf16"},
    {"fp8", "fp8_e4m3"},
    {"e4m3", "fp8_e4m3"},
    {"float8_e4m3fn", "fp8_e4m3"},
    {"e5m2", "fp8_e5m2"},
    {"float8_e5m2", "fp8_e5m2"},
    {"i8", "int8"},
    {"hnd", "contiguous"},
    {"nhd", "strided"},
    {"neox", "half_split"},
    {"gptj", "interleaved"},
    {"gpt-j", "interleaved"},
}};

}  // namespace

std::string without_alias(std::string_view name) {
  const auto same = [](char a, char b) { return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b))); };
  for (const auto& [alias, own] : kAliases) {
    if (std::equal(alias.begin(), alias.end(), name.begin(), name.end(), same)) return std::string(own);
  }
  return std::string(name);
}

}  // namespace v1
}  // namespace leanattn
