// call_capture.cpp -- counts under one short lock, and writes on another thread.
#include "runtime/engine/call_capture.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/digest.hpp"
#include "cache/environment_variable.hpp"
#include "cache/files.hpp"
#include "runtime/engine/call_capture_file.hpp"
#include "runtime/threads.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Calls with equal ones of these are counted together.
struct CountKey {
  LookupKey key;
  int answer = 0;  ///< a Provenance, or kFailed
  bool stale = false;
  bool operator==(const CountKey&) const = default;
};
constexpr int kFailed = -1;  // the answer of a call that got no plan

struct CountKeyHash {
  std::size_t operator()(const CountKey& of) const noexcept {
    return hash(of.key) ^ static_cast<std::size_t>(of.answer * 2 + (of.stale ? 1 : 0));
  }
};

struct Counted {
  DecodeProblem problem;
  Shape shape;
  std::int64_t calls = 0;
};
using Counts = std::unordered_map<CountKey, Counted, CountKeyHash>;

/// The name with "%p" replaced by the process id and "%%" by "%".
std::string with_process_id(const std::string& file) {
  std::string name;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const char next = file[i] == '%' && i + 1 < file.size() ? file[i + 1] : '\0';
    if (next == 'p') name += std::to_string(::getpid());
    if (next == '%') name += '%';
    if (next == 'p' || next == '%') {
      ++i;
    } else {
      name += file[i];
    }
  }
  return name;
}

/// Does not block, so that a named pipe without a reader is an error instead of a wait without end.
FileDescriptor open_to_append(const std::string& file) {
  const std::string name = with_process_id(file);
  return FileDescriptor(::open(name.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600));
}

/// Returns how many bytes of `text` were written. There is one write() unless a signal interrupts it.
std::size_t append(const std::string& file, const std::string& text) {
  const FileDescriptor descriptor = open_to_append(file);
  if (!descriptor) return 0;
  for (;;) {
    const ssize_t written = ::write(descriptor.get(), text.data(), text.size());
    if (written >= 0) return static_cast<std::size_t>(written);
    if (errno != EINTR) return 0;
  }
}

}  // namespace

struct CallCapture::State {
  std::mutex writing;  ///< held while a thread writes; taken before `mutex`
  bool torn = false;   ///< the last write of this capture ended within a line

  std::mutex mutex;  ///< guards what follows
  Counts counts;
  Counts waiting;  ///< counted earlier, not written yet
  std::int64_t lost_calls = 0;
  bool ending = false;
  std::condition_variable changed;
  std::thread writer;  ///< started by the first call that is counted
};

struct CallCapture::Process {
  std::mutex mutex;
  std::vector<CallCapture*> captures;

  /// Never destroyed, because captures may end after all static objects.
  static Process& get() {
    static Process* const process = [] {
      auto* made = new Process;
      std::atexit([] { get().end(); });
      ::pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); },
                       [] {
                         get().start_afresh();
                         get().mutex.unlock();
                       });
      return made;
    }();
    return *process;
  }

  void end() {
    const std::lock_guard lock(mutex);
    for (CallCapture* capture : captures) capture->flush();
  }

  /// Called in a child of fork(), where no thread exists but the one that forked, so that locks may be held for ever.
  /// What was counted before is written by the parent.
  void start_afresh() {
    for (CallCapture* capture : captures) capture->state_ = new State;
  }
};

std::unique_ptr<CallCapture> CallCapture::from_environment(const DeviceFacts& device, std::string* warning) {
  const std::string value = environment_variable("LEANATTN_CAPTURE");
  if (value.empty()) return nullptr;
  std::error_code error;
  const std::string file = std::filesystem::absolute(value, error).string();
  const auto descriptor = open_to_append(file);
  if (error || !descriptor) {
    const std::string why = error ? error.message() : std::strerror(errno);
    *warning = fmt::format("LEANATTN_CAPTURE: cannot write {}: {}; nothing is captured", value, why);
    return nullptr;
  }
  return std::make_unique<CallCapture>(Options{.file = file, .device = device.name, .sm_count = device.sm_count});
}

