#include <algorithm>

#include "cache/cubin/cubin_db.hpp"
#include "cache/sqlite/database.hpp"
#include "cache/tuning/open.hpp"
#include "cache/tuning/rows.hpp"
#include "cache/tuning/schema.hpp"
#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

class LayeredWinnersTest : public ::testing::Test {
 protected:
  /// A database in which `shapes` were won by a config that names the layer.
  static void make(const std::filesystem::path& directory, const std::string& layer,
                   const std::vector<std::string>& shapes, const DeviceModel& device = h200(),
                   const Environment& software = environment(), const std::string& kernel = "") {
    const auto db = open_quietly(directory);
    const auto session = db->begin_session(device, software, layer).value();
    for (const std::string& shape : shapes) {
      Trial put = trial("{\"from\":\"" + layer + "\"}", 10);
      put.shape = shape;
      put.kernel_revision = kernel;
      ASSERT_TRUE(db->add_trial(session, put));
    }
    ASSERT_TRUE(db->rebuild_winners());
  }

  /// Rewrites the one trial of a database as a library of another version would have written it.
  static void make_older(const std::filesystem::path& directory, int library_version) {
    const auto db = open_quietly(directory);
    const Trial put = db->trials(h200(), "", "", "").value().at(0);
    const SessionInfo session = db->sessions().value().at(0);
    RawDatabase raw(directory / "tuning.db");
    raw.exec("UPDATE sessions SET library_version = " + std::to_string(library_version));
    detail::SessionRow row{.uuid = session.uuid, .device = h200(), .environment = put.environment};
    row.library_version = library_version, row.schema_version = detail::tuning_schema().version();
    std::string hex;
    for (const auto byte : detail::trial_digest(row, put)) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte) & 0xffU);
      hex += digits;
    }
    raw.exec("UPDATE trials SET digest = x'" + hex + "'");
    ASSERT_TRUE(db->rebuild_winners());
  }

  static std::string describe(const LayeredWinners& winners) {
    std::vector<std::string> lines;
    for (const auto& entry : winners.entries)
      lines.push_back(entry.winner.shape + "=" + entry.layer + entry.winner.config);
    std::sort(lines.begin(), lines.end());
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
  }

  TemporaryDirectory user_, site_, shipped_;
  ScopedVariable site_variable_{"LEANATTN_SITE_DB", std::nullopt};
  ScopedVariable shipped_variable_{"LEANATTN_SHIPPED_DB", std::nullopt};
};

TEST_F(LayeredWinnersTest, LetsTheFirstLayerThatKnowsAShapeDecide) {
  make(user_.path(), "user", {"1"});
  make(site_.path(), "site", {"1", "2"});
  make(shipped_.path(), "shipped", {"1", "2", "3"});
  const ScopedVariable site("LEANATTN_SITE_DB", site_ / "tuning.db");
  const ScopedVariable shipped("LEANATTN_SHIPPED_DB", shipped_.path().string());
  const auto winners = load_layered_winners(h200(), user_.path());
  EXPECT_EQ(describe(winners),
            "1=user{\"from\":\"user\"}\n2=site{\"from\":\"site\"}\n3=shipped{\"from\":\"shipped\"}\n");
  EXPECT_TRUE(winners.warnings.empty());
  EXPECT_EQ(load_layered_winners(h200(), std::nullopt).entries.size(), 3u)
      << "without a user directory the others still answer";
}

TEST_F(LayeredWinnersTest, AreEmptyAndQuietWhenNothingIsThere) {
  const auto winners = load_layered_winners(h200(), user_ / "not/yet");
  EXPECT_TRUE(winners.entries.empty());
  EXPECT_TRUE(winners.warnings.empty());
  EXPECT_FALSE(std::filesystem::exists(user_ / "not")) << "looking creates nothing";
}

