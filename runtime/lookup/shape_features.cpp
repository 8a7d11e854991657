#include "runtime/lookup/shape_features.hpp"

#include <cmath>

#include "runtime/lookup/grids.hpp"

namespace leanattn {
inline namespace v1 {

ShapeFeatures shape_features_of(const DecodeStep& step) {
  return {.outputs = std::log2(static_cast<double>(output_tiles(step, step.base))),
          .tokens_per_output = std::log2(step.average_tokens),
          .raggedness = step.raggedness};
}

double distance(const ShapeFeatures& a, const ShapeFeatures& b) {
  const double outputs = a.outputs - b.outputs;
  const double tokens = a.tokens_per_output - b.tokens_per_output;
  const double raggedness = a.raggedness - b.raggedness;
  return std::sqrt(outputs * outputs + tokens * tokens + raggedness * raggedness);
}

}  // namespace v1
}  // namespace leanattn
