// estimate.hpp -- the kernels that look-ups consider for a shape without a winner, with what is known of their costs.
// Internal to this folder. Pure functions; any thread.
#pragma once

#include <span>
#include <vector>

#include "runtime/lookup/prediction.hpp"
#include "runtime/lookup/problem_winners.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// A winner that says something about another shape.
struct Witness {
  const MeasuredShape* measured = nullptr;
  double problem_away = 0;  ///< how far its problem is from the one in question, in octaves
  double away = 0;          ///< the same, and its shape
};

/// The kernels of the nearest witnesses and the usual ones (usual_kernels.hpp), made to fit the step's problem, with
/// the cost model as the witnesses correct it. Witnesses are sorted, nearest first.
std::vector<EstimatedKernel> estimated_kernels(const DecodeStep& step, std::span<const Witness> witnesses);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
