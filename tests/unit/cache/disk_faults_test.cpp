// disk_faults_test.cpp -- every change that the databases make to their files, refused in turn: nothing crashes,
// nothing that was reported as stored is lost, and the file is sound afterwards.
#include <random>
#include <set>

#include "cache/cubin/cubin_db.hpp"
#include "cache/tuning/open.hpp"
#include "cache_fixture.hpp"
#include "failing_vfs.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

constexpr int kFaultTrials = 4;

struct Fault {
  FailingVfs::Kind kind;
  bool lasting;
  const char* name;
};
std::ostream& operator<<(std::ostream& stream, const Fault& fault) { return stream << fault.name; }

class DiskFaults : public ::testing::TestWithParam<Fault> {
 protected:
  void arm(int n) { vfs_.arm(n, GetParam().kind, GetParam().lasting); }

  /// Runs `body(directory, n)` with its n-th change refused, for every n until it runs through with none refused. A run
  /// that is not thorough takes every seventh, from a random one on.
  template <class Body>
  void for_every_change(Body&& body) {
    const int step = tries(7, 1);
    int n = 1 + static_cast<int>(std::random_device()() % static_cast<unsigned>(step));
    for (;; n += step) {
      SCOPED_TRACE("change " + std::to_string(n) + ", " + GetParam().name);
      TemporaryDirectory directory;
      body(directory.path(), n);
      vfs_.disarm();
      if (HasFatalFailure() || vfs_.refusals() == 0) break;
    }
    EXPECT_GT(n, 20) << "the scenario changes files";
  }

  static std::set<std::string> stored(const std::filesystem::path& directory) {
    const auto db = open_quietly(directory);  // no warning: the file was not damaged
    std::set<std::string> uuids;
    if (db == nullptr) return uuids;
    EXPECT_TRUE(db->check()->empty());
    const auto trials = db->trials(h200(), "", "", "").value();
    for (const Trial& trial : trials) uuids.insert(trial.uuid);
    return uuids;
  }

  static void fill(const std::filesystem::path& directory, const std::string& name) {
    const auto db = open_quietly(directory);
    const auto session = db->begin_session(h200(), environment(), name).value();
    for (int i = 0; i < kFaultTrials; ++i) {
      Trial put = trial("{\"" + name + "\":" + std::to_string(i) + "}", 10 + i);
      put.created = "2020-01-01T00:00:00.000Z";
      ASSERT_TRUE(db->add_trial(session, put));
    }
    ASSERT_TRUE(db->rebuild_winners());
    ASSERT_TRUE(db->finish_session(session));
  }

  static void expect_honest(const Error& error) {
    EXPECT_TRUE(error.code == ErrorCode::cache_unavailable || error.code == ErrorCode::database_busy) << error.message;
    EXPECT_NE(error.hint, "");
  }

  FailingVfs vfs_;
};

TEST_P(DiskFaults, OfATuningSessionCostItNothingAndTheFileOnlyWhatItWarnsOf) {
  for_every_change([&](const std::filesystem::path& directory, int n) {
    arm(n);
    std::string warning;
    auto db = TuningDb::open_or_memory(directory, &warning);
    bool durable = warning.empty();
    std::set<std::string> promised, all;
    const auto session = db->begin_session(h200(), environment(), "");
    ASSERT_TRUE(session) << session.error().message;
    for (int i = 0; i < kFaultTrials; ++i) {
      const auto uuid = db->add_trial(*session, trial("{\"i\":" + std::to_string(i) + "}", 10 + i));
      ASSERT_TRUE(uuid) << uuid.error().message;
      if (db->take_warning()) durable = false;
      if (durable) promised.insert(*uuid);
      all.insert(*uuid);
    }
    const Trial key = trial("", 1);
    ASSERT_TRUE(db->set_read_limit(h200(), "cold", 1 << 20, 3.5));
    ASSERT_TRUE(db->rebuild_winners(h200(), key.problem, key.shape, key.policy));
    ASSERT_EQ(db->winners(h200())->size(), 1u) << "the session goes on as if nothing had happened";
    ASSERT_TRUE(db->finish_session(*session));
    if (const auto said = db->take_warning()) durable = said->find("could be written again") != std::string::npos;
    if (durable) promised = all;
    db.reset();
    vfs_.disarm();
    const auto found = stored(directory);
    for (const std::string& uuid : promised) EXPECT_TRUE(found.contains(uuid)) << uuid;
    // What a single refusal interrupted can be written at the end, unless it came after that.
    if (!GetParam().lasting && durable) {
      EXPECT_EQ(found, all);
    }
  });
}

