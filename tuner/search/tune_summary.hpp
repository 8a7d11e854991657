// tune_summary.hpp -- TuneSummary: what a session found. Plain data; any thread.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// The answer for one shape.
struct TunedShape {
  Shape shape;
  Config winner;
  double median_us = 0, low_us = 0, high_us = 0;
  double read_limit_us = 0;  ///< measured on this device for the same bytes
  double default_us = 0;     ///< the default configuration's time beside the winner; if it was not confirmed, in the
                             ///< screen or an earlier session
  double looked_up_us = 0;   ///< likewise of what look-ups answered before the session
  double gpu_seconds = 0;    ///< spent on checking and timing candidates
  int candidates = 0, compiled = 0, rejected = 0, incorrect = 0, raced = 0;
  std::string neighbours = {};  ///< names the other processes on the GPU meanwhile; empty when there were none
  /// Why this search stored no new winner, and what helps. Empty where it stored one or had nothing left to try, and
  /// where the shape was not searched. An earlier winner is above all the same.
  std::string no_winner = {};
  bool finished = true;  ///< false: the budget or an interrupt cut the search short
};

/// The answer of one device.
struct TuneSummary {
  DeviceFacts device;
  std::vector<TunedShape> shapes;  ///< in the request's order
  double seconds = 0;
  bool interrupted = false;
  std::vector<std::string> warnings = {};  ///< of the winners from which look-ups answer
  /// Of the first shape that does not fit into the memory. Its no_winner says so, and the others were tuned.
  std::optional<Error> out_of_memory = {};

  bool any_searched() const {
    return std::any_of(shapes.begin(), shapes.end(), [](const TunedShape& shape) { return shape.candidates > 0; });
  }
};

/// What the devices of one model found together: they divide the shapes among themselves.
struct ModelSummary {
  TuneSummary summary;  ///< its `device` is the first of them
  std::vector<int> ordinals;
  std::vector<std::pair<int, Error>> failures;  ///< devices that gave up, by ordinal; the others did their shapes
  std::vector<std::string> warnings;            ///< from the databases, each once
  std::optional<Error> not_kept = {};           ///< why not all that was measured is in the database

  void warn_once(const std::vector<std::string>& more) {
    for (const std::string& warning : more) {
      if (std::find(warnings.begin(), warnings.end(), warning) == warnings.end()) warnings.push_back(warning);
    }
  }
};

}  // namespace v1
}  // namespace leanattn
