// templates.hpp -- the files of templates/, embedded at build time. Immutable; any thread.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace leanattn {
inline namespace v1 {

struct EmbeddedTemplate {
  std::string_view name;  ///< path below templates/, e.g. "line/schedule.cuh"
  std::string_view text;
};

std::span<const EmbeddedTemplate> embedded_templates();

/// One source of these templates, each of which must be there, below a first line. For kernels that no spec describes.
std::string joined_templates(std::string_view first_line, std::initializer_list<std::string_view> names);

}  // namespace v1
}  // namespace leanattn
