// tuning_child.cpp -- starts the program, reads its messages, and sees to its end.
#include "runtime/tuning/tuning_child.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "cache/environment_variable.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/tuning/child_process.hpp"

extern char** environ;

namespace leanattn {
inline namespace v1 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookAt{100};            // how often the observer is asked while the program is silent
constexpr std::size_t kLongestLine = 1u << 20;  // of the program's messages, in bytes
constexpr std::size_t kMostWarnings = 32;       // different ones of the program that are kept
constexpr std::size_t kLongestWarning = 2048;   // bytes of each
constexpr std::size_t kLastWords = 2048;        // bytes of its standard error that are kept
constexpr milliseconds kEndsWithin{2000};       // after it has closed its standard output

/// A file in memory, at its beginning: it never blocks a writer, and a reader that dies raises no SIGPIPE.
Result<FileDescriptor> file_in_memory(const std::string& text) {
  FileDescriptor file(::memfd_create("leanattn-order", MFD_CLOEXEC));
  bool written = file && move_up(file);
  for (std::size_t sent = 0; written && sent < text.size();) {
    const ssize_t wrote = ::write(file.get(), text.data() + sent, text.size() - sent);
    if (wrote < 0 && errno == EINTR) continue;
    written = wrote > 0;
    if (written) sent += static_cast<std::size_t>(wrote);
  }
  if (written && ::lseek(file.get(), 0, SEEK_SET) == 0) return file;
  return fail(ErrorCode::out_of_memory, fmt::format("no file in memory for an order: {}", std::strerror(errno)),
              "Free memory, or raise the limit of open files (ulimit -n).");
}

/// The environment of this process, in which the GPU with this UUID is the only one: ordinals may have changed since
/// CUDA was started here, because programs set CUDA_VISIBLE_DEVICES themselves. NVRTC is the one that this process has,
/// which Python finds in places of its own: winners of another one would be stale.
std::vector<std::string> environment_of_child(const std::string& uuid) {
  constexpr std::string_view kVisible = "CUDA_VISIBLE_DEVICES=";
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    if (uuid.empty() || !std::string_view(*variable).starts_with(kVisible)) variables.emplace_back(*variable);
  }
  if (!uuid.empty()) variables.push_back(std::string(kVisible) + uuid);
  if (const auto api = nvrtc(); api && environment_variable("LEANATTN_NVRTC_LIB").empty()) {
    if (const std::filesystem::path library = (*api)->path; library.is_absolute())
      variables.push_back("LEANATTN_NVRTC_LIB=" + library.string());
  }
  return variables;
}

/// A text of the program's on one line, without what steers a terminal.
std::string on_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool plain = c > ' ' && c < 0x7f;
    if (plain) line += c;
    if (!plain && !line.empty() && line.back() != ' ') line += ' ';
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

/// The running program. Kills and reaps it if that was not done before.
class RunningProgram {
 public:
  explicit RunningProgram(pid_t pid) : pid_(pid) {}
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram() {
    if (pid_ > 0) reap_child(pid_, milliseconds(0));
  }
  void interrupt() const { ::kill(pid_, SIGTERM); }
  std::string end(milliseconds patience) { return reap_child(std::exchange(pid_, -1), patience); }

 private:
  pid_t pid_;
};

/// Takes the program's messages out of its output, and keeps what they say.
class Listener {
 public:
  Listener(const TuningOrder& order, TuningOutcome& outcome) : order_(order), outcome_(outcome) {}

  /// The last progress of these bytes, if there is any. Sets `nonsense` where the bytes are no messages.
  std::optional<TuningProgress> take(std::string& bytes) {
    std::optional<TuningProgress> last;
    std::size_t begin = 0;
    for (std::size_t end; nonsense.empty() && (end = bytes.find('\n', begin)) != std::string::npos; begin = end + 1) {
      auto message = tuning_message_from_json(std::string_view(bytes).substr(begin, end - begin));
      if (!message) {
        nonsense = on_one_line(message.error().message);
        break;
      }
      if (auto* progress = std::get_if<TuningProgress>(&*message)) last = std::move(*progress);
      if (auto* result = std::get_if<TuningResult>(&*message)) keep(*result);
      if (auto* warning = std::get_if<TuningWarning>(&*message)) keep(std::move(warning->text));
      if (auto* error = std::get_if<Error>(&*message)) outcome_.error = std::move(*error);
      ended = ended || std::holds_alternative<TuningEnd>(*message) || outcome_.error.has_value();
    }
    bytes.erase(0, begin);
    if (nonsense.empty() && bytes.size() > kLongestLine) nonsense = "a line of more than 1 MiB is no message";
    if (last && static_cast<std::size_t>(last->shape) >= order_.shapes.size()) last.reset();
    return last;
  }

