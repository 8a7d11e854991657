// trial_writer.hpp -- TrialWriter: commits each trial in its own transaction on a thread of its own, so that the disk
// and the GPU work at the same time; or on that of the caller, where the system has none to give. One thread makes and
// calls it. Between construction and drain(), and between add() and drain(), only the writer may use the database.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>

#include "cache/tuning/tuning_db.hpp"
#include "runtime/threads.hpp"

namespace leanattn {
inline namespace v1 {

class TrialWriter {
 public:
  TrialWriter(TuningDb& db, std::string session);
  /// Commits the trials that are left.
  ~TrialWriter();
  TrialWriter(const TrialWriter&) = delete;
  TrialWriter& operator=(const TrialWriter&) = delete;

  /// Hands a trial over. Waits only while kMostWaiting trials are not committed yet. After a failed commit, further
  /// trials are dropped.
  void add(Trial trial);
  /// Waits until all trials are committed. From then until the next add() the caller may use the database. Errors: that
  /// of the first commit that failed.
  Result<void> drain();

  static constexpr std::size_t kMostWaiting = 64;

 private:
  void work();
  /// Commits on this thread. Called with the lock, which it gives up meanwhile.
  void commit(const Trial& trial, std::unique_lock<std::mutex>& lock);

  TuningDb& db_;
  std::string session_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Trial> waiting_;
  bool committing_ = false, stopping_ = false;
  Result<void> outcome_;
  ThreadGroup thread_;  ///< of one thread, or none
};

}  // namespace v1
}  // namespace leanattn
