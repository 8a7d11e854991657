// fuzz_capture.cpp -- every line of a call capture counts once or is named as unreadable, whatever wrote it.
#include <sstream>

#include "fuzz.hpp"
#include "runtime/engine/call_capture_file.hpp"

using namespace leanattn;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto record = call_capture_record_from_json(text)) {
    if (record->lost_calls > 0) {
      const auto again = call_capture_record_from_json(lost_calls_to_json(record->lost_calls));
      fuzz::expect(again && again->lost_calls == record->lost_calls, "lost calls read back");
    } else {
      const auto again = call_capture_record_from_json(to_json(record->line));
      fuzz::expect(again && to_json(again->line) == to_json(record->line), "a line reads back as itself");
    }
  }
  std::istringstream stream{std::string(text)};
  const CallCaptureSum sum = sum_call_capture(stream);
  std::int64_t before = INT64_MAX;
  for (const CapturedShape& shape : sum.shapes) {
    fuzz::expect(shape.calls > 0 && shape.calls <= before, "the most frequent shapes come first");
    fuzz::expect(shape.calls <= sum.calls && validate(shape.problem, shape.shape), "a shape is sound");
    before = shape.calls;
  }
  std::int64_t line = 0;
  for (const auto& [number, why] : sum.unreadable) {
    fuzz::expect(number > line && !why.empty(), "unreadable lines are named in order");
    line = number;
  }
  return 0;
}
