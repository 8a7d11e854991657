// worker_fixture.hpp -- WorkerSession: a fixture for whole sessions behind fake workers, with a database.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "planted_faults.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tests/temporary_directory.hpp"
#include "tests/thoroughness.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"
#include "tuner/worker/backend.hpp"

namespace leanattn::worker_test {

/// Limits that are short only where a hang is planted, so that tests do not wait long for it, and so long elsewhere
/// that a busy machine keeps them.
inline CallLimit short_for_hangs(std::vector<PlantedFault> faults) {
  return [faults = std::move(faults)](const WorkerCall& call) {
    using Kind = WorkerCall::Kind;
    for (const PlantedFault& fault : faults) {
      const bool then = (fault.when == "check" && call.kind == Kind::check) ||
                        (fault.when == "time" && call.kind == Kind::time) ||
                        (fault.when == "begin" && call.kind == Kind::prepare) ||
                        (fault.when == "compile" && call.kind == Kind::compile);
      const bool concerned = call.configs.empty() || std::any_of(call.configs.begin(), call.configs.end(),
                                                                 [&](const Config& c) { return fault.of(c.spec); });
      if (fault.what == "hang" && then && concerned) return std::chrono::milliseconds(30);
    }
    return std::chrono::milliseconds(120'000);
  };
}

class WorkerSession : public ::testing::Test {
 protected:
  WorkerSession() {
    request.shapes = {{.batch = 1, .longest_context = 8192}};
    request.compile_threads = 2;
    environment.library_revision = "r1";
    // What these tests are about happens in a short search as well: every session checks, sweeps, refines, races and
    // confirms.
    effort.specs = tries(12, 20);
    effort.sweep_specs = tries(3, 8), effort.refine_specs = tries(1, 3), effort.twin_specs = tries(4, 20);
    effort.refine_generations = tries(1, 2);
    effort.race_size = tries(8, 24);
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, nullptr));
  }
  void TearDown() override {
    backend.reset();
    compiler.reset();
    // Every process that was started has been reaped.
    errno = 0;
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  void make_backend() {
    backend.reset();
    WorkerOptions options{.command = worker_command(FAKE_WORKER, faults), .limit = short_for_hangs(faults)};
    compiler = std::make_shared<WorkerCompiler>(device, options);
    backend = std::make_unique<WorkerBackend>(device, request.problem, request.policy, options, compiler, &cancel);
  }

  Result<TuneSummary> run() {
    make_backend();
    return run_session(request, device, environment, *backend, *db, effort, progress, &cancel);
  }

  std::vector<Trial> trials(std::optional<TrialStatus> status = std::nullopt) {
    std::vector<Trial> found = db->trials(device_model(device), "", "", "").value();
    std::erase_if(found, [&](const Trial& trial) { return status && trial.status != *status; });
    return found;
  }

  static KernelSpec spec_of(const Trial& trial) { return config_from_json(trial.config).value().spec; }

  bool planted(const KernelSpec& spec) const {
    return std::any_of(faults.begin(), faults.end(), [&](const PlantedFault& f) { return f.of(spec); });
  }

  /// The winner has no planted fault, and is close to the best of those without one.
  void expect_right_winner(const TuneSummary& summary) {
    SimulatedGpu truth(request.problem, 1);
    for (const TunedShape& tuned : summary.shapes) {
      ASSERT_GT(tuned.median_us, 0);
      truth.set_shape(tuned.shape);
      EXPECT_FALSE(planted(tuned.winner.spec)) << kernel_name(tuned.winner.spec);
      double best = 1e9;
      for (const KernelSpec& spec : all_specs(device, request.problem)) {
        if (planted(spec)) continue;
        for (const RankedConfig& ranked :
             rank_grids(truth.truth, {device, request.problem, tuned.shape}, spec, guess_resident(device, spec)))
          best = std::min(best, truth.true_us(ranked.config));
      }
      EXPECT_LE(truth.true_us(tuned.winner), best * 1.08);
    }
  }

  DeviceFacts device = with_ordinal(0);
  TuneRequest request;
  Environment environment;
  SearchEffort effort;
  ProgressSink progress;
  std::atomic<bool> cancel = false;
  std::vector<PlantedFault> faults;
  std::unique_ptr<TuningDb> db;
  std::shared_ptr<WorkerCompiler> compiler;
  std::unique_ptr<WorkerBackend> backend;

  static DeviceFacts with_ordinal(int ordinal) {
    DeviceFacts facts = simulated_device();
    facts.ordinal = ordinal;
    return facts;
  }
};

}  // namespace leanattn::worker_test
