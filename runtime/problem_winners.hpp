// problem_winners.hpp -- ProblemWinners: what was measured of one problem on one device, by shape. Internal to the
// look-up (WinnerTable). Immutable once made, then read from any thread without locks.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runtime/lookup.hpp"
#include "runtime/lookup_key.hpp"
#include "runtime/place.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// A winner of a known problem.
struct MeasuredShape {
  Choice choice;  ///< as an exact hit returns it
  Place place;
};

class ProblemWinners {
 public:
  /// Parses these rows of the problem. Those that cannot be, or whose config is not one for the problem on this device,
  /// are skipped and counted. Of several rows for one shape, cold goes before warm, then the first.
  ProblemWinners(const DeviceFacts& device, const DecodeProblem& problem,
                 std::span<const LayeredWinners::Entry* const> rows);

  const DecodeProblem& problem() const { return problem_; }
  /// The winner of this very shape, whatever its max_batch; or null.
  const MeasuredShape* find(const Shape& shape) const noexcept;
  /// Measured with a cold L2, or a warm one; in the order of their rows.
  std::span<const MeasuredShape> shapes(bool cold) const;
  std::size_t size() const { return shapes_.size(); }
  std::size_t skipped() const { return skipped_; }

 private:
  struct Slot {
    LookupKey key;
    std::uint32_t shape = kEmpty;
  };
  static constexpr std::uint32_t kEmpty = std::numeric_limits<std::uint32_t>::max();

  /// Where the key is, or goes.
  std::size_t slot_of(const LookupKey& key) const noexcept;
  void add(const DeviceFacts& device, const LayeredWinners::Entry& row, const Shape& shape, const Config& config);

  DecodeProblem problem_;
  std::vector<MeasuredShape> shapes_;  ///< cold ones first
  std::size_t cold_ = 0, skipped_ = 0;
  std::vector<Slot> slots_;  ///< a power of two, at most half full; linear probing
};

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
