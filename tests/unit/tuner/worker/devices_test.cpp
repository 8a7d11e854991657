// devices_test.cpp -- several devices tune at once into one database: equal ones share the shapes, different ones have
// winners of their own, and those of a group are tuned together.
#include <sqlite3.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "runtime/lookup/device_identity.hpp"
#include "runtime/tuning/tuning_order.hpp"
#include "tests/no_threads.hpp"
#include "tuner/search/group_session.hpp"
#include "tuner/search/serve_order.hpp"
#include "worker_fixture.hpp"

namespace leanattn::worker_test {
namespace {

class Devices : public WorkerSession {
 protected:
  Devices() {
    request.shapes.clear();
    for (const int context : {1024, 4096, 16384, 32768}) request.shapes.push_back({.longest_context = context});
    effort.specs = 16;
    environment.library_revision = "r1";
    progress = [this](const TuneProgress& p) {
      // An unguarded flag checks that progress comes from one thread at a time.
      EXPECT_FALSE(reporting);
      reporting = true;
      ++reports[p.device];
      by_shape[p.shape.longest_context].insert(p.device);
      reporting = false;
      if (on_report) on_report(p);
    };
  }

  DeviceToTune host(int ordinal, const char* name = "Simulated GPU") {
    DeviceToTune host{.facts = with_ordinal(ordinal), .environment = environment};
    host.facts.name = name;
    host.facts.uuid = "GPU-" + std::to_string(ordinal);
    return host;
  }

  Result<std::vector<ModelSummary>> tune(const std::vector<DeviceToTune>& devices) {
    const WorkerOptions workers{.command = worker_command(FAKE_WORKER, faults), .limit = short_for_hangs(faults)};
    const auto connect = [this] {
      if (on_connect) on_connect();
      return TuningDb::open(directory.path(), OpenMode::read_write, nullptr);
    };
    return tune_devices(request, devices, workers, connect, effort, progress, &cancel);
  }

  std::unique_ptr<TuningDb> opened() {
    return std::move(*TuningDb::open(directory.path(), OpenMode::read_write, nullptr));
  }

