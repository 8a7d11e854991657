// call_capture_file.hpp -- the text of a call capture, one JSON object on each line: engines append them
// (call_capture.hpp), and `leanattn tune --from-capture` adds them up. Pure functions; any thread.
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

/// The calls of plan() for one problem and shape that got one kind of answer, since the line before.
struct CallCaptureLine {
  DecodeProblem problem;
  Shape shape;
  std::int64_t calls = 0;
  std::string answer;   ///< to_string(Provenance), or "failed"
  bool stale = false;   ///< whether the winner behind the answer was stale
  std::string device;   ///< "NVIDIA H200"
  int sm_count = 0;     ///< SMs of it that the engine saw
  std::string written;  ///< when, in UTC
};

/// What one line may say: calls of plan(), or how many calls are in no line because they could not be written.
struct CallCaptureRecord {
  CallCaptureLine line;
  std::int64_t lost_calls = 0;  ///< above 0: `line` is empty
};

std::string to_json(const CallCaptureLine& line);
std::string lost_calls_to_json(std::int64_t calls);
/// Errors: invalid_argument (not JSON, a key that is missing or out of range), unsupported (another version).
Result<CallCaptureRecord> call_capture_record_from_json(std::string_view text);

/// One problem and shape, summed over all lines. Shapes that differ in max_batch alone count as one, because max_batch
/// does not decide what is fast.
struct CapturedShape {
  DecodeProblem problem;
  Shape shape;
  std::int64_t calls = 0;
  std::map<std::string, std::int64_t> answers;  ///< calls by answer
};

struct CallCaptureSum {
  std::vector<CapturedShape> shapes;  ///< by number of calls, the most first; equal ones by their texts
  std::int64_t calls = 0, lost_calls = 0;
  std::map<std::string, std::int64_t> answers;  ///< calls by answer, over all shapes
  std::map<std::string, std::int64_t> devices;  ///< calls by device
  /// How many lines cannot be read, such as one that a full disk cut off; and (line number from 1, why) of the first.
  std::int64_t unreadable_lines = 0;
  std::vector<std::pair<std::int64_t, std::string>> unreadable;
};

CallCaptureSum sum_call_capture(std::istream& text);
/// Of a file or a pipe of at most 64 MiB. Errors: those of detail::read_file.
Result<CallCaptureSum> read_call_capture(const std::filesystem::path& file);

}  // namespace v1
}  // namespace leanattn
