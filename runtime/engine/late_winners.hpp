// late_winners.hpp -- LateWinners: another try, in the background, to read winners that other processes kept locked.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace leanattn {
inline namespace v1 {

/// One thread, started by the first request. Each try waits for the lock itself, so that there is only a short pause
/// between two.
class LateWinners {
 public:
  /// `retry` is called on the thread of this object, and again until it returns true: then the winners are there.
  explicit LateWinners(std::function<bool()> retry) : retry_(std::move(retry)) {}
  LateWinners(const LateWinners&) = delete;
  LateWinners& operator=(const LateWinners&) = delete;
  /// Waits for the try in progress.
  ~LateWinners();

  /// Has the winners read again, unless that is under way. Returns at once.
  void request();

 private:
  void run();

  std::function<bool()> retry_;
  std::mutex mutex_;  ///< what follows
  std::condition_variable wake_;
  bool requested_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace v1
}  // namespace leanattn
