#include "runtime/engine/late_winners.hpp"

#include <chrono>

#include "runtime/threads.hpp"

namespace leanattn {
inline namespace v1 {

LateWinners::~LateWinners() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LateWinners::request() {
  const std::lock_guard lock(mutex_);
  if (requested_ || !ensure_own_thread(thread_, [this] { run(); })) return;
  requested_ = true;
  wake_.notify_one();
}

void LateWinners::run() {
  constexpr std::chrono::milliseconds kPause{50};
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || requested_; });
    if (stopping_) return;
    lock.unlock();
    const bool done = retry_();
    lock.lock();
    if (done) {
      requested_ = false;
    } else {
      wake_.wait_for(lock, kPause, [&] { return stopping_; });
    }
  }
}

}  // namespace v1
}  // namespace leanattn
