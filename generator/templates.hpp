// templates.hpp -- the files of templates/, embedded at build time. Immutable; any thread.
#pragma once

#include <span>
#include <string_view>

namespace leanattn {
inline namespace v1 {

struct EmbeddedTemplate {
  std::string_view name;  ///< path below templates/, e.g. "line/schedule.cuh"
  std::string_view text;
};

std::span<const EmbeddedTemplate> embedded_templates();

}  // namespace v1
}  // namespace leanattn