CallCapture::CallCapture(Options options) : options_(std::move(options)), state_(new State) {
  Process& process = Process::get();
  const std::lock_guard lock(process.mutex);
  process.captures.push_back(this);
}

CallCapture::~CallCapture() {
  {
    Process& process = Process::get();
    const std::lock_guard lock(process.mutex);
    std::erase(process.captures, this);
  }
  {
    const std::lock_guard lock(state().mutex);
    state().ending = true;
  }
  state().changed.notify_all();
  if (state().writer.joinable()) state().writer.join();
  flush();
  delete state_;
}

void CallCapture::count(const DecodeProblem& problem, const Shape& shape, const LookupKey& key,
                        const Choice* choice) noexcept {
  const CountKey counted_by{.key = key,
                            .answer = choice != nullptr ? static_cast<int>(choice->provenance) : kFailed,
                            .stale = choice != nullptr && choice->stale};
  State& state = this->state();
  try {
    const std::lock_guard lock(state.mutex);
    if (const auto known = state.counts.find(counted_by); known != state.counts.end()) [[likely]] {
      ++known->second.calls;
      return;
    }
    if (state.counts.size() >= options_.most_counts) {
      if (!state.waiting.empty()) {
        ++state.lost_calls;
        return;
      }
      state.waiting.swap(state.counts);
      state.changed.notify_all();
    }
    state.counts.emplace(counted_by, Counted{problem, shape, 1});
    ensure_own_thread(state.writer, [this, &state] {
      std::unique_lock writer_lock(state.mutex);
      while (!state.ending) {
        state.changed.wait_for(writer_lock, options_.period,
                               [&state] { return state.ending || !state.waiting.empty(); });
        if (state.ending) return;
        writer_lock.unlock();
        const bool written = flush();
        writer_lock.lock();
        // After a write that failed the next one waits for a whole period.
        if (!written) state.changed.wait_for(writer_lock, options_.period, [&state] { return state.ending; });
      }
    });
  } catch (...) {  // out of memory: this call is not counted, but its plan is not affected
  }
}

bool CallCapture::flush() noexcept {
  State& state = this->state();
  try {
    const std::lock_guard writing(state.writing);
    Counts batch;
    std::int64_t lost = 0;
    {
      const std::lock_guard lock(state.mutex);
      batch.swap(state.waiting);
      for (auto& [of, counted] : state.counts) {
        const auto [known, added] = batch.try_emplace(of, std::move(counted));
        if (!added) known->second.calls += counted.calls;
      }
      state.counts.clear();
      lost = std::exchange(state.lost_calls, 0);
    }
    if (batch.empty() && lost == 0) return true;

    std::vector<std::pair<std::size_t, const CountKey*>> ends;  // where each line ends
    std::string text = state.torn ? "\n" : "";
    const std::string now = detail::utc_timestamp();
    for (const auto& [of, counted] : batch) {
      const bool failed = of.answer == kFailed;
      text += to_json(
          CallCaptureLine{.problem = counted.problem,
                          .shape = counted.shape,
                          .calls = counted.calls,
                          .answer = failed ? "failed" : std::string(to_string(static_cast<Provenance>(of.answer))),
                          .stale = of.stale,
                          .device = options_.device,
                          .sm_count = options_.sm_count,
                          .written = now});
      text += '\n';
      ends.emplace_back(text.size(), &of);
    }
    if (lost > 0) text += lost_calls_to_json(lost) + '\n';

    const std::size_t written = append(options_.file, text);
    if (written > 0) state.torn = text[written - 1] != '\n';
    if (written == text.size()) return true;
    // The lines that were written whole are done. The others wait for the next time.
    const std::lock_guard lock(state.mutex);
    state.lost_calls += lost;
    for (const auto& [end, of] : ends) {
      if (end <= written) continue;
      const Counted& counted = batch.at(*of);
      const auto known = state.waiting.find(*of);
      if (known != state.waiting.end()) {
        known->second.calls += counted.calls;
      } else if (state.waiting.size() < options_.most_counts) {
        state.waiting.emplace(*of, counted);
      } else {
        state.lost_calls += counted.calls;
      }
    }
    return false;
  } catch (...) {
    return false;
  }
}

}  // namespace v1
}  // namespace leanattn
