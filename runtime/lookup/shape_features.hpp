// shape_features.hpp -- ShapeFeatures: the coordinates in which look-ups measure how far two shapes are from each
// other. Plain data; any thread.
#pragma once

#include <optional>

#include "runtime/lookup/decode_step.hpp"

namespace leanattn {
inline namespace v1 {

/// What decides the speed of one kernel at a shape, as base-2 logarithms: one octave is a factor of two.
struct ShapeFeatures {
  double outputs = 0;            ///< output tiles
  double tokens_per_output = 0;  ///< visible tokens of the average request; not LeanTiles, whose sizes differ by kernel
  double raggedness = 0;         ///< the longest visible context over the average one
  std::optional<double> query_tokens = {};  ///< of a mixed step: for which the average LeanTile is read

  bool operator==(const ShapeFeatures&) const = default;
};

/// The step's base spec says how many row blocks a KV head has.
ShapeFeatures shape_features_of(const DecodeStep& step);

/// Euclidean distance, in octaves. A mixed step and one without a mix are infinitely far from each other.
double distance(const ShapeFeatures& a, const ShapeFeatures& b);

}  // namespace v1
}  // namespace leanattn
