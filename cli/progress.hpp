// progress.hpp -- one line of progress on a terminal, a few plain lines elsewhere. Callable from one thread at a time.
#pragma once

#include <cstdio>
#include <map>
#include <string>

#include "tuner/tune.hpp"

namespace leanattn {
inline namespace v1 {

/// Draws to stderr. On a terminal one line is rewritten in place; otherwise a line is written when the shape or the
/// phase changes, so that a log stays readable.
class ProgressLine {
 public:
  ProgressLine(bool quiet, bool terminal) : quiet_(quiet), terminal_(terminal) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const TuneProgress& progress);
  /// Any other text that is rewritten in place on a terminal and left out elsewhere.
  void show_transient(const std::string& text);
  /// Erases the line, so that other output starts in an empty one.
  void clear();

 private:
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  std::map<int, std::string> last_plain_;  // by device
};

/// "[2/6] batch 1, context 64k  race 12/40  best 125.1 us  ETA 12 s  <candidate>", with "GPU 3 " before it where
/// several are tuned. Exposed for tests.
std::string progress_text(const TuneProgress& progress);

}  // namespace v1
}  // namespace leanattn
