// progress_line.hpp -- ProgressLine: how far long work is, in one line of a terminal or in the lines of a log. One
// thread at a time.
#pragma once

#include <cstdio>
#include <map>
#include <string>

#include "tuner/search/tune.hpp"

namespace leanattn {
inline namespace v1 {

/// Writes to stderr. On a terminal one line is rewritten. Elsewhere a line is written only when the shape or the phase
/// changes, so that a log stays readable.
class ProgressLine {
 public:
  ProgressLine(bool quiet, bool terminal) : quiet_(quiet), terminal_(terminal) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const TuneProgress& progress);
  /// Writes any other text over the line of a terminal. Does nothing elsewhere.
  void show_transient(const std::string& text);
  /// Erases the line, so that other output starts on an empty one.
  void clear();

 private:
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  std::map<int, std::string> last_plain_;  // by device
};

/// The text of the line: "[2/6] batch 1, context 64k  race 12/40  best 125.1 us  ETA 12 s  <candidate>". It begins with
/// "GPU 3 " when several GPUs are tuned.
std::string progress_text(const TuneProgress& progress);

}  // namespace v1
}  // namespace leanattn
