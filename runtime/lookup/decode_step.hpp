// decode_step.hpp -- DecodeStep: a problem and a shape on a device, and what follows from these alone. Plain data; any
// thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/cuda/device.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {

/// The decode step for which a kernel and a grid are chosen. It is made once, and passed to all that has a say in them.
struct DecodeStep {
  /// Problem and shape must be valid. The device must outlive this.
  DecodeStep(const DeviceFacts& on, const DecodeProblem& asked, const Shape& at)
      : device(on),
        problem(canonical(asked)),
        shape(canonical(at)),
        visible(visible_shape(problem, shape)),
        bytes(kv_bytes(problem, shape)),
        average_tokens(static_cast<double>(total_tokens(visible)) / visible.batch),
        raggedness(std::log2(static_cast<double>(visible.longest_context) / average_tokens)),
        base(base_spec(on.arch, problem)) {}

  const DeviceFacts& device;
  DecodeProblem problem;  ///< canonical
  Shape shape;            ///< canonical
  Shape visible;          ///< visible_shape()
  std::int64_t bytes;     ///< kv_bytes()
  double average_tokens;  ///< visible tokens of the average request
  double raggedness;      ///< the longest visible context over the average one, in octaves
  KernelSpec base;        ///< base_spec()

  /// Whether requests with several query tokens are known to be in it.
  bool is_mixed() const { return shape.mix.chunks > 0; }
  /// Whether output tiles differ so much that the schedule has to charge for segments (Config::segment_cost): one
  /// request is much longer than the average, or the step is mixed.
  bool ragged() const { return raggedness > 0.5 || is_mixed(); }
};

}  // namespace v1
}  // namespace leanattn
