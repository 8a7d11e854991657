// problem_winners.hpp -- ProblemWinners: the winners of one problem on one device, by shape. Internal to this folder.
// Immutable once made; any thread may then read it without locks.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "runtime/lookup/key.hpp"
#include "runtime/lookup/prediction.hpp"
#include "runtime/lookup/shape_features.hpp"
#include "runtime/lookup/winner_table.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// A winner of a known problem.
struct MeasuredShape {
  Choice choice;               ///< as an exact hit returns it
  std::optional<Choice> next;  ///< what runs where that does not: the next best that was measured
  ShapeFeatures shape_features;
  SeenShape seen;  ///< how far its time is from the model's
};

class ProblemWinners {
 public:
  /// Parses these rows of the problem. Rows that cannot be parsed, or whose config is not valid for the problem on this
  /// device, are skipped and counted. Of several rows for one shape, cold ones go before warm ones, and earlier ones
  /// before later ones.
  ProblemWinners(const DeviceFacts& device, const DecodeProblem& problem,
                 std::span<const LayeredWinners::Entry* const> rows);

  const DecodeProblem& problem() const { return problem_; }
  /// The winner of this very shape, with any max_batch; or null.
  const MeasuredShape* find(const Shape& shape) const noexcept;
  /// The winners of one policy, in the order of their rows.
  std::span<const MeasuredShape> shapes(L2Policy policy) const;
  std::size_t size() const { return shapes_.size(); }
  std::size_t skipped() const { return skipped_; }

 private:
  struct Slot {
    LookupKey key;
    std::uint32_t shape = kEmpty;
  };
  static constexpr std::uint32_t kEmpty = std::numeric_limits<std::uint32_t>::max();

  /// The index of the slot that has the key, or where it belongs.
  std::size_t slot_of(const LookupKey& key) const noexcept;
  void add(const DecodeStep& step, const LayeredWinners::Entry& row, const Config& config, const Config* next);

  DecodeProblem problem_;
  std::vector<MeasuredShape> shapes_;  ///< cold ones first
  std::size_t cold_ = 0, skipped_ = 0;
  std::vector<Slot> slots_;  ///< a power of two, at most half full; linear probing
};

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
