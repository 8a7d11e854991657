// shape_queue.hpp -- ShapeQueue: the shapes of a request that wait to be tuned, handed out to one session or to several
// on equal devices. Thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace leanattn {
inline namespace v1 {

class ShapeQueue {
 public:
  /// Shapes 0 .. count - 1, in this order, for `takers` sessions. `weights`: one a shape, all above 0; or none, and all
  /// shapes weigh the same.
  ShapeQueue(std::size_t count, std::size_t takers, std::vector<double> weights = {})
      : weights_(std::move(weights)), takers_(std::max<std::size_t>(takers, 1)) {
    weights_.resize(count, 1.0);
    for (std::size_t i = 0; i < count; ++i) waiting_.push_back(i);
  }

  /// The next one, and how many turns each session has left, this one included: what the time that is left is shared
  /// among, `share` of it being this one's. nullopt when there are none.
  struct Turn {
    std::size_t index = 0;
    std::size_t turns_left = 1;
    double share = 1;
  };
  std::optional<Turn> take() {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return std::nullopt;
    Turn turn{.index = waiting_.front(), .turns_left = (waiting_.size() + takers_ - 1) / takers_, .share = 1};
    waiting_.pop_front();
    if (turn.turns_left > 1) {
      // Nobody knows which of the others this session will get: each of its later turns weighs as much as they do on
      // average.
      const double others = std::accumulate(waiting_.begin(), waiting_.end(), 0.0,
                                            [this](double sum, std::size_t i) { return sum + weights_[i]; });
      const double later = others * static_cast<double>(turn.turns_left - 1) / static_cast<double>(waiting_.size());
      turn.share = weights_[turn.index] / (weights_[turn.index] + later);
    }
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
  std::vector<double> weights_;  // of all shapes
  std::size_t takers_;
};

}  // namespace v1
}  // namespace leanattn
