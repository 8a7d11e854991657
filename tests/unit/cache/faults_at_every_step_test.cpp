// faults_at_every_step_test.cpp -- every read refused in turn, and every allocation of SQLite and of C++: a sound
// database is never taken for a damaged one, nothing crashes, and what failed is an error. LEANATTN_ATTACK=1 tries
// every step; by default, steps are left out as their numbers grow.
#include <cstdlib>
#include <new>

#include "cache/cubin/cubin_db.hpp"
#include "cache/tuning/open.hpp"
#include "cache_fixture.hpp"
#include "failing_memory.hpp"
#include "failing_vfs.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

constexpr int kStepTrials = 12;

void fill(const std::filesystem::path& directory, const std::string& name) {
  const auto db = open_quietly(directory);
  const auto session = db->begin_session(h200(), environment(), name).value();
  for (int i = 0; i < kStepTrials; ++i)
    ASSERT_TRUE(db->add_trial(session, trial("{\"" + name + "\":" + std::to_string(i) + "}", 10 + i)));
  ASSERT_TRUE(db->set_read_limit(h200(), "cold", 33554432, 9.0));
  ASSERT_TRUE(db->rebuild_winners());
  ASSERT_TRUE(db->finish_session(session));
}

/// The step after n: the next one, or a growing distance further. The seed of the run decides which steps these are.
int next_step(int n) {
  if (std::getenv("LEANATTN_ATTACK") != nullptr) return n + 1;
  return n + 1 + (n + static_cast<int>(run_seed() % 8)) / 8;
}

bool is_honest(const Error& error) {
  return error.code == ErrorCode::out_of_memory || error.code == ErrorCode::cache_unavailable ||
         error.code == ErrorCode::database_busy;
}

/// What a process does with the caches: opens, looks up, checks, imports, derives anew. Returns whether all of it went
/// well.
bool use(const std::filesystem::path& directory, const std::filesystem::path& import) {
  bool well = true;
  const auto note = [&](const auto& result) {
    if (result) return true;
    EXPECT_TRUE(is_honest(result.error())) << static_cast<int>(result.error().code) << " " << result.error().message;
    return well = false;
  };
  well = load_layered_winners(h200(), directory).warnings.empty();
  {
    auto db = TuningDb::open(directory, OpenMode::read_only, nullptr);
    if (note(db)) {
      const auto winners = (*db)->winners(h200());
      if (note(winners)) {
        EXPECT_LE(winners->size(), 1u);
      }
      const auto findings = (*db)->check();
      if (note(findings)) {
        EXPECT_TRUE(findings->empty()) << findings->front();
      }
    }
  }
  for (const OpenMode mode : {OpenMode::maintain, OpenMode::read_write}) {
    auto db = TuningDb::open(directory, mode, nullptr);
    if (!note(db)) continue;
    note((*db)->import_from(import));
    note((*db)->rebuild_winners());
  }
  const auto cubins = open_cubin_db(directory, nullptr);
  cubins->store("key", {{1, 2, 3}, "{}"});
  return well;
}

class FaultsAtEveryStep : public ::testing::Test {
 protected:
  void SetUp() override {
    fill(source_.path(), "source");
    fill(directory_.path(), "own");
    open_cubin_db(directory_.path(), nullptr)->store("known", {{4, 5, 6}, "{}"});
  }

  void expect_sound() {
    EXPECT_TRUE(files_with_prefix(directory_.path(), "tuning.db.corrupt").empty());
    EXPECT_TRUE(files_with_prefix(directory_.path(), "cubin.db.corrupt").empty());
    EXPECT_TRUE(files_with_prefix(directory_.path(), "tuning.db.new").empty());
    const auto db = TuningDb::open(directory_.path(), OpenMode::read_only, nullptr);
    ASSERT_TRUE(db) << db.error().message;
    EXPECT_GE((*db)->stats()->trials, kStepTrials);
  }

  TemporaryDirectory directory_, source_;
};