TEST_P(DiskFaults, OfMaintenanceAreErrorsThatChangeNothing) {
  TemporaryDirectory source;
  fill(source.path(), "source");
  for_every_change([&](const std::filesystem::path& directory, int n) {
    fill(directory, "own");
    const auto before = stored(directory);
    auto opened = TuningDb::open(directory, OpenMode::read_write, nullptr);
    ASSERT_TRUE(opened);
    arm(n);
    const auto imported = (*opened)->import_from(source / "tuning.db");
    if (!imported) {
      expect_honest(imported.error());
    } else {
      EXPECT_EQ(*imported, kFaultTrials);
    }
    const auto rebuilt = (*opened)->rebuild_winners();
    if (!rebuilt) expect_honest(rebuilt.error());
    const auto exported = (*opened)->export_to(directory / "export.db");
    if (!exported) {
      EXPECT_EQ(exported.error().message.find("cannot write " + (directory / "export.db").string()), 0u)
          << exported.error().message;
      EXPECT_EQ(exported.error().message.find("tuning.db"), std::string::npos) << exported.error().message;
      expect_honest(exported.error());
      EXPECT_FALSE(std::filesystem::exists(directory / "export.db"));
    }
    const auto collected = (*opened)->collect_garbage({.keep_days = 90, .max_bytes = 1});
    if (!collected) expect_honest(collected.error());
    opened->reset();
    vfs_.disarm();
    EXPECT_TRUE(files_with_prefix(directory, "export.db.partial").empty());
    if (exported) {
      EXPECT_TRUE(detail::open_tuning_file(directory / "export.db", {})
                      .and_then([](auto&& db) { return db->check(); })
                      .value_or(std::vector<std::string>{"cannot be opened"})
                      .empty());
    }
    const auto after = stored(directory);
    if (!collected) {
      EXPECT_EQ(after.size(), before.size() + (imported ? kFaultTrials : 0)) << "all of an import, or nothing";
    } else {
      EXPECT_GE(after.size(), 1u);
    }
    EXPECT_EQ(open_quietly(directory)->winners(h200())->size(), 1u);
  });
}

TEST_P(DiskFaults, OfTheCubinCacheAreMissesAtWorst) {
  const auto entry = [](int i) {
    CubinEntry made{std::vector<std::uint8_t>(6000), "{\"for\":" + std::to_string(i) + "}"};
    std::mt19937 random(static_cast<unsigned>(i));
    for (auto& byte : made.cubin) byte = static_cast<std::uint8_t>(random());
    return made;
  };
  const auto right = [&](const std::optional<CubinEntry>& got, int i) {
    return got && got->cubin == entry(i).cubin && got->metadata == entry(i).metadata;
  };
  for_every_change([&](const std::filesystem::path& directory, int n) {
    arm(n);
    {
      const auto cache = open_cubin_db(directory, nullptr);
      for (int i = 0; i < 4; ++i) cache->store("key" + std::to_string(i), entry(i));
      cache->erase("key0");
      for (int i = 1; i < 4; ++i) EXPECT_TRUE(right(cache->load("key" + std::to_string(i)), i)) << "from memory";
    }
    vfs_.disarm();
    std::string warning;
    const auto cache = open_cubin_db(directory, &warning);
    EXPECT_EQ(warning, "");
    for (int i = 0; i < 4; ++i) {
      const auto got = cache->load("key" + std::to_string(i));
      EXPECT_TRUE(!got || right(got, i));
    }
    cache->store("later", entry(9));
    EXPECT_TRUE(check_cubin_db(directory)->empty());
  });
}

INSTANTIATE_TEST_SUITE_P(Any, DiskFaults,
                         ::testing::Values(Fault{FailingVfs::Kind::full, true, "the disk is full and stays so"},
                                           Fault{FailingVfs::Kind::full, false, "the disk is full for once"},
                                           Fault{FailingVfs::Kind::io_error, true, "the disk has failed"},
                                           Fault{FailingVfs::Kind::io_error, false, "the disk fails once"}),
                         [](const auto& instance) {
                           return std::string(instance.param.kind == FailingVfs::Kind::full ? "Full" : "IoError") +
                                  (instance.param.lasting ? "ForGood" : "Once");
                         });

}  // namespace
}  // namespace leanattn
