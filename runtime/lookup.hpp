// lookup.hpp -- WinnerTable: immutable flat map from (problem, shape) to what to launch, and how good the answer is.
// Built once, then read from any thread without locks.
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

/// How a configuration was found, best first.
enum class Provenance : std::uint8_t { exact, bucket, nearest, model, fallback };
std::string_view to_string(Provenance p);

struct Choice {
  Config config;
  Provenance provenance = Provenance::fallback;
  double tuned_us = 0;      ///< of the winner it rests on; 0 for model and fallback
  Shape tuned_shape;        ///< the shape that winner was tuned for
  std::string layer;        ///< "user", "site", "shipped" or empty
  bool stale = false;
};

class WinnerTable {
 public:
  /// Unparsable rows are skipped and counted.
  static WinnerTable build(const DeviceFacts& device, const LayeredWinners& winners);
  WinnerTable(WinnerTable&&) noexcept;
  WinnerTable& operator=(WinnerTable&&) noexcept;
  ~WinnerTable();

  /// Never fails for a valid problem and shape: exact -> bucket -> nearest -> model -> fallback. No allocation on an exact hit's path
  /// beyond the returned value.
  Choice find(const DecodeProblem& problem, const Shape& shape) const;
  /// The exact winner's index-free pointer or null: the hot path of Engine::plan.
  const Choice* find_exact(const DecodeProblem& problem, const Shape& shape) const noexcept;
  std::size_t size() const;
  std::size_t skipped() const;

 private:
  WinnerTable();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What is launched when nothing is known: safe on every supported device.
Config default_config(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape);

/// Canonical device-model row for the database.
DeviceModel device_model(const DeviceFacts& device);
/// Driver, NVRTC, clocks as they are now. Without a driver the driver fields are 0.
Environment current_environment(const DeviceFacts& device);

/// Useful grids for a shape: powers and multiples of SM count x residency, multiples and divisors of output tiles, FlashAttention-2 and
/// FlashDecoding grids, capped at one LeanTile per CTA. Sorted, unique, never empty.
std::vector<std::int64_t> useful_grids(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                                       const KernelSpec& spec, int resident_ctas_per_sm);

/// batch * kv_heads * row_blocks, and the LeanTiles on the line when the shape is uniform.
std::int64_t output_tiles(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec);
std::int64_t lean_tiles(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec);

/// The spec that the problem fixes (arch, heads, dtype, layout, lse), with the tunables at their defaults.
KernelSpec base_spec(Arch arch, const DecodeProblem& problem);

}  // namespace v1
}  // namespace leanattn
