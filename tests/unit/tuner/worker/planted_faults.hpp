// planted_faults.hpp -- PlantedFault: what a fake worker does wrong, when, and with which candidates. The test knows
// it, and tells the worker on its command line. Plain data.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/problem.hpp"

namespace leanattn::worker_test {

struct PlantedFault {
  /// hang, segv, abort, exit, kill (as the operating system does when memory runs out), garbage, torn, oversized,
  /// unasked, context_lost, out_of_memory, chatter (much output and nothing wrong), wrong (a wrong result in half the
  /// time).
  std::string what = {};
  std::string when = {};    ///< compile, open, begin, check, time
  std::string load = {};    ///< only kernels with this load path; empty: all
  int stages = 0;           ///< only kernels with this many stages; 0: all
  std::string beside = {};  ///< only in rounds with a kernel of this load path (needs when == "time")
  int after = 0;            ///< only once the candidate was timed so often by any worker, or, with when == "begin",
                            ///< once any worker has begun the shape so often (needs `memory`)
  int until = 0;            ///< only before it was timed so often; 0: always
  int ordinal = -1;         ///< only on this device; -1: on all
  int context = 0;          ///< only of shapes with this longest context (needs when == "begin"); 0: of all
  std::string memory = {};  ///< a directory in which workers count and note that they hang

  bool of(const KernelSpec& spec) const {
    return (load.empty() || load == to_string(spec.load)) && (stages == 0 || stages == spec.stages);
  }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PlantedFault, what, when, load, stages, beside, after, until, ordinal,
                                                context, memory)

inline std::vector<std::string> worker_command(const char* program, const std::vector<PlantedFault>& faults) {
  return {program, nlohmann::json(faults).dump()};
}

}  // namespace leanattn::worker_test