  TemporaryDirectory directory;
  bool reporting = false;
  std::map<int, int> reports;                      // by device
  std::map<std::int64_t, std::set<int>> by_shape;  // devices, by context length
  std::function<void(const TuneProgress&)> on_report;
  std::function<void()> on_connect;
};

TEST_F(Devices, EqualOnesSplitTheShapesAndShareWhatIsCompiled) {
  for (const int context : {2048, 8192}) request.shapes.push_back({.longest_context = context});  // work for everyone
  const auto models = tune({host(0), host(1), host(2)});
  ASSERT_TRUE(models) << models.error().message;
  ASSERT_EQ(models->size(), 1u);
  EXPECT_EQ(models->front().ordinals, (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(models->front().failures.empty());
  ASSERT_EQ(models->front().summary.shapes.size(), request.shapes.size());
  for (std::size_t i = 0; i < request.shapes.size(); ++i) {
    EXPECT_EQ(models->front().summary.shapes[i].shape, request.shapes[i]);
    EXPECT_TRUE(models->front().summary.shapes[i].finished);
  }
  expect_right_winner(models->front().summary);
  for (const auto& [context, devices] : by_shape) EXPECT_EQ(devices.size(), 1u) << "tuned more than once: " << context;
  EXPECT_EQ(reports.size(), 3u) << "every one had work";
  EXPECT_FALSE(reports.contains(-1));
  const auto database = opened();
  EXPECT_EQ(database->device_models()->size(), 1u);
  EXPECT_EQ(database->winners(device_model(device))->size(), request.shapes.size());
  EXPECT_EQ(database->sessions()->size(), 3u);
}

TEST_F(Devices, AreTunedOneByOneWhereThereIsNoThread) {
  request.shapes.resize(2);
  const NoThreads none;
  const auto models = tune({host(0), host(1)});
  ASSERT_TRUE(models) << models.error().message;
  EXPECT_TRUE(models->front().failures.empty());
  for (const TunedShape& shape : models->front().summary.shapes) EXPECT_TRUE(shape.finished);
  expect_right_winner(models->front().summary);
  EXPECT_EQ(opened()->winners(device_model(device))->size(), request.shapes.size());
}

TEST_F(Devices, DifferentOnesTuneEveryShapeForThemselves) {
  const auto models = tune({host(0, "Model A"), host(1, "Model B"), host(2, "Model A")});
  ASSERT_TRUE(models) << models.error().message;
  ASSERT_EQ(models->size(), 2u);
  EXPECT_EQ((*models)[0].ordinals, (std::vector<int>{0, 2}));
  EXPECT_EQ((*models)[1].ordinals, (std::vector<int>{1}));
  const auto database = opened();
  EXPECT_EQ(database->device_models()->size(), 2u);
  for (const ModelSummary& model : *models) {
    expect_right_winner(model.summary);
    EXPECT_EQ(database->winners(device_model(model.summary.device))->size(), request.shapes.size());
  }
  for (const auto& [context, devices] : by_shape) {
    EXPECT_EQ(devices.size(), 2u) << context;
    EXPECT_TRUE(devices.contains(1)) << context;
  }
}

TEST_F(Devices, OneThatIsLostLeavesItsShapesToTheOthers) {
  faults = {{.what = "segv", .when = "begin", .ordinal = 1}};
  const auto models = tune({host(0), host(1)});
  ASSERT_TRUE(models) << models.error().message;
  ASSERT_EQ(models->front().failures.size(), 1u);
  EXPECT_EQ(models->front().failures[0].first, 1);
  EXPECT_EQ(models->front().failures[0].second.code, ErrorCode::context_lost);
  EXPECT_NE(models->front().failures[0].second.message.find("device 1"), std::string::npos);
  for (const TunedShape& shape : models->front().summary.shapes) EXPECT_TRUE(shape.finished);
  faults.clear();  // no kernel is bad
  expect_right_winner(models->front().summary);
}

TEST_F(Devices, ResultsThatCouldNotBeStoredComeWithTheReason) {
  request.shapes.resize(1);
  ::setenv("LEANATTN_BUSY_TIMEOUT_MS", "10", 1);
  sqlite3* other = nullptr;  // keeps the file locked while the session runs
  on_report = [&](const TuneProgress&) {
    if (other != nullptr) return;
    ASSERT_EQ(sqlite3_open((directory / "tuning.db").c_str(), &other), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  };
  on_connect = [&] { sqlite3_close(std::exchange(other, nullptr)); };
  const auto models = tune({host(0)});
  ::unsetenv("LEANATTN_BUSY_TIMEOUT_MS");
  ASSERT_TRUE(models) << models.error().message;
  EXPECT_EQ(models->front().not_kept.value().code, ErrorCode::database_busy);
  expect_right_winner(models->front().summary);
  EXPECT_EQ(opened()->stats()->trials, 0);
}

TEST_F(Devices, WhenAllAreLostItIsAnError) {
  faults = {{.what = "segv", .when = "open"}};
  const auto models = tune({host(0), host(1, "Model B")});
  ASSERT_FALSE(models);
  EXPECT_EQ(models.error().code, ErrorCode::context_lost);
}

TEST_F(Devices, AShapeThatDoesNotFitCostsNoDevice) {
  faults = {{.what = "out_of_memory", .when = "begin", .context = 1024}};
  const auto models = tune({host(0), host(1)});
  ASSERT_TRUE(models) << models.error().message;
  EXPECT_TRUE(models->front().failures.empty());
  const auto& shapes = models->front().summary.shapes;
  EXPECT_EQ(shapes[0].no_winner, "there is too little memory for it (cuMemAlloc: out of memory)");
  EXPECT_FALSE(shapes[0].finished);
  for (std::size_t i = 1; i < shapes.size(); ++i) EXPECT_TRUE(shapes[i].finished) << i;
  EXPECT_EQ(opened()->winners(device_model(device))->size(), shapes.size() - 1);
  EXPECT_TRUE(models->front().summary.out_of_memory);
  request.shapes.resize(1);
  const auto none = tune({host(0)});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::out_of_memory);
}

TEST_F(Devices, BadCandidatesCostThemselvesOnEveryDevice) {
  faults = {{.what = "abort", .when = "check", .load = "bulk", .stages = 2}};
  const auto models = tune({host(0), host(1)});
  ASSERT_TRUE(models) << models.error().message;
  EXPECT_TRUE(models->front().failures.empty());
  expect_right_winner(models->front().summary);
}

TEST_F(Devices, AnInterruptEndsAllOfThemWithWhatTheyHave) {
  on_report = [this](const TuneProgress& p) { cancel = cancel || p.phase == "race"; };
  const auto models = tune({host(0), host(1)});
  ASSERT_TRUE(models) << models.error().message;
  EXPECT_TRUE(models->front().summary.interrupted);
  const TunedShape& first = models->front().summary.shapes[0];
  EXPECT_GT(first.median_us, 0);
  EXPECT_FALSE(models->front().summary.shapes.back().finished);
}

TEST_F(Devices, AShapeWhoseSearchEndedBeforeItsFirstCandidateSaysWhy) {
  on_report = [this](const TuneProgress&) { cancel = true; };
  const auto models = tune({host(0)});
  ASSERT_TRUE(models) << models.error().message;
  const auto& shapes = models->front().summary.shapes;
  EXPECT_EQ(shapes[0].candidates, 0);
  EXPECT_TRUE(shapes[0].no_winner.starts_with("the session was interrupted before")) << shapes[0].no_winner;
  EXPECT_EQ(shapes[1].no_winner, "") << "it was not searched";
}

TEST_F(Devices, AnEngineIsToldWhyAShapeHasNoWinner) {
  const TuningOrder order{.problem = request.problem,
                          .shapes = request.shapes,
                          .budget = std::chrono::hours(1),
                          .cache_directory = directory.path().string(),
                          .parent = ::getppid()};
  std::FILE* const output = std::tmpfile();
  ASSERT_NE(output, nullptr);
  const auto served =
      serve_order(to_json(order), output, [&](const TuningOrder&, const ProgressSink&) -> Result<ModelSummary> {
        on_report = [this](const TuneProgress&) { cancel = true; };
        auto models = tune({host(0)});
        if (!models) return tl::unexpected(models.error());
        models->front().warn_once({"the site database was skipped", "the site database was skipped"});
        return std::move(models->front());
      });
  ::prctl(PR_SET_PDEATHSIG, 0);  // which serving an order has set for this process
  EXPECT_TRUE(served) << served.error().message;
  std::rewind(output);
  std::vector<std::string> warnings;
  char* line = nullptr;
  std::size_t room = 0;
  while (::getline(&line, &room, output) > 0) {
    const auto message = tuning_message_from_json(line);
    ASSERT_TRUE(message) << message.error().message;
    if (const auto* warning = std::get_if<TuningWarning>(&*message)) warnings.push_back(warning->text);
  }
  std::free(line);
  std::fclose(output);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_TRUE(
      warnings[0].starts_with("batch 1, longest context 1024: no new winner is stored, because the session was "
                              "interrupted before"))
      << warnings[0];
  EXPECT_EQ(warnings[0].find("--"), std::string::npos) << "a program has no flags: " << warnings[0];
}

TEST_F(Devices, ASingleOneIsNotNamedInProgress) {
  ASSERT_TRUE(tune({host(3)}));
  EXPECT_EQ(reports.size(), 1u);
  EXPECT_TRUE(reports.contains(-1));
}

class Groups : public Devices {
 protected:
  Groups() {
    request.shapes.resize(2);
    request.problem.features.context_parallel = 2;
    request.rank_devices = {0, 1};
  }
  Result<std::vector<ModelSummary>> tune(const std::vector<DeviceToTune>& devices) {
    const WorkerOptions workers{.command = worker_command(FAKE_WORKER, faults), .limit = short_for_hangs(faults)};
    const auto connect = [this] { return TuningDb::open(directory.path(), OpenMode::read_write, nullptr); };
    return tune_group_devices(request, devices, workers, connect, effort, progress, &cancel);
  }
  /// Stored winners by problem.
  std::map<std::string, int> winners() {
    std::map<std::string, int> count;
    const auto stored = opened()->winners(device_model(device)).value();
    for (const Winner& winner : stored) ++count[winner.problem];
    return count;
  }
};

TEST_F(Groups, TuneThePartOnAllGpusAndThenTheGroupInOneWorker) {
  const auto models = tune({host(0), host(1)});
  ASSERT_TRUE(models) << models.error().message;
  ASSERT_EQ(models->size(), 1u);
  EXPECT_EQ(models->front().ordinals, (std::vector<int>{0, 1}));
  EXPECT_TRUE(models->front().failures.empty());
  ASSERT_EQ(models->front().summary.shapes.size(), request.shapes.size());
  for (const TunedShape& shape : models->front().summary.shapes) {
    EXPECT_TRUE(shape.finished);
    EXPECT_TRUE(in_group(shape.winner.spec.features)) << "the summary is that of the group";
  }
  DecodeProblem group = request.problem;
  EXPECT_EQ(winners()[to_json(without_group(group))], 2);
  EXPECT_EQ(winners()[to_json(group)], 2) << "without NVML the link is unknown";
  EXPECT_EQ(opened()->sessions()->size(), 3u) << "two for the part, one for the group";
}

TEST_F(Groups, AKernelThatEndsWorkersInTheGroupCostsItselfOnly) {
  // 3 stages are those of the default kernel.
  faults = {{.what = "abort", .when = "check", .load = "tensor", .stages = 2}};
  const auto models = tune({host(0), host(1)});
  ASSERT_TRUE(models) << models.error().message;
  for (const TunedShape& shape : models->front().summary.shapes) {
    EXPECT_GT(shape.median_us, 0);
    EXPECT_NE(shape.winner.spec.stages, 2);
  }
}

TEST_F(Groups, AnInterruptOfThePartEndsBothWithoutAnError) {
  on_report = [this](const TuneProgress& p) { cancel = cancel || p.phase == "race"; };
  const auto models = tune({host(0), host(1)});
  ASSERT_TRUE(models) << models.error().message;
  EXPECT_TRUE(models->front().summary.interrupted);
  ASSERT_EQ(models->front().summary.shapes.size(), request.shapes.size());
  for (const TunedShape& shape : models->front().summary.shapes) {
    EXPECT_FALSE(shape.finished);
    EXPECT_EQ(shape.median_us, 0) << "nothing is known of the group";
  }
  EXPECT_EQ(opened()->sessions()->size(), 2u) << "those of the part";
}

TEST_F(Groups, GpusOfDifferentModelsAreRefusedBeforeAnythingIsMeasured) {
  const auto models = tune({host(0, "Model A"), host(1, "Model B")});
  ASSERT_FALSE(models);
  EXPECT_EQ(models.error().code, ErrorCode::unsupported);
  EXPECT_TRUE(opened()->sessions()->empty());
}

TEST_F(Groups, StaleWinnersAreMeasuredAgainInTheGroupAlone) {
  ASSERT_TRUE(tune({host(0), host(1)}));
  environment.library_revision = "r2";
  request.revalidate = true;
  const auto models = tune({host(0), host(1)});
  ASSERT_TRUE(models) << models.error().message;
  EXPECT_EQ(opened()->sessions()->size(), 4u) << "no session for the part";
  for (const TunedShape& shape : models->front().summary.shapes) EXPECT_GT(shape.raced, 0);
}

}  // namespace
}  // namespace leanattn::worker_test