TEST_F(LayeredWinnersTest, AreOfOneDeviceModelOnly) {
  DeviceModel slice = h200();
  slice.mig_profile = "3g.71gb";
  make(user_.path(), "user", {"1"}, slice);
  EXPECT_TRUE(load_layered_winners(h200(), user_.path()).entries.empty());
  EXPECT_EQ(load_layered_winners(slice, user_.path()).entries.size(), 1u);
}

TEST_F(LayeredWinnersTest, AreStaleByWhatRunsNowAndStillUsable) {
  make(user_.path(), "user", {"1"});
  make(site_.path(), "site", {"1", "2"});
  const ScopedVariable site("LEANATTN_SITE_DB", site_ / "tuning.db");
  const auto stale = [&](const Environment& now) {
    const auto winners = load_layered_winners(h200(), user_.path(), {now});
    EXPECT_EQ(winners.entries.size(), 2u);
    return std::count_if(winners.entries.begin(), winners.entries.end(),
                         [](const auto& entry) { return entry.winner.stale; });
  };
  EXPECT_EQ(stale(environment()), 0);
  Environment now = environment();
  now.clock_khz = 1, now.power_limit_mw = 1, now.ecc = false;
  EXPECT_EQ(stale(now), 0) << "these change times, not which kernel is fast";
  now = environment();
  now.driver_release = "590.10";
  EXPECT_EQ(stale(now), 2) << "neither layer has seen this driver";
  now = environment();
  now.nvrtc_version = "13.1";
  EXPECT_EQ(stale(now), 2);
  EXPECT_EQ(stale(environment("r2")), 2);
  EXPECT_EQ(stale(Environment{}), 0) << "what is not known is not held against them";
}

TEST_F(LayeredWinnersTest, SkipUnusableLayersWithAWarningAndTouchNothing) {
  make(shipped_.path(), "shipped", {"1"});
  write_bytes(user_ / "tuning.db", std::vector<char>(4096, 'x'));
  make(site_.path(), "site", {"1"});
  RawDatabase(site_ / "tuning.db").exec("PRAGMA user_version = 9");
  const ScopedVariable site("LEANATTN_SITE_DB", site_ / "tuning.db");
  const ScopedVariable shipped("LEANATTN_SHIPPED_DB", shipped_ / "tuning.db");
  const auto winners = load_layered_winners(h200(), user_.path());
  EXPECT_EQ(describe(winners), "1=shipped{\"from\":\"shipped\"}\n");
  ASSERT_EQ(winners.warnings.size(), 2u);
  EXPECT_NE(winners.warnings[0].find("the user database was skipped"), std::string::npos) << winners.warnings[0];
  EXPECT_NE(winners.warnings[1].find("newer leanattn"), std::string::npos) << winners.warnings[1];
  EXPECT_EQ(read_bytes(user_ / "tuning.db"), std::vector<char>(4096, 'x'));
  EXPECT_EQ(files_with_prefix(user_.path(), "").size(), 1u);
}

TEST_F(LayeredWinnersTest, SkipOneWithAPipeInPlaceOfAJournal) {
  make(site_.path(), "site", {"1"});
  make(user_.path(), "user", {"1"});
  const ScopedVariable site("LEANATTN_SITE_DB", site_.path().string());
  for (const auto& directory : {site_.path(), user_.path()}) {
    for (const char* suffix : {"-journal", "-wal", "-shm"}) {
      const std::string pipe = (directory / "tuning.db").string() + suffix;
      ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
      EXPECT_EQ(wait_for(start_process([&]() -> int {
                  ::alarm(60);  // where it would wait for ever
                  const auto winners = load_layered_winners(h200(), user_.path());
                  if (winners.entries.size() != 1 || winners.warnings.size() != 1) return 2;
                  if (winners.warnings[0].find(pipe + " is not a regular file") == std::string::npos) return 3;
                  if (directory == site_.path()) return 0;
                  const auto writer = TuningDb::open(directory, OpenMode::read_write, nullptr);
                  return !writer && writer.error().code == ErrorCode::cache_unavailable ? 0 : 4;
                })),
                0)
          << pipe;
      ::unlink(pipe.c_str());
    }
  }
}

