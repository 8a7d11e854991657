// lookup.hpp -- WinnerTable: from (problem, shape) to what to launch, and how good the answer is. Any thread: a lock is
// taken where winners are read for the first time, none after that.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/tuning_db.hpp"
#include "runtime/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// How a configuration was found. For bucket, nearest and without_pdl, kernel and grid are the fitted model's choice
/// for this shape (portfolio.hpp) where a model of a problem close enough exists, else those of the measured shape, the
/// grid re-derived. The C ABI's leanattn_provenance has the same values; rank() says which is better.
enum class Provenance : std::uint8_t {
  exact,        ///< measured for this problem and shape
  bucket,       ///< measured for this problem and the same powers of two of batch, longest and average context
  nearest,      ///< measured for the same head_dim and group
  model,        ///< tunables of another measured problem of this GPU; the grid is the schedule model's
  fallback,     ///< nothing is known: default_config()
  without_pdl,  ///< measured for this shape or its bucket with ordinary launches; dependent launch is switched on
};
std::string_view to_string(Provenance p);
/// 0 for the best answer: exact, bucket, without_pdl, nearest, model, fallback.
int rank(Provenance p);

struct Choice {
  Config config;
  Provenance provenance = Provenance::fallback;
  double tuned_us = 0;      ///< of the winner it rests on; 0 for model and fallback
  double predicted_us = 0;  ///< of a shape nobody tuned, where a model was fitted to the problem's trials; else 0
  Shape tuned_shape;        ///< the shape that winner was tuned for
  std::string layer;        ///< "user", "site", "shipped" or empty
  bool stale = false;
  bool tuned_pdl = false;  ///< that winner was measured with programmatic dependent launch
};

class WinnerTable {
 public:
  /// A problem's winners are read when a look-up first needs them: those of the problem asked for, then, for a shape
  /// that is not in its bucket, those of problems with the same kernels, then all. Rows that cannot be parsed, or whose
  /// config is not one for their problem on this device, are skipped and counted. Of several rows for one problem and
  /// shape, cold goes before warm, then the first.
  WinnerTable(const DeviceFacts& device, WinnersByProblem winners);
  /// With all of them, read and parsed.
  static WinnerTable build(const DeviceFacts& device, LayeredWinners winners);
  WinnerTable(WinnerTable&&) noexcept;
  WinnerTable& operator=(WinnerTable&&) noexcept;
  ~WinnerTable();

  /// Never fails for a valid problem and shape: exact -> bucket -> without_pdl -> nearest -> model -> fallback.
  /// A batch-invariant problem has one kernel for all shapes: exact (measured with that kernel), else fallback.
  /// max_batch plays no part. The config's spec has pdl exactly when the problem asks for it and the device has it. Of
  /// winners that have been read, an exact hit is two hashes; the rest walk the winners, some nanoseconds each.
  Choice find(const DecodeProblem& problem, const Shape& shape) const;
  /// The exact winner, as long as this table, or null.
  const Choice* find_exact(const DecodeProblem& problem, const Shape& shape) const;
  /// Of the winners that have been read.
  std::size_t size() const;
  std::size_t skipped() const;
  /// What went wrong while winners were read, beginning with WinnersByProblem::warnings.
  std::vector<std::string> warnings() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What is launched when nothing is known: safe on every supported device (tickets, no more CTAs than are resident at
/// once, few registers). The first of default_configs().
Config default_config(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape);
/// The default and what to try after it, should this NVRTC not compile it cleanly. Never empty; all of them valid.
std::vector<Config> default_configs(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape);

/// Canonical device-model row for the database.
DeviceModel device_model(const DeviceFacts& device);
/// Driver, NVRTC, clocks as they are now. Without a driver the driver fields are 0.
Environment current_environment(const DeviceFacts& device);
/// The part of it that tells stale winners from others (same_software). Of a device that is not here: nullopt.
std::optional<Environment> current_software(const DeviceFacts& device);

/// Whether one request of the batch is so much longer than the average that segments must be charged (Config::
/// segment_cost). Of a problem with a window, ask about visible_shape().
bool is_ragged(const Shape& shape);

/// Useful grids for a shape: powers of two, multiples and shares of the SM count, multiples and divisors of output
/// tiles, FlashAttention-2's and FlashDecoding's grids; up to two waves, and at most one LeanTile per CTA. A spec that
/// waits gets no more than `resident_ctas_per_sm` CTAs an SM. Sorted, unique, never empty.
std::vector<std::int64_t> useful_grids(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                                       const KernelSpec& spec, int resident_ctas_per_sm);

/// batch * kv_heads * row_blocks, and the LeanTiles on the line when the shape is uniform: of visible tokens only.
std::int64_t output_tiles(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec);
std::int64_t lean_tiles(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec);

/// The spec that the problem fixes (arch, heads, dtype, layout, lse, pdl, features), with the tunables at their
/// defaults.
KernelSpec base_spec(Arch arch, const DecodeProblem& problem);

/// Whether GPUs of this arch can start a kernel before the one in front of it has ended.
bool has_dependent_launch(Arch arch);

}  // namespace v1
}  // namespace leanattn
