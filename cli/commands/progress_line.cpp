#include "cli/commands/progress_line.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "cli/flags/shape_flags.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

std::size_t terminal_width() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

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
  // The last column is left free, because some terminals wrap when it is filled.
  fmt::print(stderr, "\r\033[K{}", text.substr(0, terminal_width() - 1));
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
  fmt::print(stderr, "{}\n", progress_text(line));
}

void ProgressLine::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace v1
}  // namespace leanattn
