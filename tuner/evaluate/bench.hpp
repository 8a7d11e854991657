// bench.hpp -- times the grids of LeanAttention, FlashAttention-2 and FlashDecoding and the read limit in the same
// rounds. One call at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "cache/layers.hpp"
#include "runtime/lookup/decode_step.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "runtime/problem.hpp"
#include "tuner/backend/backend.hpp"

namespace leanattn {
inline namespace v1 {

struct BenchOptions {
  int device = 0;
  std::vector<int> rank_devices;  ///< of a problem of a group: the GPU of each rank, of which the first is `device`
  L2Policy policy = L2Policy::cold;
  int rounds = 0;                  ///< 0: until the interval of every median is 1 % wide, 101 at most
  std::vector<std::string> modes;  ///< some of "lean", "fa2", "fd" and "read"; empty: all
  StepRequests requests;           ///< of a ragged batch; without lengths all are as long as the shape says
  int kernels = 8;  ///< how many the cost model chooses for the baselines, beside lean's and the default's
  /// How many grids of each of those kernels lean may choose from, beside the look-up's answer and the baselines' best.
  /// The cost model ranks them. 0: lean is the look-up's answer.
  int lean_grids = 0;
  std::vector<Config> configs;  ///< timed beside the modes, with their tunables alone; lines are in their order
};

struct BenchLine {
  /// "lean", "fa2" (one CTA for each output tile), "fd" (the same number for each), "read", or "given" (a configuration
  /// of the options).
  std::string mode;
  Config config;           ///< not of "read"
  std::string provenance;  ///< of lean: that of the look-up, "default" or "best of its kind"; of "read": the kernel
  double median_us = 0, mad_us = 0, low_us = 0, high_us = 0;
  double gb_per_s = 0;             ///< kv_bytes() of the requests over the median, in 10^9 bytes
  double ratio_to_read = 0;        ///< the paired ratio of its time over the read limit
  std::vector<double> samples_us;  ///< one for each round
};

/// The line of a mode from its samples and those of the read limit in the same rounds, for launches that read `bytes`
/// each. The caller fills in config and provenance.
BenchLine bench_line(std::string mode, std::span<const double> samples_us, std::span<const double> read_us,
                     std::int64_t bytes);

struct BenchReport {
  DeviceFacts device;
  DecodeProblem problem;
  Shape shape;
  L2Policy policy = L2Policy::cold;
  std::vector<BenchLine> lines;
  std::vector<std::string> warnings = {};  ///< of winners that could not be read
  bool interrupted = false;
};

/// The configuration that an engine launches for the step when it has these winners, of which those of this L2 policy
/// count.
Choice look_up(const DecodeStep& step, L2Policy policy, LayeredWinners winners);

/// Look-ups have the winners of tuning.db in `directory` (nullopt: there is none), of the site and of the installation,
/// as those of an engine. Every configuration is checked against the oracle before it is timed. If the problem has pdl,
/// launches follow each other back to back, dependent ones where the kernel has pdl, but the read limit is still that
/// of ordinary launches. A problem of a group is timed on all ranks, whose shape it is; the time is that of the slower
/// rank, and the read limit that of the first rank's part. cubins and cancel may be null. Errors: no_driver, no_device,
/// nvrtc_missing, wrong_result, invalid_argument, unsupported (pdl before sm_90; fa2, fd and lengths of their own in a
/// group; fa2 or fd where no kernel has such a grid; a given kernel that the problem cannot have), interrupted,
/// context_lost.
Result<BenchReport> bench(const DecodeProblem& problem, const Shape& shape, const BenchOptions& options,
                          const std::optional<std::filesystem::path>& directory, CubinCache* cubins,
                          const std::atomic<bool>* cancel);

/// The reports as JSON, with GPU, driver, NVRTC, generator revision and all samples.
std::string to_json(const std::vector<BenchReport>& reports);

}  // namespace v1
}  // namespace leanattn
