// engine_tuning.hpp -- EngineTuning: tuning on behalf of an engine, in a child process. Thread-safe; only destruction
// must come after every other call. It makes no CUDA call, so nothing here can disturb a stream capture of any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cuda/device.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "runtime/tuning/tuning_child.hpp"

namespace leanattn {
inline namespace v1 {

/// How far a tuning is.
struct TuneStep {
  int shape = 0;  ///< an index into the shapes of the call
  int shape_count = 0;
  std::string phase = {};  ///< "wait" for another tuning of the engine, "start", or a phase of the search
  int done = 0, total = 0;
  double best_us = 0;
  double elapsed_s = 0;
};

/// See leanattn_tune_options.
struct TuneOptions {
  double budget_s = 0, shape_budget_s = 0;
  std::int64_t memory_bytes = 0;
  bool retune = false;
  std::string program = {};
  std::function<bool(const TuneStep&)> progress = {};  ///< false stops the tuning; may be empty
};

/// See leanattn_tuned_shape.
struct ShapeTuning {
  ErrorCode status = ErrorCode::ok;
  Choice choice;  ///< of a look-up now
  bool measured = false, finished = false;
  double read_limit_us = 0, default_us = 0;
  int candidates = 0, rejected = 0, incorrect = 0;
};

struct TuneReport {
  std::vector<ShapeTuning> shapes;  ///< in the order of the call
  std::optional<Error> error;       ///< what ended the tuning early, beside its budget
};

/// What plan() does when its answer is not exact, or is stale.
enum class Autotune : int { off, background, wait };

class EngineTuning {
 public:
  /// What it needs of its engine.
  struct Parts {
    DeviceFacts device;
    std::optional<std::filesystem::path> cache_directory;            ///< nullopt: winners cannot be stored
    std::function<void()> reload;                                    ///< makes the engine read its winners again
    std::function<Choice(const DecodeProblem&, const Shape&)> find;  ///< a look-up
    TuningPatience patience;
  };
  explicit EngineTuning(Parts parts);
  EngineTuning(const EngineTuning&) = delete;
  EngineTuning& operator=(const EngineTuning&) = delete;
  /// Kills a tuning in the background that is under way.
  ~EngineTuning();

  /// See leanattn_engine_tune. Errors: invalid_argument, unsupported, cache_unavailable, not_found (no program); what
  /// happens later is in the report.
  Result<TuneReport> tune(const DecodeProblem& problem, std::span<const Shape> shapes, const TuneOptions& options);

  /// See leanattn_engine_autotune. Errors: as tune().
  Result<void> set_autotune(Autotune mode, const TuneOptions& options);
  /// Whether this answer is one that plan() should bring to first_use().
  bool wants(const Choice& choice) const {
    return mode_.load(std::memory_order_relaxed) != Autotune::off && !is_settled(choice);
  }
  /// Tunes the shape or has it tuned, as the mode says, within what is left of the budget. True if a look-up may have a
  /// better answer now.
  bool first_use(const DecodeProblem& problem, const Shape& shape);

  /// What went wrong with tunings whose caller was not told, one sentence each.
  std::vector<std::string> warnings() const;

  /// Whether there is nothing to gain: the winner was measured for this shape, with the present software.
  static bool is_settled(const Choice& choice) { return choice.provenance == Provenance::exact && !choice.stale; }

 private:
  struct FirstUse {
    DecodeProblem problem;
    Shape shape;
  };
  Result<void> check(const TuneOptions& options) const;
  /// Waits for the turn, then tunes.
  Result<TuneReport> tune_in_turn(const DecodeProblem& problem, std::span<const Shape> shapes,
                                  const TuneOptions& options, const TuningObserver& interrupt);
  TuneReport tune_now(const std::filesystem::path& program, const DecodeProblem& problem, std::span<const Shape> shapes,
                      const TuneOptions& options, const TuningObserver& interrupt);
  void warn(std::string text);
  /// Tunes first uses of one problem, within the budget. The error is in the warnings.
  void tune_first_uses(const DecodeProblem& problem, std::span<const Shape> shapes, const TuningObserver& interrupt);
  void run();

  /// The right to run a child, until the end of the object: two at a time would disturb each other's times.
  class Turn {
   public:
    /// Waits for it. False once `go_on`, which is asked several times a second, is.
    template <class GoOn>
    bool take(EngineTuning& of, const GoOn& go_on) {
      std::unique_lock lock(of.mutex_);
      while (of.turn_taken_) {
        of.wake_.wait_for(lock, kLookWhileWaiting);
        lock.unlock();
        if (!go_on()) return false;
        lock.lock();
      }
      of.turn_taken_ = true;
      of_ = &of;
      return true;
    }
    Turn() = default;
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (of_ == nullptr) return;
      {
        const std::lock_guard lock(of_->mutex_);
        of_->turn_taken_ = false;
      }
      of_->wake_.notify_all();
    }

   private:
    EngineTuning* of_ = nullptr;
  };
  static constexpr std::chrono::milliseconds kLookWhileWaiting{100};

  const Parts parts_;
  std::atomic<Autotune> mode_{Autotune::off};
  std::atomic<TuningWish> background_{TuningWish::go_on};  ///< for the child that the thread has started

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable wake_;
  bool turn_taken_ = false;
  TuneOptions options_;           ///< of first uses
  double spent_s_ = 0;            ///< of their budget
  std::set<std::string> seen_;    ///< first uses that were asked for
  std::deque<FirstUse> waiting_;  ///< for the thread
  bool running_ = false;          ///< whether the thread tunes
  bool stopping_ = false;
  std::vector<std::string> warnings_;
  std::thread thread_;
};

}  // namespace v1
}  // namespace leanattn
