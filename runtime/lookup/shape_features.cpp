#include "runtime/lookup/shape_features.hpp"

#include <cmath>
#include <limits>

#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/mixed_line.hpp"

namespace leanattn {
inline namespace v1 {

ShapeFeatures shape_features_of(const DecodeStep& step) {
  if (step.is_mixed()) {
    const MixedLine line = mixed_line(step, step.base, layout_of(step.base));
    const auto outputs = static_cast<double>(line.output_tiles()), tiles = static_cast<double>(line.lean_tiles());
    const auto tokens = [&](const MixedLine::Part& part) {
      return static_cast<double>(part.lean_tiles) * part.rows / step.base.group;
    };
    return {.outputs = std::log2(outputs),
            .tokens_per_output = std::log2(tiles * step.base.tile / outputs),
            .raggedness = step.raggedness,
            .query_tokens = std::log2((tokens(line.decodes) + tokens(line.chunks)) / tiles)};
  }
  return {.outputs = std::log2(static_cast<double>(output_tiles(step, step.base))),
          .tokens_per_output = std::log2(step.average_tokens),
          .raggedness = step.raggedness};
}

double distance(const ShapeFeatures& a, const ShapeFeatures& b) {
  const double outputs = a.outputs - b.outputs;
  const double tokens = a.tokens_per_output - b.tokens_per_output;
  const double raggedness = a.raggedness - b.raggedness;
  if (a.query_tokens.has_value() != b.query_tokens.has_value()) return std::numeric_limits<double>::infinity();
  const double query_tokens = a.query_tokens.value_or(0) - b.query_tokens.value_or(0);
  return std::sqrt(outputs * outputs + tokens * tokens + raggedness * raggedness + query_tokens * query_tokens);
}

}  // namespace v1
}  // namespace leanattn