TEST_F(LayeredWinnersTest, AreNotMissedBesideCompiledKernels) {
  open_cubin_db(site_.path(), nullptr);
  const ScopedVariable site("LEANATTN_SITE_DB", site_.path().string());
  EXPECT_TRUE(load_layered_winners(h200(), user_.path()).warnings.empty());
}

TEST_F(LayeredWinnersTest, NameTheDirectoryThatCommandsShallMend) {
  make(site_.path(), "site", {"1"});
  RawDatabase(site_ / "tuning.db").exec("UPDATE winners SET digest = zeroblob(32)");
  const ScopedVariable site("LEANATTN_SITE_DB", site_.path().string());
  const auto damaged = load_layered_winners(h200(), user_.path());
  ASSERT_EQ(damaged.warnings.size(), 1u);
  EXPECT_NE(damaged.warnings[0].find("leanattn db rebuild --db " + site_.path().string()), std::string::npos)
      << damaged.warnings[0];
  // No command works on a file of another name.
  std::filesystem::rename(site_ / "tuning.db", site_ / "winners.db");
  const ScopedVariable renamed("LEANATTN_SITE_DB", site_ / "winners.db");
  const auto other = load_layered_winners(h200(), user_.path());
  ASSERT_EQ(other.warnings.size(), 1u);
  EXPECT_EQ(other.warnings[0].find("leanattn db"), std::string::npos) << other.warnings[0];
}

TEST_F(LayeredWinnersTest, WarnAboutANamedSiteDatabaseThatIsMissing) {
  const ScopedVariable site("LEANATTN_SITE_DB", site_ / "gone.db");
  const auto winners = load_layered_winners(h200(), user_.path());
  ASSERT_EQ(winners.warnings.size(), 1u);
  EXPECT_NE(winners.warnings[0].find("gone.db"), std::string::npos);
}

TEST_F(LayeredWinnersTest, AreReadFromMediaThatCannotBeWritten) {
  make(site_.path(), "site", {"1"});
  ::chmod((site_ / "tuning.db").c_str(), 0444);
  ::chmod(site_.path().c_str(), 0555);
  const ScopedVariable site("LEANATTN_SITE_DB", site_ / "tuning.db");
  EXPECT_EQ(run_unprivileged([&] { return load_layered_winners(h200(), std::nullopt).entries.size() == 1 ? 0 : 1; }),
            0);
}

class WinnersByProblemTest : public LayeredWinnersTest {
 protected:
  /// A database in which each of `problems` has one winner, by a config that names the layer.
  static void make(const std::filesystem::path& directory, const std::string& layer,
                   const std::vector<std::string>& problems) {
    const auto db = open_quietly(directory);
    const auto session = db->begin_session(h200(), environment(), layer).value();
    for (const std::string& problem : problems) {
      Trial put = trial("{\"from\":\"" + layer + "\"}", 10);
      put.problem = problem;
      ASSERT_TRUE(db->add_trial(session, put));
    }
    ASSERT_TRUE(db->rebuild_winners());
  }

  /// "problem=layer" of each entry.
  static std::vector<std::string> read(const WinnersByProblem& winners, const std::vector<std::string>& problems) {
    std::vector<std::string> found;
    for (const auto& entry : winners.read(problems).entries) {
      EXPECT_EQ(entry.winner.config, "{\"from\":\"" + entry.layer + "\"}");
      found.push_back(entry.winner.problem + "=" + entry.layer);
    }
    return found;
  }

  using Texts = std::vector<std::string>;
};

