// winner_table.hpp -- WinnerTable: from (problem, shape) to the configuration to launch, and how good this answer is.
// Thread-safe: a lock is taken only while winners are read for the first time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/layers.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/lookup/recurrent_winners.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// How good the answer of a look-up is: the closest measurement on which it rests. Unless that is exact or taken over
/// (Choice::taken_over), kernel and grid are those of the least predicted time for this shape, over the kernels of the
/// nearest winners and usual ones (estimate.hpp). The C ABI's leanattn_provenance has the same values; rank() says
/// which is better.
enum class Provenance : std::uint8_t {
  exact,     ///< measured for this problem and shape
  bucket,    ///< measured for this problem and a shape with the same powers of two of batch, longest, average context
  nearest,   ///< measured for a problem with the same head_dim and group
  model,     ///< measured for another problem on this GPU
  fallback,  ///< no winner on this GPU says anything of the problem: a usual kernel by the cost model, or the one
             ///< kernel of a batch-invariant problem
  without_pdl,  ///< measured for this shape or its bucket with ordinary launches
};
std::string_view to_string(Provenance p);
/// 0 for the best, 5 for the last of exact, bucket, without_pdl, nearest, model, fallback.
int rank(Provenance p);

/// The answer of a look-up. "The winner" is the measurement on which it rests.
struct Choice {
  Config config;
  Provenance provenance = Provenance::fallback;
  double tuned_us = 0;       ///< median of the winner, in microseconds; 0 for model and fallback
  double predicted_us = 0;   ///< microseconds that are expected of an untuned shape; 0 for exact, and for
                             ///< fallback without a mix
  Shape tuned_shape;         ///< the shape for which the winner was tuned
  std::string layer;         ///< that has the winner: "user", "site", "shipped" or empty
  bool stale = false;        ///< the winner was measured with another driver, NVRTC or kernel than runs now
  std::string tuned_nvrtc;   ///< the NVRTC that compiled the winner, such as "13.0"; empty: not known
  bool tuned_pdl = false;    ///< the winner was measured with programmatic dependent launch
  bool taken_over = false;   ///< kernel and grid are those of a winner at this very shape, of a problem that streams
                             ///< KV alike or of a rank's part alone; provenance is nearest
  bool tuned_group = false;  ///< the winner was measured in a group, with the exchange in its time
  GroupLink tuned_link = GroupLink::unknown;  ///< of that group
};

class WinnerTable {
 public:
  /// The winners of a problem are read when a look-up first needs them. A look-up needs those of its own problem; if
  /// the shape is not among them, those of problems that stream KV alike; if they have no winner in the shape's bucket,
  /// those of all problems with the same kernels; and if these have none either, all. Where a problem with pdl has no
  /// exact winner, the look-up also needs what one of the same problem without pdl does. Rows that cannot be parsed, or
  /// whose config is not valid for their problem on this device, are skipped and counted. Of several rows for one
  /// problem and shape, cold ones go before warm ones, and earlier ones before later ones.
  WinnerTable(const DeviceFacts& device, WinnersByProblem winners);
  /// A table that has read all winners already.
  static WinnerTable build(const DeviceFacts& device, LayeredWinners winners);
  WinnerTable(WinnerTable&&) noexcept;
  WinnerTable& operator=(WinnerTable&&) noexcept;
  ~WinnerTable();

  /// The first of exact, taken over (which is called nearest), bucket, without_pdl, nearest, model and fallback that
  /// has an answer, so there is one for every valid problem and shape. For a problem of a group, exact and bucket are
  /// measured in groups of its size and link (where it does not say its link, those of the first link with winners),
  /// and the nearest one is a winner for a rank's part alone: of the shape, which is taken over, or in its bucket. A
  /// batch-invariant problem has one kernel for all shapes, so its answer is exact (measured with that kernel) or
  /// fallback, which then is default_config(). max_batch plays no part. Of a problem with prefill
  /// whose shape has no mix, the answer is exact or fallback, too, and with a mix only winners of mixed steps count.
  /// Contexts count rounded up to 16 steps of an octave, so that shapes which differ less have one answer; not so with
  /// a mix. The config's spec has pdl only when the problem asks for
  /// it and the device has it, and not where the shape has no winner and an ordinary launch is expected to be faster.
  /// Once winners have been read, an exact answer takes two hashes; others take some nanoseconds for each winner and
  /// some 100 ns for each kernel and grid that is considered.
  Choice find(const DecodeProblem& problem, const Shape& shape) const;
  /// What to launch, in order, where kernels do not compile or load: the answer of find(), the next best that was
  /// measured for this shape, what would be predicted without these two kernels, and default_configs(). None twice.
  std::vector<Choice> launch_order(const DecodeProblem& problem, const Shape& shape) const;
  /// The winners of a problem of operation `recurrent`, which live as long as the table. They are read once. Takes a
  /// lock.
  std::span<const RecurrentWinner> recurrent_winners(const RecurrentProblem& problem) const;
  /// How many winners have been read, and how many rows were skipped meanwhile.
  std::size_t size() const;
  std::size_t skipped() const;
  /// Whether winners are missing because other processes kept a layer locked: a table that is made later may have them.
  bool locked() const;
  /// What went wrong while winners were read, one sentence each, beginning with WinnersByProblem::warnings.
  std::vector<std::string> warnings() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace v1
}  // namespace leanattn
