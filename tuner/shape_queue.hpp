// shape_queue.hpp -- ShapeQueue: the shapes of a request that wait to be tuned, handed out to one session or to several
// on equal devices. Thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>

namespace leanattn {
inline namespace v1 {

class ShapeQueue {
 public:
  /// Shapes 0 .. count - 1, in this order, for `takers` sessions.
  ShapeQueue(std::size_t count, std::size_t takers) : takers_(std::max<std::size_t>(takers, 1)) {
    for (std::size_t i = 0; i < count; ++i) waiting_.push_back(i);
  }

  /// The next one, and how many turns each session has left, this one included: what the time that is left is shared
  /// among. nullopt when there are none.
  struct Turn {
    std::size_t index = 0;
    std::size_t turns_left = 1;
  };
  std::optional<Turn> take() {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return std::nullopt;
    const Turn turn{waiting_.front(), (waiting_.size() + takers_ - 1) / takers_};
    waiting_.pop_front();
    return turn;
  }

  /// A shape whose session failed: the next taker's.
  void give_back(std::size_t index) {
    const std::lock_guard lock(mutex_);
    waiting_.push_front(index);
  }

 private:
  std::mutex mutex_;
  std::deque<std::size_t> waiting_;
  std::size_t takers_;
};

}  // namespace v1
}  // namespace leanattn
