// worker_gpu_test.cpp -- tuning sessions with real workers survive kernels that hang, trap, use illegal addresses or
// compute nothing.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/specs.hpp"
#include "tuner/search/devices.hpp"
#include "tuner/search/session.hpp"
#include "tuner/worker/backend.hpp"

namespace leanattn {
namespace {

class WorkerOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const Result<DeviceFacts> found = device_facts(0);
    if (!found) GTEST_SKIP() << "no usable GPU: " << found.error().message;
    device = *found;
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, nullptr));
    request.shapes = {{.batch = 1, .longest_context = 8192}};
  }

  Result<TuneSummary> run(const std::map<std::string, std::string>& faults) {
    const WorkerOptions workers{.command = {PLANTED_WORKER, nlohmann::json(faults).dump()},
                                .candidate_limit = std::chrono::seconds(5)};
    const auto compiler = std::make_shared<WorkerCompiler>(device, workers);
    WorkerBackend backend(device, request.problem, request.policy, workers, compiler, nullptr);
    const SearchEffort effort{.specs = 40, .refine_generations = 1};
    auto summary = run_session(request, device, current_environment(device), backend, *db, effort, {}, nullptr);
    restarts = backend.restarts();
    return summary;
  }

  static std::string planted_key(const KernelSpec& spec) {
    return std::string(to_string(spec.load)) + std::to_string(spec.stages);
  }

  DeviceFacts device;
  TuneRequest request;
  std::unique_ptr<TuningDb> db;
  int restarts = 0;
};

TEST(PlantedWorker, CompilesItsFaultsIntoKernelsThatAreNotRejected) {
  const DeviceFacts h200 = facts_for_arch({9, 0, true}, 132).value();
  const std::map<std::string, std::string> faults = {
      {"cp_async2", "hang"}, {"cp_async3", "illegal_address"}, {"cp_async4", "trap"}, {"bulk2", "nothing"}};
  WorkerCompiler planted(h200, {.command = {PLANTED_WORKER, nlohmann::json(faults).dump()}});
  WorkerCompiler shipped(h200, {.command = {PLANTED_WORKER, "{}"}});
  for (const auto& [key, fault] : faults) {
    KernelSpec spec = base_spec(h200.arch, {});
    spec.load = key.starts_with("bulk") ? LoadPath::bulk : LoadPath::cp_async;
    spec.stages = key.back() - '0';
    spec.warps = 4, spec.warp_tokens = 16, spec.tile = 64;
    const auto compiled = planted.compile(spec);
    ASSERT_TRUE(compiled) << fault << ": " << compiled.error().message << compiled.error().log;
    ASSERT_TRUE(shipped.compile(spec));
    EXPECT_NE(planted.find(spec)->cubin, shipped.find(spec)->cubin) << fault;
  }
}

TEST_F(WorkerOnGpu, BadKernelsOfEveryKindCostThemselves) {
  struct Expected {
    TrialStatus status;
    std::string says;
  };
  const std::map<std::string, std::pair<std::string, Expected>> planted = {
      {"cp_async2", {"hang", {TrialStatus::timeout, "did not answer within 5000 ms"}}},
      {"cp_async3", {"illegal_address", {TrialStatus::launch_fail, "700"}}},
      {"cp_async4", {"trap", {TrialStatus::launch_fail, "CUDA_ERROR"}}},
      {"bulk2", {"nothing", {TrialStatus::incorrect, ""}}},
      {"bulk3", {"compiler_crash", {TrialStatus::compile_fail, "killed by signal 6"}}},
  };
  std::map<std::string, std::string> faults;
  for (const auto& [key, fault] : planted) faults[key] = fault.first;
  const auto summary = run(faults);
  ASSERT_TRUE(summary) << summary.error().message;
  const TunedShape& tuned = summary->shapes[0];
  EXPECT_TRUE(tuned.finished);
  EXPECT_GT(tuned.median_us, 0);
  EXPECT_FALSE(faults.contains(planted_key(tuned.winner.spec))) << kernel_name(tuned.winner.spec);
  EXPECT_GT(restarts, 0);

  std::map<std::string, int> as_expected;
  const std::vector<Trial> trials = db->trials(device_model(device), "", "", "").value();
  for (const Trial& trial : trials) {
    const Config config = config_from_json(trial.config).value();
    const auto it = planted.find(planted_key(config.spec));
    if (it == planted.end()) {
      EXPECT_TRUE(trial.status == TrialStatus::ok || trial.status == TrialStatus::pruned ||
                  trial.status == TrialStatus::compile_fail)
          << trial.config << " pays for another: " << trial.reason;
      continue;
    }
    EXPECT_EQ(trial.median_us, 0) << trial.config;
    const Expected& expected = it->second.second;
    if (trial.reason.find("lost its worker with") != std::string::npos) continue;
    EXPECT_EQ(trial.status, expected.status) << trial.config << ": " << trial.reason;
    EXPECT_NE(trial.reason.find(expected.says), std::string::npos) << trial.reason;
    ++as_expected[it->first];
  }
  // Which of them the search tries depends on the GPU. Every GPU has cp_async, and rings of two stages are tried first.
  EXPECT_GT(as_expected["cp_async2"] + as_expected["cp_async3"] + as_expected["cp_async4"], 0);
  for (const auto& [key, count] : as_expected) RecordProperty(key, count);

  // No worker is left.
  errno = 0;
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(WorkerOnGpu, AHealthySessionNeedsOneWorkerAndAgreesWithOneInThisProcess) {
  const auto isolated = run({});
  ASSERT_TRUE(isolated) << isolated.error().message;
  EXPECT_EQ(restarts, 0);
  EXPECT_GT(isolated->shapes[0].median_us, 0);
  db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, nullptr));
  const auto direct = tune(request, *db, nullptr, {}, nullptr);
  ASSERT_TRUE(direct) << direct.error().message;
  // The pipe to a worker is not part of a time. So both sessions find the same read limit and best time, within the
  // noise of a GPU that others may use.
  EXPECT_NEAR(isolated->shapes[0].read_limit_us / direct->shapes[0].read_limit_us, 1, 0.05);
  EXPECT_NEAR(isolated->shapes[0].median_us / direct->shapes[0].median_us, 1, 0.05);
}

}  // namespace
}  // namespace leanattn