  std::string nonsense;
  bool ended = false;  ///< whether it has said that it ends

 private:
  // Whatever the program says, and however often, this process keeps little of it.
  void keep(const TuningResult& result) {
    if (static_cast<std::size_t>(result.shape) >= order_.shapes.size()) return;
    std::erase_if(outcome_.results, [&](const TuningResult& earlier) { return earlier.shape == result.shape; });
    outcome_.results.push_back(result);
  }
  void keep(std::string warning) {
    std::vector<std::string>& kept = outcome_.warnings;
    if (warning.size() > kLongestWarning) {
      std::size_t end = kLongestWarning;
      while (end > 0 && (static_cast<unsigned char>(warning[end]) & 0xc0) == 0x80) --end;  // no half of a character
      warning = warning.substr(0, end) + "...";
    }
    if (kept.size() < kMostWarnings && std::find(kept.begin(), kept.end(), warning) == kept.end())
      kept.push_back(std::move(warning));
  }
  const TuningOrder& order_;
  TuningOutcome& outcome_;
};

Error gone(const std::filesystem::path& program, const std::string& how, const std::string& last_words) {
  const std::string words = on_one_line(last_words);
  return {ErrorCode::internal,
          fmt::format("{} {}{}", program.string(), how, words.empty() ? "" : "; it said: " + words),
          fmt::format("Look whether it is the leanattn program of the library's version and runs by itself: {} doctor.",
                      program.string()),
          {}};
}

}  // namespace

TuningOutcome run_tuning_child(const std::filesystem::path& program, const TuningOrder& order,
                               const TuningObserver& observer, TuningPatience patience) {
  TuningOutcome outcome;
  const auto refused = [&](const Error& error) {
    outcome.error = error;
    return outcome;
  };
  Result<FileDescriptor> input = file_in_memory(to_json(order));
  if (!input) return refused(input.error());
  Result<Pipe> output = open_pipe(), words = open_pipe();
  if (!output) return refused(output.error());
  if (!words) return refused(words.error());
  const std::string command[] = {program.string(), kTuneOrderCommand};
  const ChildDescriptor descriptors[] = {
      {input->get(), STDIN_FILENO}, {output->write.get(), STDOUT_FILENO}, {words->write.get(), STDERR_FILENO}};
  const auto started = Clock::now();
  const Result<pid_t> pid = spawn_child(command, descriptors, environment_of_child(order.uuid));
  if (!pid) return refused(pid.error());
  RunningProgram running(*pid);
  output->write.reset(), words->write.reset();

  auto stop_at = started + order.budget + patience.before_stop;
  auto kill_at = Clock::time_point::max();
  std::string bytes, last_words;
  Listener listener(order, outcome);
  bool killed = false, open = true;
  const auto stop = [&](Clock::time_point now) {
    if (kill_at != Clock::time_point::max()) return;
    running.interrupt();
    stop_at = Clock::time_point::max();
    kill_at = now + patience.before_kill;
  };
  while (open) {
    pollfd watched[] = {{output->read.get(), POLLIN, 0}, {words->read.get(), POLLIN, 0}};
    ::poll(watched, 2, static_cast<int>(kLookAt.count()));
    if (watched[1].revents != 0 && !read_available(words->read.get(), last_words)) words->read.reset();
    if (last_words.size() > kLastWords) last_words.erase(0, last_words.size() - kLastWords);
    if (watched[0].revents != 0) open = read_available(output->read.get(), bytes);
    const std::optional<TuningProgress> progress = listener.take(bytes);
    const TuningWish wish = observer ? observer(progress ? &*progress : nullptr) : TuningWish::go_on;
    outcome.stopped = outcome.stopped || wish != TuningWish::go_on;
    const auto now = Clock::now();
    if (wish == TuningWish::stop || now >= stop_at) stop(now);
    killed = wish == TuningWish::kill || now >= kill_at;
    if (killed || !listener.nonsense.empty()) break;
  }
  const std::string ending = running.end(open ? milliseconds(0) : kEndsWithin);
  if (words->read) read_available(words->read.get(), last_words);
  if (!listener.nonsense.empty()) {
    outcome.error = gone(program, "does not answer as the leanattn program does: " + listener.nonsense, last_words);
  } else if (killed && !outcome.stopped) {
    outcome.error = gone(
        program,
        fmt::format("did not end within {} ms of its budget", (patience.before_stop + patience.before_kill).count()),
        last_words);
  } else if (!listener.ended && !outcome.stopped) {
    outcome.error = gone(program, ending, last_words);
  }
  return outcome;
}

}  // namespace v1
}  // namespace leanattn
