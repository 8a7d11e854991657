#include "runtime/lookup/shape_features.hpp"

#include <cmath>

#include "runtime/lookup/grids.hpp"

namespace leanattn {
inline namespace v1 {

ShapeFeatures shape_features_of(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec) {
  const Shape visible = visible_shape(problem, shape);
  const double average = static_cast<double>(total_tokens(visible)) / visible.batch;
  return {.outputs = std::log2(static_cast<double>(output_tiles(problem, shape, spec))),
          .tokens_per_output = std::log2(average),
          .raggedness = std::log2(static_cast<double>(visible.longest_context) / average)};
}

double distance(const ShapeFeatures& a, const ShapeFeatures& b) {
  const double outputs = a.outputs - b.outputs;
  const double tokens = a.tokens_per_output - b.tokens_per_output;
  const double raggedness = a.raggedness - b.raggedness;
  return std::sqrt(outputs * outputs + tokens * tokens + raggedness * raggedness);
}

}  // namespace v1
}  // namespace leanattn