TEST_F(WinnersByProblemTest, NamesTheProblemsOfAllLayersOnceAndReadsThoseAskedForFromTheFirstThatKnows) {
  make(user_.path(), "user", {"c", "b"});
  make(site_.path(), "site", {"b", "a", "d"});
  const ScopedVariable site("LEANATTN_SITE_DB", site_ / "tuning.db");
  const auto winners = open_layered_winners(h200(), user_.path());
  EXPECT_EQ(winners.problems, (Texts{"b", "c", "a", "d"}));
  EXPECT_EQ(read(winners, {"b"}), Texts{"b=user"});
  EXPECT_EQ(read(winners, {"a", "c"}), (Texts{"c=user", "a=site"}));
  EXPECT_EQ(read(winners, {"nobody's"}), Texts{});
  EXPECT_EQ(read(winners, {"a", "b", "c", "d"}).size(), load_layered_winners(h200(), user_.path()).entries.size());
  DeviceModel slice = h200();
  slice.mig_profile = "3g.71gb";
  EXPECT_TRUE(open_layered_winners(slice, user_.path()).problems.empty());
}

TEST_F(WinnersByProblemTest, AreStaleByWhatRunsNow) {
  make(user_.path(), "user", {"a"});
  const auto stale = [&](const Environment& now) {
    return open_layered_winners(h200(), user_.path(), {now}).read(Texts{"a"}).entries.at(0).winner.stale;
  };
  EXPECT_FALSE(stale(environment()));
  EXPECT_TRUE(stale(environment("r2")));
}

TEST_F(WinnersByProblemTest, KeepNoFileOpenAndSayWhatItHoldsByThen) {
  make(user_.path(), "user", {"a"});
  const auto winners = open_layered_winners(h200(), user_.path());
  EXPECT_EQ(open_descriptors(user_ / "tuning.db"), 0);
  RawDatabase(user_ / "tuning.db").exec("UPDATE trials SET median_us = 11");
  const LayeredWinners damaged = winners.read(Texts{"a"});
  EXPECT_TRUE(damaged.entries.empty());
  ASSERT_EQ(damaged.warnings.size(), 1u);
  EXPECT_NE(damaged.warnings[0].find("1 damaged winners"), std::string::npos) << damaged.warnings[0];
  EXPECT_EQ(open_descriptors(user_ / "tuning.db"), 0);
}

TEST_F(WinnersByProblemTest, WarnAboutAFileThatWasThereAndIsGone) {
  make(user_.path(), "user", {"a"});
  make(site_.path(), "site", {"a"});
  const ScopedVariable site("LEANATTN_SITE_DB", site_ / "tuning.db");
  const auto winners = open_layered_winners(h200(), user_.path());
  EXPECT_TRUE(winners.warnings.empty());
  std::filesystem::remove(user_ / "tuning.db");
  const LayeredWinners read = winners.read(Texts{"a"});
  ASSERT_EQ(read.entries.size(), 1u);
  EXPECT_EQ(read.entries[0].layer, "site");
  ASSERT_EQ(read.warnings.size(), 1u);
  EXPECT_NE(read.warnings[0].find("the user database was skipped"), std::string::npos) << read.warnings[0];
}

TEST_F(LayeredWinnersTest, LetTheLayerAnswerWhoseSoftwareIsClosestToWhatRuns) {
  // In each line: the user's software and the shipped one's; who answers for a library of revision r2, driver 590.10.
  const auto measured_under = [](const std::string& revision, const std::string& driver) {
    Environment made = environment(revision);
    made.driver_release = driver;
    return made;
  };
  const Environment now = measured_under("r2", "590.10");
  struct Case {
    Environment user, shipped;
    std::string answers;
    bool stale;
  };
  for (const auto& [user, shipped, answers, stale] :
       {Case{now, now, "user", false}, Case{measured_under("r1", "590.10"), now, "shipped", false},
        Case{measured_under("r1", "590.10"), measured_under("r2", "580.1"), "shipped", true},
        Case{measured_under("r2", "570.2"), measured_under("r2", "580.1"), "user", true},
        Case{measured_under("r2", "580.1"), now, "shipped", false},
        Case{measured_under("r1", "580.1"), measured_under("r0", "580.1"), "user", true}}) {
    TemporaryDirectory first, last;
    make(first.path(), "user", {"1"}, h200(), user);
    make(last.path(), "shipped", {"1", "2"}, h200(), shipped);
    const ScopedVariable variable("LEANATTN_SHIPPED_DB", last / "tuning.db");
    const auto winners = load_layered_winners(h200(), first.path(), {now});
    ASSERT_EQ(winners.entries.size(), 2u);
    const auto by_shape = [&](const char* shape) -> const LayeredWinners::Entry& {
      return *std::find_if(winners.entries.begin(), winners.entries.end(),
                           [&](const auto& entry) { return entry.winner.shape == shape; });
    };
    EXPECT_EQ(by_shape("1").layer, answers) << user.library_revision << " " << user.driver_release;
    EXPECT_EQ(by_shape("1").winner.config, "{\"from\":\"" + answers + "\"}");
    EXPECT_EQ(by_shape("1").winner.stale, stale);
    EXPECT_EQ(by_shape("2").layer, "shipped");
    const std::vector<std::string> problems{by_shape("1").winner.problem};
    const auto read = open_layered_winners(h200(), first.path(), {now}).read(problems);
    EXPECT_EQ(describe(read), describe(winners)) << "an engine reads the same";
    EXPECT_EQ(load_layered_winners(h200(), first.path()).entries.at(0).layer, "user") << "nothing is known of now";
  }
}

