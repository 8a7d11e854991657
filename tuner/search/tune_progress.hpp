// tune_progress.hpp -- TuneProgress: what a running session says of itself. Plain data; any thread.
#pragma once

#include <functional>
#include <string>

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// One line's worth of progress.
struct TuneProgress {
  Shape shape;
  int device = -1;  ///< the ordinal where several devices are tuned at once, else -1
  int shape_index = 0, shape_count = 0;
  /// "screen", "sweep", "refine", "race" or "confirm"; "revalidate"; "compile" where there is no GPU.
  std::string phase;
  std::string candidate;    ///< a short name of the candidate that is measured now
  int done = 0, total = 0;  ///< within the phase
  double best_us = 0;       ///< 0 until something was measured
  double elapsed_s = 0, eta_s = 0;
};
using ProgressSink = std::function<void(const TuneProgress&)>;

}  // namespace v1
}  // namespace leanattn
