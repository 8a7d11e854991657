// simulated_tune.cpp -- a tuning process without a GPU, for tests that kill or interrupt it. It has sessions behind
// fake workers, and the database and the signals of the real program. It prints "ready" once it heeds interrupts, and
// then a line for every report of progress.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "cli/console/console.hpp"
#include "cli/console/stop.hpp"
#include "planted_faults.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"
#include "tuner/search/devices.hpp"

namespace leanattn {
namespace {

void say(const std::string& line) { (void)!::write(STDOUT_FILENO, line.data(), line.size()); }

/// Arguments: cache directory, fake worker, its faults, number of devices, first context length, "resume" or "anew".
int run(const std::vector<std::string>& arguments) {
  const std::filesystem::path directory = arguments.at(0);
  TuneRequest request;
  const int devices = std::stoi(arguments.at(3));
  const std::int64_t context = std::stoll(arguments.at(4));
  request.shapes = {{.batch = 1, .longest_context = context}, {.batch = 4, .longest_context = context}};
  request.compile_threads = 2;
  request.resume = arguments.at(5) == "resume";
  std::vector<DeviceToTune> hosts;
  for (int i = 0; i < devices; ++i) {
    DeviceToTune device{.facts = simulated_device(), .environment = {}};
    device.facts.ordinal = i;
    device.environment.library_revision = "r1";
    hosts.push_back(device);
  }
  const WorkerOptions workers{.command = {arguments.at(1), arguments.at(2)},
                              .candidate_limit = std::chrono::minutes(2)};
  const SearchEffort effort{.specs = 16};
  const auto connect = [&] { return TuningDb::open(directory, OpenMode::read_write, nullptr); };
  const std::atomic<bool>* stop = stop_on_signals();
  say("ready\n");
  const auto summaries = tune_devices(
      request, hosts, workers, connect, effort, [](const TuneProgress& p) { say(p.phase + "\n"); }, stop);
  if (!summaries) return report_error(summaries.error());
  say("done\n");
  return summaries->front().summary.interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace
}  // namespace leanattn

int main(int argc, char** argv) { return leanattn::run({argv + 1, argv + argc}); }