TEST_F(LayeredWinnersTest, LetTheLayerAnswerWhoseKernelIsTheOneThatRuns) {
  // All were measured by other libraries than the present one, whose kernels have the revision k2.
  Environment other_driver = environment("r1");
  other_driver.driver_release = "570.2";
  const Software now{environment("r9"), [](const std::string&) { return "k2"; }};
  make(user_.path(), "user", {"1", "2", "3"}, h200(), environment("r1"), "k1");
  make(site_.path(), "site", {"1", "2"}, h200(), other_driver, "k2");
  make(shipped_.path(), "shipped", {"1"}, h200(), environment("r0"), "k2");
  const ScopedVariable site("LEANATTN_SITE_DB", site_ / "tuning.db");
  const ScopedVariable shipped("LEANATTN_SHIPPED_DB", shipped_ / "tuning.db");
  const auto winners = load_layered_winners(h200(), user_.path(), now);
  EXPECT_EQ(describe(winners),
            "1=shipped{\"from\":\"shipped\"}\n2=site{\"from\":\"site\"}\n3=user{\"from\":\"user\"}\n");
  for (const auto& entry : winners.entries) EXPECT_EQ(entry.winner.stale, entry.layer != "shipped") << entry.layer;
  EXPECT_EQ(load_layered_winners(h200(), user_.path(), {std::nullopt, now.kernel_revision}).entries.at(0).layer, "user")
      << "the driver is not known";
}

TEST_F(LayeredWinnersTest, LetTheNewerLibraryAnswerWhereNeitherHasTheKernelsThatRun) {
  make(user_.path(), "user", {"1"}, h200(), environment("r0"));
  make(shipped_.path(), "shipped", {"1"}, h200(), environment("r1"));
  make_older(user_.path(), 1000);
  ASSERT_EQ(load_layered_winners(h200(), user_.path()).entries.size(), 1u) << "the older one is sound";
  const ScopedVariable shipped("LEANATTN_SHIPPED_DB", shipped_ / "tuning.db");
  EXPECT_EQ(load_layered_winners(h200(), user_.path(), {environment("r2")}).entries.at(0).layer, "shipped");
}

TEST_F(LayeredWinnersTest, HaveNoShippedLayerWhereItIsTurnedOff) {
  make(user_.path(), "user", {"1"});
  const ScopedVariable shipped("LEANATTN_SHIPPED_DB", "none");
  EXPECT_EQ(load_layered_winners(h200(), user_.path()).entries.size(), 1u);
  EXPECT_TRUE(load_layered_winners(h200(), user_.path()).warnings.empty());
  const auto contents = layer_contents(user_.path());
  ASSERT_EQ(contents.size(), 1u);
  EXPECT_EQ(contents[0].layer, "user");
}

