#include "tuner/measure/race.hpp"

#include <algorithm>
#include <cassert>

namespace leanattn {
inline namespace v1 {

Race::Race(std::size_t candidates) : samples_(candidates), alive_(candidates, true) {}

std::vector<std::size_t> Race::order() const {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < alive_.size(); ++i) {
    if (alive_[i]) order.push_back(i);
  }
  const std::size_t turn = static_cast<std::size_t>(rounds_) + static_cast<std::size_t>(discarded_);
  // The order runs forwards and backwards in turn, and from another start every time: so both the neighbour of a
  // candidate and its position change.
  if (turn % 2 == 1) std::reverse(order.begin(), order.end());
  if (!order.empty()) {
    const auto start = static_cast<std::ptrdiff_t>(turn / 2 * 5 % order.size());
    std::rotate(order.begin(), order.begin() + start, order.end());
  }
  return order;
}

bool Race::add(std::span<const std::size_t> order, const RoundTimes& times) {
  assert(order.size() == times.us.size());
  const std::string noise = !times.throttle.empty()             ? times.throttle
                            : times.sentinel_drift > kMostDrift ? "clocks moved within a round"
                                                                : "";
  if (!noise.empty() && discarded_in_a_row_ < 2) {
    ++discarded_;
    ++discarded_in_a_row_;
    return false;
  }
  if (!noise.empty()) noise_ = noise;
  if (!times.neighbours.empty()) neighbours_ = times.neighbours;
  stays_in_l2_ = stays_in_l2_ || times.stays_in_l2;
  if (times.sm_clock_mhz > 0) {
    lowest_clock_mhz_ = lowest_clock_mhz_ > 0 ? std::min(lowest_clock_mhz_, times.sm_clock_mhz) : times.sm_clock_mhz;
    highest_clock_mhz_ = std::max(highest_clock_mhz_, times.sm_clock_mhz);
  }
  discarded_in_a_row_ = 0;
  ++rounds_;
  for (std::size_t i = 0; i < order.size(); ++i) samples_[order[i]].push_back(times.us[i]);
  return true;
}

std::string Race::noise() const {
  std::string text = noise_;
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (lowest_clock_mhz_ < kSteadyClock * highest_clock_mhz_)
    add("SM clock " + std::to_string(lowest_clock_mhz_) + " to " + std::to_string(highest_clock_mhz_) + " MHz");
  if (!neighbours_.empty()) add(neighbours_);
  if (stays_in_l2_) add("what is read stays in L2");
  return text;
}

void Race::drop_slower(double tolerance) {
  if (rounds_ == 0) return;
  const std::size_t best = leader();
  for (std::size_t i = 0; i < alive_.size(); ++i) {
    if (alive_[i] && i != best && ratio(i, best).slower(tolerance)) alive_[i] = false;
  }
}

void Race::keep_best(std::size_t most) {
  if (rounds_ == 0) return;
  std::vector<std::size_t> in = order();
  if (in.size() <= most) return;
  std::sort(in.begin(), in.end());
  std::stable_sort(in.begin(), in.end(),
                   [&](std::size_t a, std::size_t b) { return median(samples_[a]) < median(samples_[b]); });
  for (std::size_t i = most; i < in.size(); ++i) alive_[in[i]] = false;
}

std::size_t Race::alive() const { return static_cast<std::size_t>(std::count(alive_.begin(), alive_.end(), true)); }

std::size_t Race::leader() const {
  assert(rounds_ > 0);
  std::size_t best = alive_.size();
  double best_median = 0;
  for (std::size_t i = 0; i < alive_.size(); ++i) {
    if (!alive_[i]) continue;
    const double m = median(samples_[i]);
    if (best == alive_.size() || m < best_median) best = i, best_median = m;
  }
  assert(best < alive_.size());
  return best;
}

PairedRatio Race::ratio(std::size_t a, std::size_t b) const {
  // Every candidate starts in the first round and leaves once, so common rounds are a common prefix.
  const std::size_t common = std::min(samples_[a].size(), samples_[b].size());
  return paired_ratio(std::span(samples_[a]).first(common), std::span(samples_[b]).first(common));
}

std::vector<std::size_t> Race::tied_with_leader(double tolerance) const {
  const std::size_t best = leader();
  std::vector<std::size_t> tied;
  for (std::size_t i = 0; i < alive_.size(); ++i) {
    if (!alive_[i]) continue;
    const PairedRatio r = ratio(i, best);
    // Few or noisy samples must not make a tie of what looks clearly slower.
    if (i == best || r.ratio <= 1 + tolerance || (r.low <= 1 && r.ratio <= 1 + kWidestTie)) tied.push_back(i);
  }
  return tied;
}

}  // namespace v1
}  // namespace leanattn
