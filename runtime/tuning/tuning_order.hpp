// tuning_order.hpp -- TuningOrder: what an engine asks the leanattn program to tune; and the messages by which the
// program answers. Plain data in and out; any thread. A text from the other side is never trusted.
//
// The order is one JSON document on the program's standard input. The answer is one message on each line of its
// standard output, and the last one is a TuningEnd or an Error. Both sides are of one version, or the order is refused.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// The program's command that takes an order.
inline constexpr const char* kTuneOrderCommand = "tune-order";

struct TuningOrder {
  DecodeProblem problem;
  std::vector<Shape> shapes;  ///< tuned in this order
  std::chrono::milliseconds budget{};
  std::int64_t memory_bytes = 0;  ///< the most for the K and V of the test data; 0: most of what is free
  std::string uuid;               ///< of the GPU; empty: `ordinal` counts
  int ordinal = 0;
  int sm_count = 0;             ///< those that the engine may use
  std::string cache_directory;  ///< of both databases
  pid_t parent = 0;             ///< with whose end the program ends

  bool operator==(const TuningOrder&) const = default;
};

/// How far the program is.
struct TuningProgress {
  int shape = 0;           ///< an index into the order's shapes
  std::string phase = {};  ///< "screen", "sweep", "refine", "race" or "confirm"
  int done = 0, total = 0;
  double best_us = 0;  ///< 0 until something was measured
  double elapsed_s = 0;
  bool operator==(const TuningProgress&) const = default;
};

/// What became of one shape.
struct TuningResult {
  int shape = 0;         ///< an index into the order's shapes
  double median_us = 0;  ///< 0: nothing was measured
  double read_limit_us = 0, default_us = 0;
  int candidates = 0, rejected = 0, incorrect = 0;
  bool finished = false;  ///< whether the search was complete
  bool operator==(const TuningResult&) const = default;
};

/// Something that the engine's user may want to know.
struct TuningWarning {
  std::string text;
  bool operator==(const TuningWarning&) const = default;
};

struct TuningEnd {
  bool operator==(const TuningEnd&) const = default;
};

using TuningMessage = std::variant<TuningProgress, TuningResult, TuningWarning, Error, TuningEnd>;

/// With the version of this library.
std::string to_json(const TuningOrder& order);
/// Errors: unsupported (the order is of a library of another version), invalid_argument (no order, or a value out of
/// its range).
Result<TuningOrder> tuning_order_from_json(std::string_view text);

/// One line, without the line break.
std::string to_json(const TuningMessage& message);
/// Errors: internal (no message; the text is quoted in part).
Result<TuningMessage> tuning_message_from_json(std::string_view line);

}  // namespace v1
}  // namespace leanattn
