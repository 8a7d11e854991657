#include "cli/commands/progress_line.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/console/console.hpp"
#include "cli/flags/shape_flags.hpp"
#include "tuner/report/escape.hpp"

namespace leanattn {
inline namespace v1 {

std::string progress_text(const TuneProgress& progress) {
  std::string text = progress.device < 0 ? "" : fmt::format("GPU {} ", progress.device);
  text += fmt::format("[{}/{}] {}  {}", progress.shape_index + 1, std::max(progress.shape_count, 1),
                      describe(progress.shape), progress.phase);
  if (progress.total > 0) text += fmt::format(" {}/{}", progress.done, progress.total);
  if (progress.best_us > 0) text += fmt::format("  best {:.1f} us", progress.best_us);
  if (progress.eta_s > 0) text += fmt::format("  ETA {:.0f} s", progress.eta_s);
  if (!progress.candidate.empty()) text += "  " + progress.candidate;
  return text;
}

void ProgressLine::show_transient(const std::string& text) {
  if (quiet_ || !terminal_) return;
  const std::size_t columns = terminal_columns(stderr);
  // The last column is left free, because some terminals wrap when it is filled.
  write_stderr("\r\033[K" + detail::clean_text(text).substr(0, (columns == 0 ? 80 : columns) - 1));
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressLine::show(const TuneProgress& progress) {
  if (quiet_) return;
  if (terminal_) {
    show_transient(progress_text(progress));
    return;
  }
  std::string key = fmt::format("{} {}", progress.shape_index, progress.phase);
  std::string& last = last_plain_[progress.device];
  if (key == last) return;
  last = std::move(key);
  TuneProgress line = progress;
  line.candidate.clear();
  write_stderr(progress_text(line) + "\n");
}

void ProgressLine::clear() {
  if (!drawn_) return;
  write_stderr("\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace v1
}  // namespace leanattn
