// power_cut_test.cpp -- the power fails at any change of a tuning session or of maintenance, and takes with it any part
// of what was not flushed: afterwards the database is sound, and holds every trial that add_trial had acknowledged.
// LEANATTN_ATTACK=1 tries every change with many seeds.
#include <sys/mman.h>

#include "cache_fixture.hpp"
#include "crash_vfs.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

constexpr int kBefore = 12, kDuring = 6;

class PowerCut : public ::testing::Test {
 protected:
  void SetUp() override {
    fill(source_.path(), "source", kBefore);
    fill(original_.path(), "own", kBefore);
    void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    acknowledged_ = static_cast<int*>(memory);
  }
  void TearDown() override { ::munmap(acknowledged_, 4096); }

  static void fill(const std::filesystem::path& directory, const std::string& name, int count) {
    const auto db = open_quietly(directory);
    const auto session = db->begin_session(h200(), environment(), name).value();
    for (int i = 0; i < count; ++i)
      ASSERT_TRUE(db->add_trial(session, trial("{\"" + name + "\":" + std::to_string(i) + "}", 10 + i)));
    ASSERT_TRUE(db->rebuild_winners());
    ASSERT_TRUE(db->finish_session(session));
  }

  /// Runs `work(directory)` in a child whose power fails at its n-th change, and looks at what is left. Returns false
  /// when it had fewer changes.
  template <class Work>
  bool cut(int n, std::uint64_t seed, Work&& work) {
    TemporaryDirectory directory;
    write_bytes(directory / "tuning.db", read_bytes(original_ / "tuning.db"));
    *acknowledged_ = 0;
    const int status = wait_for(start_process([&] {
      CrashVfs disk(n, seed);
      return work(directory.path());
    }));
    EXPECT_TRUE(status == 0 || status == CrashVfs::kCrashStatus) << status;
    // As an engine does it, first.
    const LayeredWinners layers = load_layered_winners(h200(), directory.path());
    EXPECT_TRUE(layers.warnings.empty()) << layers.warnings.front();
    EXPECT_EQ(layers.entries.size(), 1u);
    const auto db = open_quietly(directory.path());
    if (db == nullptr) return false;
    EXPECT_TRUE(db->check()->empty());
    EXPECT_GE(db->stats()->trials, kBefore + *acknowledged_);
    return status != 0;
  }

  template <class Work>
  void cut_everywhere(Work&& work) {
    const bool attack = std::getenv("LEANATTN_ATTACK") != nullptr;
    const std::uint64_t seed = random_seed();
    const int rounds = attack ? 20 : 1, step = attack ? 1 : tries(11, 3);
    int cuts = 0;
    for (int round = 0; round < rounds && !HasFailure(); ++round) {
      for (int n = 1;; n += step) {
        SCOPED_TRACE("change " + std::to_string(n) + ", round " + std::to_string(round));
        if (!cut(n, seed + static_cast<std::uint64_t>(round * 100000 + n), work) || HasFailure()) break;
        ++cuts;
      }
    }
    EXPECT_GT(cuts * step, 60);
    std::printf("power cuts survived: %d\n", cuts);
  }

  TemporaryDirectory source_, original_;
  int* acknowledged_ = nullptr;  ///< trials, counted by the child
};

TEST_F(PowerCut, OfATuningSessionLosesNoAcknowledgedTrial) {
  cut_everywhere([&](const std::filesystem::path& directory) {
    auto db = TuningDb::open(directory, OpenMode::read_write, nullptr);
    if (!db) return 1;
    const auto session = (*db)->begin_session(h200(), environment(), "cut");
    for (int i = 0; session && i < kDuring; ++i) {
      if (!(*db)->add_trial(*session, trial("{\"cut\":" + std::to_string(i) + "}", 30 + i))) return 2;
      ++*acknowledged_;
    }
    const Trial key = trial("", 1);
    return (*db)->rebuild_winners(h200(), key.problem, key.shape, key.policy) && (*db)->finish_session(*session) ? 0
                                                                                                                 : 3;
  });
}

TEST_F(PowerCut, OfMaintenanceLeavesWhatWasThereOrWhatItMade) {
  cut_everywhere([&](const std::filesystem::path& directory) {
    auto db = TuningDb::open(directory, OpenMode::maintain, nullptr);
    if (!db) return 1;
    if (!(*db)->import_from(source_ / "tuning.db") || !(*db)->rebuild_winners()) return 2;
    return (*db)->collect_garbage({.keep_days = 90}) ? 0 : 3;
  });
}

}  // namespace
}  // namespace leanattn
