// shape_queue.hpp -- ShapeQueue: hands out the shapes of a TuneRequest to one session, or to several on equal devices.
// Thread-safe.
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
  /// Shapes 0 .. count - 1, in this order, for this number of sessions. There is one weight for each shape, all above
  /// 0, or none at all: then all shapes weigh the same.
  ShapeQueue(std::size_t count, std::size_t takers, std::vector<double> weights = {})
      : weights_(std::move(weights)), takers_(std::max<std::size_t>(takers, 1)) {
    weights_.resize(count, 1.0);
    for (std::size_t i = 0; i < count; ++i) waiting_.push_back(i);
  }

  /// A shape for a session to tune. The session has `turns_left` turns, this one included, among which the time that is
  /// left is divided; `share` of it belongs to this turn.
  struct Turn {
    std::size_t index = 0;
    std::size_t turns_left = 1;
    double share = 1;
  };
  /// The next shape; nullopt when there are none.
  std::optional<Turn> take() {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return std::nullopt;
    Turn turn{.index = waiting_.front(), .turns_left = (waiting_.size() + takers_ - 1) / takers_, .share = 1};
    waiting_.pop_front();
    if (turn.turns_left > 1) {
      // Which of the others this session will get is not known, so each of its later turns has their average weight.
      const double others = std::accumulate(waiting_.begin(), waiting_.end(), 0.0,
                                            [this](double sum, std::size_t i) { return sum + weights_[i]; });
      const double later = others * static_cast<double>(turn.turns_left - 1) / static_cast<double>(waiting_.size());
      turn.share = weights_[turn.index] / (weights_[turn.index] + later);
    }
    return turn;
  }

  /// Puts a shape whose session failed at the front.
  void give_back(std::size_t index) {
    const std::lock_guard lock(mutex_);
    waiting_.push_front(index);
  }

 private:
  std::mutex mutex_;
  std::deque<std::size_t> waiting_;
  std::vector<double> weights_;  // for all shapes
  std::size_t takers_;
};

}  // namespace v1
}  // namespace leanattn
