// planted_faults.hpp -- what a fake worker does wrong, when, and with which candidates: told to it on its command line,
// and known to the test. Plain data.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/problem.hpp"

namespace leanattn::worker_test {

struct PlantedFault {
  /// hang, segv, abort, exit, kill (as the kernel does when memory runs out), garbage, torn, oversized, unasked,
  /// context_lost, out_of_memory, chatter (a lot to say, nothing wrong), wrong (and twice as fast).
  std::string what = {};
  std::string when = {};    ///< compile, open, begin, check, time
  std::string load = {};    ///< of kernels with this load path; empty: any
  int stages = 0;           ///< and this many stages; 0: any
  std::string beside = {};  ///< time only: where a kernel with this load path is in the same round
  int after = 0;            ///< only once the candidate has been timed this often, by whichever worker (needs `memory`)
  int until = 0;            ///< and only before it has been timed so often; 0: for ever
  int ordinal = -1;         ///< on this device; -1: any
  std::string memory = {};  ///< a directory where workers count, and say that they hang

  bool of(const KernelSpec& spec) const {
    return (load.empty() || load == to_string(spec.load)) && (stages == 0 || stages == spec.stages);
  }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PlantedFault, what, when, load, stages, beside, after, until, ordinal,
                                                memory)

inline std::vector<std::string> worker_command(const char* program, const std::vector<PlantedFault>& faults) {
  return {program, nlohmann::json(faults).dump()};
}

}  // namespace leanattn::worker_test