TEST_F(FaultsAtEveryStep, OfReadingMoveNoSoundFile) {
  FailingVfs disk;
  for (const bool lasting : {false, true}) {
    int steps = 0;
    for (int n = 1;; n = next_step(n)) {
      SCOPED_TRACE("read " + std::to_string(n) + (lasting ? " and all after it" : ""));
      disk.arm(n, FailingVfs::Kind::read_error, lasting);
      const bool well = use(directory_.path(), source_ / "tuning.db");
      const int refused = disk.refusals();
      disk.disarm();
      expect_sound();
      if (HasFailure() || refused == 0) {
        EXPECT_TRUE(well);
        break;
      }
      ++steps;
    }
    EXPECT_GT(steps, 20);
  }
}

TEST_F(FaultsAtEveryStep, TwoReadErrorsInARowMoveNoSoundFile) {
  FailingVfs disk;
  for (int n = 1; n < 200; n = next_step(n)) {
    for (int repeats = 2; repeats <= 4; ++repeats) {
      SCOPED_TRACE("reads " + std::to_string(n) + " to " + std::to_string(n + repeats - 1));
      disk.arm(n, FailingVfs::Kind::read_error, false, repeats);
      const auto db = TuningDb::open(directory_.path(), OpenMode::read_write, nullptr);
      disk.disarm();
      if (!db) {
        EXPECT_TRUE(is_honest(db.error())) << db.error().message;
      }
      expect_sound();
    }
  }
}

/// Calls `attempt(whose, n, lasting)`, which has the n-th allocation fail, or that and all after it, and returns how
/// many were refused, for growing n until none is.
template <class Attempt>
void for_every_allocation(Attempt attempt) {
  for (const auto whose : {FailingMemory::Whose::sqlite, FailingMemory::Whose::cpp}) {
    for (const bool lasting : {false, true}) {
      int steps = 0;
      for (int n = 1;; n = next_step(n)) {
        SCOPED_TRACE((whose == FailingMemory::Whose::sqlite ? "SQLite's allocation " : "allocation ") +
                     std::to_string(n) + (lasting ? " and all after it" : ""));
        const int refused = attempt(whose, n, lasting);
        if (testing::Test::HasFailure() || refused == 0) break;
        ++steps;
      }
      EXPECT_GT(steps, 20);
    }
  }
}

TEST_F(FaultsAtEveryStep, OfAllocationMoveNoSoundFile) {
  for_every_allocation([&](FailingMemory::Whose whose, int n, bool lasting) {
    int refused = 0;
    {
      FailingMemory memory(whose, n, lasting);
      // The library's boundary is Result, and std::bad_alloc where even the error has no room.
      try {
        use(directory_.path(), source_ / "tuning.db");
      } catch (const std::bad_alloc&) {
      }
      refused = memory.refusals();
    }
    expect_sound();
    return refused;
  });
}

TEST_F(FaultsAtEveryStep, OfAllocationInARepairLoseNoTrial) {
  spoil_an_index(directory_ / "tuning.db");
  const auto damaged = read_bytes(directory_ / "tuning.db");
  for_every_allocation([&](FailingMemory::Whose whose, int n, bool lasting) {
    TemporaryDirectory directory;
    write_bytes(directory / "tuning.db", damaged);
    int refused = 0;
    {
      FailingMemory memory(whose, n, lasting);
      try {
        const auto db = TuningDb::open(directory.path(), OpenMode::read_write, nullptr);
        if (!db) {
          // Without memory a repair gives up, and the file is as damaged as it was.
          EXPECT_TRUE(is_honest(db.error()) || db.error().code == ErrorCode::database_corrupt) << db.error().message;
        }
      } catch (const std::bad_alloc&) {
      }
      refused = memory.refusals();
    }
    const auto db = TuningDb::open(directory.path(), OpenMode::read_write, nullptr);
    if (!db) {
      ADD_FAILURE() << db.error().message;
      return refused;
    }
    EXPECT_EQ((*db)->stats()->trials, kStepTrials);
    EXPECT_TRUE((*db)->check()->empty());
    const auto aside = files_with_prefix(directory.path(), "tuning.db.corrupt-");
    EXPECT_EQ(aside.size(), 1u);
    if (aside.size() == 1) {
      EXPECT_EQ(read_bytes(aside[0]), damaged);
    }
    EXPECT_TRUE(files_with_prefix(directory.path(), "tuning.db.new").empty());
    return refused;
  });
}

}  // namespace
}  // namespace leanattn
