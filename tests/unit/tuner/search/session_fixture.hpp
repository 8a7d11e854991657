// session_fixture.hpp -- SessionTest: a fixture for whole sessions on a simulated GPU, with a database in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/layers.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"

namespace leanattn {

class SessionTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSeed = 20261121;

  SessionTest() {
    RecordProperty("seed", std::to_string(kSeed));
    SetUpDatabase();
    request.shapes = {{.batch = 1, .longest_context = 8192}};
    request.compile_threads = 2;
    environment.library_revision = "r1";
    effort = brief_effort();
  }

  /// An empty database in memory.
  void SetUpDatabase() {
    std::string warning;
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, &warning));
  }

  Result<TuneSummary> run(SimulatedGpu& gpu, const std::atomic<bool>* cancel = nullptr) {
    return run_session(request, device, environment, gpu, *db, effort, progress, cancel);
  }

  /// What an engine tries to launch, in its order, by the database as it is.
  std::vector<Config> launch_order(const Shape& shape) {
    LayeredWinners layers;
    auto winners = db->winners(device_model(device)).value();
    for (Winner& winner : winners) layers.entries.push_back({std::move(winner), "user"});
    std::vector<Config> order;
    for (const Choice& choice : WinnerTable::build(device, std::move(layers)).launch_order(request.problem, shape))
      order.push_back(choice.config);
    return order;
  }

  /// What a look-up answers from the database as it is.
  Config look_up(const Shape& shape) { return launch_order(shape).front(); }

  std::vector<Trial> all_trials() { return db->trials(device_model(device), "", "", "").value(); }

  std::vector<Trial> trials(TrialStatus status) {
    std::vector<Trial> found = all_trials();
    std::erase_if(found, [&](const Trial& trial) { return trial.status != status; });
    return found;
  }

  /// The best true time of any kernel with any useful grid.
  double exhaustive_best(SimulatedGpu& gpu, const Shape& shape) {
    gpu.set_shape(shape);
    double best = 1e9;
    for (const KernelSpec& spec : all_specs(device, request.problem)) {
      for (const RankedConfig& ranked :
           rank_grids(gpu.truth, {device, request.problem, shape}, spec, guess_resident(device, spec))) {
        best = std::min(best, gpu.true_us(ranked.config));
      }
    }
    return best;
  }

  DeviceFacts device = simulated_device();
  TuneRequest request;
  Environment environment;
  SearchEffort effort;
  ProgressSink progress;
  std::unique_ptr<TuningDb> db;
};

}  // namespace leanattn
