// capture_file.hpp -- the text of a capture: one JSON object a line, as engines append it (capture.hpp) and
// `leanattn tune --from-capture` sums it up. Any thread; no shared state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// So many plan() calls for one problem and shape, since the line before, that got one kind of answer.
struct CaptureLine {
  DecodeProblem problem;
  Shape shape;
  std::int64_t calls = 0;
  std::string answer;   ///< to_string(Provenance), or "failed"
  bool stale = false;   ///< the winner behind the answer was
  std::string device;   ///< "NVIDIA H200"
  int sm_count = 0;     ///< that it had for the engine
  std::string written;  ///< UTC
};

/// What one line may say: calls to plan(), or how many of them are in no line because they could not be written.
struct CaptureRecord {
  CaptureLine line;
  std::int64_t lost_calls = 0;  ///< above 0: `line` is empty
};

std::string to_json(const CaptureLine& line);
std::string lost_calls_to_json(std::int64_t calls);
/// Errors: invalid_argument, unsupported: not JSON, another version, a key that is missing or out of range.
Result<CaptureRecord> capture_record_from_json(std::string_view text);

/// One problem and shape of a capture, over all of its lines. Shapes that differ in max_batch alone are one: it plays
/// no part in what is fast.
struct CapturedShape {
  DecodeProblem problem;
  Shape shape;
  std::int64_t calls = 0;
  std::map<std::string, std::int64_t> answers;  ///< calls by answer
};

struct CaptureSum {
  std::vector<CapturedShape> shapes;  ///< most calls first; equal ones in the order of their texts
  std::int64_t calls = 0, lost_calls = 0;
  std::map<std::string, std::int64_t> answers;  ///< calls by answer, over all shapes
  std::map<std::string, std::int64_t> devices;  ///< calls by device
  /// (line number from 1, why) of lines that say nothing: a torn end after a full disk, another program's output.
  std::vector<std::pair<std::int64_t, std::string>> unreadable;
};

CaptureSum sum_capture(std::istream& text);
/// Errors: not_found, invalid_argument (cannot be read, a directory).
Result<CaptureSum> read_capture(const std::filesystem::path& file);

}  // namespace v1
}  // namespace leanattn
