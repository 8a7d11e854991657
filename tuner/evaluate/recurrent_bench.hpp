// recurrent_bench.hpp -- times steps of operation `recurrent` beside copies of the same states, in the same rounds. One
// call at a time.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "generator/recurrent/recurrent_spec.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/lookup/recurrent_winners.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

struct RecurrentBenchOptions {
  int device = 0;
  int rounds = 31;
  bool sweep =
      false;  ///< also times the whole search space, in few rounds, and the best of it beside the look-up's answer
  L2Policy policy = L2Policy::cold;               ///< cold: states come from memory; warm: a launch finds them in L2
  std::span<const RecurrentWinner> winners = {};  ///< from which look-ups answer
};

struct RecurrentBenchLine {
  /// "lean" (what look-ups answer), "best" (of the search space), "tried" (others of it, the fastest first), "copy"
  /// (one read and one write of the states in place) or "traffic" (one read, and a write for each snapshot).
  std::string mode;
  std::string kernel;
  int registers = 0;  ///< a thread; 0 for copies
  double median_us = 0, low_us = 0, high_us = 0;
  double gb_per_s = 0;          ///< state_traffic() over the median, in 10^9 bytes
  double ratio_to_copy = 0;     ///< the paired ratio over "copy"
  double ratio_to_traffic = 0;  ///< and over "traffic", which is "copy" without snapshots
  std::vector<double> samples_us = {};
};

struct RecurrentBenchReport {
  DeviceFacts device;
  RecurrentProblem problem;
  int batch = 1;
  std::int64_t traffic_bytes = 0;
  int copies = 1;            ///< of the states, between which launches take turns
  bool stays_in_l2 = false;  ///< they are too few for the L2, because of the memory
  std::vector<RecurrentBenchLine> lines = {};
};

/// Every kernel is compared with the oracle before it is timed. Launches are those of CUDA graphs, which take turns
/// over states that are at least four times as large as the L2, because lines that were written stay there, too. cubins
/// and cancel may be null. Errors: those of validate(problem), no_driver, no_device, nvrtc_missing, wrong_result,
/// out_of_memory, interrupted, context_lost.
Result<RecurrentBenchReport> recurrent_bench(const RecurrentProblem& problem, int batch,
                                             const RecurrentBenchOptions& options, CubinCache* cubins,
                                             const std::atomic<bool>* cancel);

/// The reports as JSON, with GPU, driver, NVRTC and all samples.
std::string to_json(const std::vector<RecurrentBenchReport>& reports);

}  // namespace v1
}  // namespace leanattn
