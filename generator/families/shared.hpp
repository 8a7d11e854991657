// shared.hpp -- what checks and layouts of all families use. Pure functions; any thread. Internal to generator/.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {

inline tl::unexpected<Error> invalid_spec(std::string message, std::string hint) {
  return fail(ErrorCode::invalid_argument, std::move(message), std::move(hint));
}
inline tl::unexpected<Error> unsupported_spec(std::string message, std::string hint) {
  return fail(ErrorCode::unsupported, std::move(message), std::move(hint));
}

/// Errors: unsupported, for scales that travel with the rows of their tokens, in families and on load paths that do not
/// bring them.
inline Result<void> refuse_staged_scales(const KernelSpec& spec) {
  const Features& features = spec.features;
  if (!stages_scales(features) || spec.load == LoadPath::cp_async) return {};
  if (may_copy_boxes(features) && spec.load == LoadPath::tensor) return {};
  return unsupported_spec(fmt::format("load path {} with KV format {} and kv_scale {}", to_string(spec.load),
                                      to_string(features.kv_format), to_string(features.kv_scale)),
                          copies_boxes(features)
                              ? "use tensor or cp_async, which bring scales with the rows of their tokens"
                              : "use cp_async, which brings scales with the rows of their tokens");
}

/// Tokens that are adjacent in a paged cache whatever the page table and the selection say, and at most a step: the
/// largest power of two that divides the page size and a step, and at most a block. 1 for a dense cache.
inline int adjacent_tokens(const Features& features, int step_tokens) {
  const int page = features.page_size, block = features.selection_block;
  if (page == 0) return 1;
  const int in_page = std::min(page & -page, step_tokens & -step_tokens);
  return block > 0 ? std::min(in_page, block) : in_page;
}

}  // namespace v1
}  // namespace leanattn