TEST_F(LayeredWinnersTest, HaveContentsByDeviceModelAndTheReasonWhyThereAreNone) {
  DeviceModel slice = h200();
  slice.mig_profile = "3g.71gb";
  make(site_.path(), "site", {"1", "2"}, h200(), environment("r3"));
  make(site_.path(), "site", {"1"}, slice);
  write_bytes(shipped_ / "tuning.db", std::vector<char>(4096, 'x'));
  const ScopedVariable site("LEANATTN_SITE_DB", site_.path().string());
  const ScopedVariable shipped("LEANATTN_SHIPPED_DB", shipped_ / "tuning.db");
  const auto contents = layer_contents(user_.path());
  ASSERT_EQ(contents.size(), 3u);
  ASSERT_TRUE(contents[0].error);
  EXPECT_EQ(contents[0].error->code, ErrorCode::not_found);
  ASSERT_EQ(contents[1].devices.size(), 2u);
  EXPECT_FALSE(contents[1].error);
  EXPECT_EQ(contents[1].file, site_ / "tuning.db");
  EXPECT_TRUE(contents[1].devices[0].model == h200());
  EXPECT_EQ(contents[1].devices[0].winners, 2);
  EXPECT_EQ(contents[1].devices[0].newest.library_revision, "r3");
  EXPECT_EQ(contents[1].devices[1].winners, 1);
  ASSERT_TRUE(contents[2].error);
  EXPECT_EQ(contents[2].error->code, ErrorCode::database_corrupt);
  EXPECT_FALSE(contents[2].installed) << "a variable names it";
}

class InstalledDatabase : public ::testing::Test {
 protected:
  std::filesystem::path put(const std::filesystem::path& prefix) {
    std::filesystem::create_directories(prefix / "share/leanattn");
    write_bytes(prefix / "share/leanattn/tuning.db", {'x'});
    return prefix / "share/leanattn/tuning.db";
  }
  TemporaryDirectory root_;
};

TEST_F(InstalledDatabase, IsBesideTheDirectoriesOfLibrariesAndPrograms) {
  const auto file = put(root_ / "usr");
  EXPECT_EQ(installed_database(root_ / "usr/lib"), file);
  EXPECT_EQ(installed_database(root_ / "usr/bin"), file);
  EXPECT_EQ(installed_database(root_ / "usr/lib/x86_64-linux-gnu"), file);
  EXPECT_EQ(installed_database(root_ / "usr/local/lib"), root_ / "usr/local/share/leanattn/tuning.db")
      << "that of another installation is not taken";
}

TEST_F(InstalledDatabase, IsInsideAPythonPackageForItsModuleAndItsProgram) {
  const auto file = put(root_ / "site-packages/leanattn");
  put(root_ / "site-packages");
  EXPECT_EQ(installed_database(root_ / "site-packages/leanattn"), file);
  EXPECT_EQ(installed_database(root_ / "site-packages/leanattn/bin"), file);
}

TEST_F(LayeredWinnersTest, AreReadWithoutLocksWhereNobodyWritesTheFile) {
  make(site_.path(), "site", {"1"});
  RawDatabase writer(site_ / "tuning.db");
  writer.exec("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE");
  detail::OpenPolicy policy = detail::open_policy(site_.path(), 1);
  EXPECT_EQ(detail::open_tuning_file(site_ / "tuning.db", policy).error().code, ErrorCode::database_busy);
  policy.immutable = true;
  const auto db = detail::open_tuning_file(site_ / "tuning.db", policy);
  ASSERT_TRUE(db) << db.error().message;
  EXPECT_EQ((*db)->winners(h200()).value().size(), 1u);
}

TEST_F(LayeredWinnersTest, AreReadWhileATunerWrites) {
  make(user_.path(), "user", {"1"});
  RawDatabase tuner(user_ / "tuning.db");
  tuner.exec("BEGIN IMMEDIATE; UPDATE sessions SET finished = 'soon'");
  EXPECT_EQ(load_layered_winners(h200(), user_.path()).entries.size(), 1u);
}

}  // namespace
}  // namespace leanattn
