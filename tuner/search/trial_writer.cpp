#include "tuner/search/trial_writer.hpp"

#include <utility>

namespace leanattn {
inline namespace v1 {

TrialWriter::TrialWriter(TuningDb& db, std::string session) : db_(db), session_(std::move(session)) {
  thread_.start([this] { work(); });
}

TrialWriter::~TrialWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TrialWriter::add(Trial trial) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.size() < kMostWaiting || !outcome_; });
  if (!outcome_) return;
  if (thread_.empty()) return commit(trial, lock);
  waiting_.push_back(std::move(trial));
  changed_.notify_all();
}

Result<void> TrialWriter::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return (waiting_.empty() && !committing_) || !outcome_; });
  return outcome_;
}

void TrialWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty() || !outcome_) {
      if (stopping_) return;
      waiting_.clear();
      continue;
    }
    const Trial trial = std::move(waiting_.front());
    waiting_.pop_front();
    commit(trial, lock);
  }
}

void TrialWriter::commit(const Trial& trial, std::unique_lock<std::mutex>& lock) {
  committing_ = true;
  lock.unlock();
  const Result<std::string> committed = db_.add_trial(session_, trial);
  lock.lock();
  committing_ = false;
  if (!committed) outcome_ = tl::unexpected(committed.error());
  changed_.notify_all();
}

}  // namespace v1
}  // namespace leanattn
