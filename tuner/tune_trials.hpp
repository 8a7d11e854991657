// tune_trials.hpp -- TrialWriter: commits each trial in its own transaction on a thread of its own, so that the disk's
// flushes and the GPU work at the same time. Between construction and drain() the database belongs to the writer.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "cache/tuning_db.hpp"

namespace leanattn {
inline namespace v1 {

class TrialWriter {
 public:
  TrialWriter(TuningDb& db, std::string session);
  /// Commits what is left.
  ~TrialWriter();
  TrialWriter(const TrialWriter&) = delete;
  TrialWriter& operator=(const TrialWriter&) = delete;

  /// Hands a trial over; waits only while kMostWaiting are not committed yet. After a failed commit further trials are
  /// dropped.
  void add(Trial trial);
  /// Waits until everything handed over is committed; afterwards, and until the next add(), the caller may use the
  /// database. Errors: the first commit's that failed.
  Result<void> drain();

  static constexpr std::size_t kMostWaiting = 64;

 private:
  void work();

  TuningDb& db_;
  std::string session_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Trial> waiting_;
  bool committing_ = false, stopping_ = false;
  Result<void> outcome_;
  std::thread thread_;
};

}  // namespace v1
}  // namespace leanattn
