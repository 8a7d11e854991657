// cost_model.hpp -- a formula for the time of a configuration at a decode step. The tuner ranks candidates with it
// before anything runs, and look-ups rank the grids of untuned shapes. Pure functions of plain data; any thread.
//
//   time = start + stream + segments + merge
//   start:    until the first KV is there, and the query rows of the first segment.
//   stream:   for each wave of CTAs, whichever takes longer: memory for the bytes of the wave, or the busiest SM for
//   its
//             own. An SM pulls no more than some times its even share of the memory's rate; a ring of stages is filled
//             again one latency after it was used up (Little's law); and the steps of a warp come one after the other.
//             CTAs of later waves have to start and to end. q and O are bytes, too, and what several row blocks read
//             comes from L2 only where the schedule has them together. A dependent launch that leaves a part of the
//             room for CTAs free delays the launch after it.
//   segments: of the busiest CTA after its first. The pipeline drains and fills, and query rows change.
//   merge:    partials one after the other, or by contributors that wait for each other.
// Of a mixed step, the ranges of the line take equal times: an even share of the times of all LeanTiles, those of
// decodes and those of chunks, and of all segments, one for each output tile and one for each cut. The part of the
// schedule is exact for batches of equal lengths (templates/line/schedule.cuh), and an average for ragged ones. The
// costs are those of costs.hpp. A session of the tuner fits a factor for each of the four parts to its trials
// (tuner/model/cost_model_fit.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "generator/kernel_layout.hpp"
#include "runtime/lookup/costs.hpp"
#include "runtime/lookup/decode_step.hpp"

namespace leanattn {
inline namespace v1 {

inline constexpr std::size_t kTimeParts = 4;
/// Factors of start, stream, segments and merge: measured over modelled.
using PartFactors = std::array<double, kTimeParts>;

struct ModelParameters {
  double memory_rate = 0;  ///< all SMs together, in bytes per microsecond (10^6 B/s)
  Costs costs;
  PartFactors factors{1, 1, 1, 1};

  bool operator==(const ModelParameters&) const = default;
};

/// Those of a device that was not measured. Its memory's rate is guessed from its generation, the size of its memory
/// and the number of SMs, and costs go by its clock.
ModelParameters default_parameters(const DeviceFacts& device);

/// How a grid cuts the line: output tiles stay whole, are cut evenly, or are crossed by ranges; and whether SMs stay
/// idle, more than an eighth of them. The model's error differs more between these kinds than between grids of one
/// kind.
enum class GridKind { whole, even, crossing, idle_whole, idle_even, idle_crossing };
inline constexpr std::array kGridKinds = {GridKind::whole,      GridKind::even,      GridKind::crossing,
                                          GridKind::idle_whole, GridKind::idle_even, GridKind::idle_crossing};
constexpr bool leaves_idle(GridKind kind) { return kind >= GridKind::idle_whole; }

/// Microseconds, with the factors of the parameters.
struct ModelledTime {
  double start = 0, stream = 0, segments = 0, merge = 0;
  GridKind kind = GridKind::whole;

  double us() const { return start + stream + segments + merge; }
};

/// The time of one kernel at one step, for any grid. What grids have in common is worked out once.
class LaunchModel {
 public:
  /// resident: CTAs of this kernel that one SM holds (>= 1). The spec must be valid. Parameters must outlive this.
  LaunchModel(const ModelParameters& parameters, const DecodeStep& step, const KernelSpec& spec, int resident);
  /// Some 50 ns.
  ModelledTime with_grid(std::int64_t grid) const;
  /// Whether all output tiles of a mixed step are known to be alike (MixedLine::alike), so that a grid may cut them
  /// alike.
  bool has_alike_outputs() const { return mixed_ && mixed_->alike > 0; }

 private:
  double reads_of_kv(std::int64_t grid) const;
  double busiest_sm_us(std::int64_t ctas, double tokens_of_cta, std::int64_t segments) const;
  void add_mix(const DecodeStep& step, const KernelSpec& spec, const KernelLayout& layout);
  ModelledTime with_mix(std::int64_t grid) const;

  /// Of a mixed step.
  struct Mixed {
    struct Part {
      double longest_us = 0;  // of the LeanTiles of its longest output tile
      double partial_us = 0;  // of merging one partial
    };
    Part decodes, chunks;
    double tiles_us = 0, segments_us = 0;  // of all LeanTiles, and of starting all output tiles
    double cut_us = 0;                     // of the partial that a range leaves where it ends within an output tile
    double tile_us = 0;                    // of the average LeanTile
    std::int64_t alike = 0;                // MixedLine::alike
  };

  const ModelParameters& parameters_;
  std::int64_t sms_, held_;
  std::int64_t tiles_ = 1, tiles_per_output_ = 1;
  double tile_, token_bytes_, tokens_per_output_ = 1;
  double bytes_ = 0, row_bytes_ = 0;  // of KV once, and of q and O
  double reread_bytes_ = 0;           // so many bytes that all CTAs read meanwhile leave KV in L2
  int other_readers_ = 0;             // row blocks beyond the first that read the KV of a head at a time of their own
  double ring_tokens_, turn_tokens_;  // in the ring at once, and in one turn of all warps
  double turn_us_, crowding_;         // of one turn, and by how much longer it takes for each CTA of an SM
  double start_us_, row_us_, merge_turns_, merge_columns_;
  bool dependent_, waits_;
  std::optional<Mixed> mixed_;
};

/// The same for one grid.
ModelledTime modelled_time(const ModelParameters& parameters, const DecodeStep& step, const Config& config,
                           int resident);
/// Microseconds.
double predict_us(const ModelParameters& parameters, const DecodeStep& step, const Config& config, int resident);

/// The useful grid of least predicted time.
std::int64_t fastest_grid(const DecodeStep& step, const KernelSpec& spec);

}  // namespace v1
}  // namespace leanattn
