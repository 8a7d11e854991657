// bench.hpp -- lean, FlashAttention-2 mode, FlashDecoding mode and the measured read limit, interleaved. One call at a
// time.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "cache/cubin_db.hpp"
#include "cache/tuning_db.hpp"
#include "runtime/device.hpp"
#include "runtime/lookup.hpp"
#include "runtime/problem.hpp"
#include "tuner/tune.hpp"

namespace leanattn {
inline namespace v1 {

struct BenchOptions {
  int device = 0;
  L2Policy policy = L2Policy::cold;
  int rounds = 0;                    ///< 0: enough for a 1 % interval, within reason
  std::vector<std::string> modes;    ///< subset of "lean", "fa2", "fd", "read"; empty: all
  std::vector<int> context_lengths;  ///< a ragged batch; empty: uniform
  int kernels = 8;                   ///< tried for each baseline, besides lean's and the default's
  /// Grids of each of those kernels that lean may choose from, the model's favourites, besides what the look-up says
  /// and the baselines' best; 0: lean is what the look-up says.
  int lean_grids = 0;
};

struct BenchLine {
  std::string mode;        ///< "lean", "fa2" (grid = output tiles), "fd" (best even multiple), "read"
  Config config;           ///< unused for "read"
  std::string provenance;  ///< where lean's config came from: exact, bucket, ..., default
  double median_us = 0, mad_us = 0, low_us = 0, high_us = 0;
  double gb_per_s = 0;
  double ratio_to_read = 0;  ///< paired, interleaved
  std::vector<double> samples_us;
};

struct BenchReport {
  DeviceFacts device;
  DecodeProblem problem;
  Shape shape;
  L2Policy policy = L2Policy::cold;
  std::vector<BenchLine> lines;
  bool interrupted = false;
};

/// What an engine with this database alone launches for the shape, by what was tuned under `policy`. Errors: the
/// database's.
Result<Choice> look_up(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape, L2Policy policy,
                       TuningDb& db);

/// Correctness against the oracle is checked before anything is timed. Errors: no_driver, no_device, nvrtc_missing,
/// wrong_result, invalid_argument, unsupported (pdl before sm_90), context_lost. With a problem of pdl every mode
/// launches with it, back to back; the read limit stays that of ordinary launches.
Result<BenchReport> bench(const DecodeProblem& problem, const Shape& shape, const BenchOptions& options, TuningDb& db,
                          CubinCache* cubins, const std::atomic<bool>* cancel);

/// With provenance (GPU, driver, NVRTC, generator revision) and raw samples.
std::string to_json(const std::vector<BenchReport>& reports);

}  // namespace v1
}  // namespace leanattn
