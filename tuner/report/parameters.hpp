// parameters.hpp -- the tunables of a kernel by their names, for tables. Internal to tuner/report. Any thread.
#pragma once

#include <array>
#include <string>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

struct KernelParameter {
  const char* name;  ///< that of the field of KernelSpec
  std::string (*value)(const KernelSpec&);
};

inline constexpr std::array<KernelParameter, 7> kKernelParameters = {{
    {"load", [](const KernelSpec& spec) { return std::string(to_string(spec.load)); }},
    {"warps", [](const KernelSpec& spec) { return std::to_string(spec.warps); }},
    {"warp_tokens", [](const KernelSpec& spec) { return std::to_string(spec.warp_tokens); }},
    {"stages", [](const KernelSpec& spec) { return std::to_string(spec.stages); }},
    {"tile", [](const KernelSpec& spec) { return std::to_string(spec.tile); }},
    {"ctas_per_sm", [](const KernelSpec& spec) { return std::to_string(spec.ctas_per_sm); }},
    {"fixup", [](const KernelSpec& spec) { return std::string(to_string(spec.fixup)); }},
}};

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
