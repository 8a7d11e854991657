#include "cache/cubin/cubin_db.hpp"

#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <random>
#include <set>
#include <thread>

#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

/// Bytes that belong to a key, so that a wrong one is recognised; a third of it repeats, as in a real cubin.
CubinEntry entry_for(const std::string& key, std::size_t size = 3000) {
  std::mt19937_64 random(std::hash<std::string>()(key));
  CubinEntry entry;
  for (std::size_t i = 0; i < size; ++i) entry.cubin.push_back(i % 3 == 0 ? 0x90 : static_cast<std::uint8_t>(random()));
  entry.metadata = "{\"registers\":128,\"for\":\"" + key + "\"}";
  return entry;
}

bool same(const CubinEntry& a, const CubinEntry& b) { return a.cubin == b.cubin && a.metadata == b.metadata; }

std::string key_of(int i) { return cubin_key("source " + std::to_string(i), {"-arch=sm_90a"}, "13.0", "sm_90a"); }

class CubinDb : public ::testing::Test {
 protected:
  std::unique_ptr<CubinCache> open() {
    std::string warning;
    auto cache = open_cubin_db(directory_.path(), &warning);
    EXPECT_EQ(warning, "");
    return cache;
  }
  std::filesystem::path file() const { return directory_ / "cubin.db"; }
  TemporaryDirectory directory_;
  ScopedVariable patience_{"LEANATTN_BUSY_TIMEOUT_MS", "120000"};
  ScopedVariable limit_{"LEANATTN_CUBIN_CACHE_MB", std::nullopt};
};

TEST(CubinKey, IsHexAndDependsOnEveryPartAndItsPlace) {
  const std::string base = cubin_key("source", {"-a", "-b"}, "13.0", "sm_90a");
  EXPECT_EQ(base.size(), 64u);
  EXPECT_EQ(base.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(cubin_key("source", {"-a", "-b"}, "13.0", "sm_90a"), base);
  const std::set<std::string> keys = {base,
                                      cubin_key("source ", {"-a", "-b"}, "13.0", "sm_90a"),
                                      cubin_key("source", {"-b", "-a"}, "13.0", "sm_90a"),
                                      cubin_key("source", {"-a-b"}, "13.0", "sm_90a"),
                                      cubin_key("source", {"-a", "-b", ""}, "13.0", "sm_90a"),
                                      cubin_key("source", {"-a"}, "-b13.0", "sm_90a"),
                                      cubin_key("source-a", {"-b"}, "13.0", "sm_90a"),
                                      cubin_key("source", {"-a", "-b"}, "13.1", "sm_90a"),
                                      cubin_key("source", {"-a", "-b"}, "13.0", "sm_90"),
                                      cubin_key("source", {"-a", "-b"}, "13.0s", "m_90a"),
                                      cubin_key("", {}, "", "")};
  EXPECT_EQ(keys.size(), 11u);
}

TEST_F(CubinDb, GivesBackWhatWasStoredInThisProcessAndTheNext) {
  {
    const auto cache = open();
    EXPECT_FALSE(cache->load(key_of(1)));
    cache->store(key_of(1), entry_for(key_of(1)));
    ASSERT_TRUE(cache->load(key_of(1)));
    EXPECT_TRUE(same(*cache->load(key_of(1)), entry_for(key_of(1))));
  }
  const auto cache = open();
  const auto entry = cache->load(key_of(1));
  ASSERT_TRUE(entry);
  EXPECT_TRUE(same(*entry, entry_for(key_of(1))));
  EXPECT_FALSE(cache->load(key_of(2)));
  struct stat status {};
  ASSERT_EQ(::stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
}

TEST_F(CubinDb, ReplacesErasesAndIgnoresEmptyCubins) {
  const auto cache = open();
  cache->store("key", entry_for("first"));
  cache->store("key", entry_for("second"));
  cache->store("empty", CubinEntry{{}, "{}"});
  EXPECT_FALSE(cache->load("empty"));
  EXPECT_TRUE(same(*cache->load("key"), entry_for("second")));
  EXPECT_EQ(cubin_db_stats(directory_.path())->entries, 1);
  cache->erase("key");
  EXPECT_FALSE(cache->load("key"));
  EXPECT_EQ(cubin_db_stats(directory_.path())->entries, 0);
  cache->erase("never there");
}

TEST_F(CubinDb, KeepsCompressedBytesAndCountsThem) {
  const auto cache = open();
  CubinEntry zeros{std::vector<std::uint8_t>(100000, 0), "{}"};
  cache->store("zeros", zeros);
  const auto stats = cubin_db_stats(directory_.path());
  ASSERT_TRUE(stats);
  EXPECT_EQ(stats->entries, 1);
  EXPECT_EQ(stats->cubin_bytes, 100000);
  EXPECT_LT(stats->stored_bytes, 1000);
  EXPECT_EQ(stats->limit_bytes, std::int64_t{512} << 20);
  EXPECT_TRUE(check_cubin_db(directory_.path())->empty());
}

TEST_F(CubinDb, SharesItsMemoryLayerAmongCachesOfOneDirectoryOnly) {
  const auto first = open();
  const auto second = open();
  first->store("key", entry_for("key"));
  std::filesystem::remove(file());
  EXPECT_TRUE(second->load("key")) << "from memory";
  TemporaryDirectory elsewhere;
  EXPECT_FALSE(open_cubin_db(elsewhere.path(), nullptr)->load("key"));
}

TEST_F(CubinDb, EvictsTheLeastRecentlyUsedAboveTheLimit) {
  const ScopedVariable limit("LEANATTN_CUBIN_CACHE_MB", "1");
  constexpr std::size_t kSize = 240000;  // about 190 kB each when compressed: five fit
  {
    const auto cache = open();
    for (int i = 0; i < 4; ++i) cache->store(key_of(i), entry_for(key_of(i), kSize));
  }
  {
    const auto cache = open();
    ASSERT_TRUE(cache->load(key_of(0)));  // the oldest becomes the most recently used
    for (int i = 4; i < 7; ++i) cache->store(key_of(i), entry_for(key_of(i), kSize));
  }
  const auto cache = open();
  EXPECT_TRUE(cache->load(key_of(0)));
  EXPECT_FALSE(cache->load(key_of(1)));
  EXPECT_TRUE(cache->load(key_of(6)));
  const auto stats = cubin_db_stats(directory_.path()).value();
  EXPECT_LE(stats.stored_bytes, 1 << 20);
  EXPECT_GE(stats.entries, 3);
  EXPECT_LT(std::filesystem::file_size(file()), (1u << 20) + 200000u) << "evicted pages go back to the file system";
  EXPECT_TRUE(check_cubin_db(directory_.path())->empty());
}

TEST_F(CubinDb, KeepsNothingOnTheDiskWithALimitOfZero) {
  const ScopedVariable limit("LEANATTN_CUBIN_CACHE_MB", "0");
  const auto cache = open();
  cache->store("key", entry_for("key"));
  EXPECT_TRUE(cache->load("key"));
  EXPECT_EQ(cubin_db_stats(directory_.path())->entries, 0);
}

TEST_F(CubinDb, MissesAndForgetsAnEntryThatFailsItsChecksum) {
  for (const char* damage :
       {"UPDATE cubin_data SET data = CAST(substr(data, 1, 100) || x'00' || substr(data, 102) AS BLOB)",
        "UPDATE cubin_data SET data = x''", "UPDATE cubins SET metadata = '{\"registers\":1}'",
        "UPDATE cubins SET cubin_bytes = 1 << 60", "UPDATE cubins SET cubin_bytes = -1",
        "UPDATE cubins SET cubin_bytes = cubin_bytes - 1", "UPDATE cubins SET digest = zeroblob(32)"}) {
    open()->store("key", entry_for("key"));
    RawDatabase(file()).exec(damage);
    const auto findings = check_cubin_db(directory_.path()).value();
    ASSERT_EQ(findings.size(), 1u) << damage;
    EXPECT_EQ(findings[0], "cubin key does not match its digest");
    const auto cache = open();
    EXPECT_FALSE(cache->load("key")) << damage;
    EXPECT_EQ(cubin_db_stats(directory_.path())->entries, 0) << "a bad entry is deleted";
    EXPECT_FALSE(cache->not_kept());
  }
}

TEST_F(CubinDb, NeverGivesOneKeysCubinForAnother) {
  {
    const auto cache = open();
    cache->store("right", entry_for("right"));
    cache->store("wrong", entry_for("wrong"));
  }
  RawDatabase(file()).exec("DELETE FROM cubins WHERE key = 'right'; UPDATE cubins SET key = 'right'");
  EXPECT_FALSE(open()->load("right"));
}

TEST_F(CubinDb, NeverCrashesNorReturnsAWrongCubinWhateverTheDamage) {
  constexpr int kEntries = 12;
  const auto stored = [](int i) { return entry_for(key_of(i), 2000 + static_cast<std::size_t>(i) * 700); };
  {
    const auto cache = open();
    for (int i = 0; i < kEntries; ++i) cache->store(key_of(i), stored(i));
  }
  const auto whole = read_bytes(file());
  const std::uint64_t seed = random_seed();
  std::mt19937_64 random(seed);
  int hits = 0, asides = 0;
  for (int round = 0; round < tries(150, 1000); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (const auto& path : files_with_prefix(directory_.path(), "cubin.db")) std::filesystem::remove(path);
    auto bytes = whole;
    const auto anywhere = [&] { return static_cast<std::size_t>(random() % bytes.size()); };
    switch (random() % 4) {
      case 0: bytes[anywhere()] ^= static_cast<char>(1 << (random() % 8)); break;
      case 1: bytes[random() % 4096] ^= static_cast<char>(1 << (random() % 8)); break;
      case 2:
        for (std::size_t i = 0, at = anywhere() / 4096 * 4096; i < 4096; ++i)
          bytes[at + i] = static_cast<char>(random());
        break;
      default: bytes.resize(anywhere()); break;
    }
    write_bytes(file(), bytes);
    std::string warning;
    const auto cache = open_cubin_db(directory_.path(), &warning);
    for (int i = 0; i < kEntries; ++i) {
      if (const auto entry = cache->load(key_of(i))) {
        ++hits;
        ASSERT_TRUE(same(*entry, stored(i)));
      }
    }
    cache->store("another", entry_for("another"));
    const auto another = cache->load("another");
    ASSERT_TRUE(another);
    ASSERT_TRUE(same(*another, entry_for("another")));
    asides += !files_with_prefix(directory_.path(), "cubin.db.corrupt-").empty();
    // Four bytes of the header are the version. A larger one is a newer leanattn's, whose file stays where it is.
    if (warning.find("was moved to") == std::string::npos && !warning.empty()) {
      EXPECT_NE(warning.find("newer leanattn"), std::string::npos) << warning;
      EXPECT_EQ(read_bytes(file()), bytes);
    }
  }
  EXPECT_GT(hits, tries(150, 1000)) << "most entries survive most damage";
  EXPECT_GT(asides, tries(20, 125));
}

TEST_F(CubinDb, ReplacesAFileThatTurnsOutDamagedWhileInUse) {
  {
    const auto cache = open();
    for (int i = 0; i < 20; ++i) cache->store(key_of(i), entry_for(key_of(i)));
  }
  auto bytes = read_bytes(file());
  std::fill(bytes.begin() + 8192, bytes.end(), '\x7F');
  write_bytes(file(), bytes);
  const auto cache = open();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(cache->load(key_of(i)));
  EXPECT_EQ(files_with_prefix(directory_.path(), "cubin.db.corrupt-").size(), 1u);
  cache->store(key_of(3), entry_for(key_of(3)));
  EXPECT_EQ(cubin_db_stats(directory_.path())->entries, 1);
  EXPECT_TRUE(check_cubin_db(directory_.path())->empty());
}

TEST_F(CubinDb, KeepsOnlyTheNewestDamagedFile) {
  for (int round = 0; round < 3; ++round) {
    open_cubin_db(directory_.path(), nullptr);
    write_bytes(file(), std::vector<char>(5000, static_cast<char>('a' + round)));
    std::string warning;
    open_cubin_db(directory_.path(), &warning);
    EXPECT_NE(warning, "");
  }
  const auto aside = files_with_prefix(directory_.path(), "cubin.db.corrupt-");
  ASSERT_EQ(aside.size(), 1u);
  EXPECT_EQ(read_bytes(aside[0]), std::vector<char>(5000, 'c'));
}

TEST_F(CubinDb, WorksInMemoryWhereThereIsNoUsableDirectory) {
  write_bytes(directory_ / "plain", {'x'});
  for (const auto& place :
       {std::optional<std::filesystem::path>(directory_ / "plain"), std::optional<std::filesystem::path>("relative"),
        std::optional<std::filesystem::path>("/proc/leanattn")}) {
    std::string warning;
    const auto cache = open_cubin_db(place, &warning);
    EXPECT_NE(warning.find("in memory only"), std::string::npos) << warning;
    cache->store("key", entry_for("key"));
    EXPECT_TRUE(cache->load("key"));
  }
  std::string warning;
  const auto cache = open_cubin_db(std::nullopt, &warning);
  EXPECT_EQ(warning, "") << "memory only was asked for";
  cache->store("key", entry_for("key"));
  EXPECT_TRUE(cache->load("key"));
  cache->erase("key");
  EXPECT_FALSE(cache->load("key"));
}

TEST_F(CubinDb, LeavesANewerFileUntouched) {
  open()->store("key", entry_for("key"));
  RawDatabase(file()).exec("PRAGMA user_version = 2");
  const auto before = read_bytes(file());
  {
    std::string warning;
    const auto cache = open_cubin_db(directory_.path(), &warning);
    EXPECT_NE(warning.find("newer leanattn"), std::string::npos) << warning;
    cache->store("other", entry_for("other"));
    EXPECT_TRUE(cache->load("other"));
    EXPECT_FALSE(cache->load("key"));
  }
  EXPECT_EQ(read_bytes(file()), before);
  EXPECT_EQ(cubin_db_stats(directory_.path()).error().code, ErrorCode::database_newer);
}

TEST_F(CubinDb, MissesWhileTheFileIsLockedAndGoesOnAfterwards) {
  open()->store("key", entry_for("key"));
  const ScopedVariable hurry("LEANATTN_BUSY_TIMEOUT_MS", "10");
  const auto cache = open();
  {
    RawDatabase other(file());
    other.exec("BEGIN EXCLUSIVE");
    EXPECT_FALSE(cache->load("key"));
    cache->store("dropped", entry_for("dropped"));
    EXPECT_TRUE(cache->load("dropped")) << "from memory";
  }
  EXPECT_TRUE(cache->load("key"));
  EXPECT_EQ(cache->not_kept().value().code, ErrorCode::database_busy);
}

TEST_F(CubinDb, SurvivesAFullDisk) {
  open()->store(key_of(0), entry_for(key_of(0)));
  const pid_t child = start_process([&]() -> int {
    const auto cache = open_cubin_db(directory_.path(), nullptr);
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{static_cast<rlim_t>(std::filesystem::file_size(file())), RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    for (int i = 1; i < 8; ++i) cache->store(key_of(i), entry_for(key_of(i), 100000));
    for (int i = 1; i < 8; ++i) {
      const auto entry = cache->load(key_of(i));
      if (!entry || !same(*entry, entry_for(key_of(i), 100000))) return 3;
    }
    const auto why = cache->not_kept();
    return why && why->code == ErrorCode::cache_unavailable && why->message.find(file().string()) == 0 ? 0 : 4;
  });
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_TRUE(open()->load(key_of(0)));
  EXPECT_TRUE(check_cubin_db(directory_.path())->empty());
}

/// What a user without rights sees of a cache whose files they cannot change. 0: all is well.
int reads_and_keeps_nothing(const std::optional<std::filesystem::path>& directory) {
  ::setenv("LEANATTN_SHIPPED_DB", "none", 1);  // which may lie where that user cannot look
  std::string warning;
  const auto cache = open_cubin_db(directory, &warning);
  if (!warning.empty()) return 2;
  const auto known = cache->load("key");
  if (!known || !same(*known, entry_for("key"))) return 3;
  if (cache->load("another") || cache->not_kept()) return 4;
  cache->store("new", entry_for("new"));
  const auto stored = cache->load("new");
  if (!stored || !same(*stored, entry_for("new"))) return 5;
  return cache->not_kept() ? 0 : 6;
}

TEST_F(CubinDb, IsReadWhereTheDirectoryIsReadOnly) {
  open()->store("key", entry_for("key"));
  give_to_unprivileged(directory_.path());
  give_to_unprivileged(file());
  const auto before = read_bytes(file());
  ::chmod(file().c_str(), 0400);
  ::chmod(directory_.path().c_str(), 0500);
  EXPECT_EQ(run_unprivileged([&] { return reads_and_keeps_nothing(directory_.path()); }), 0);
  ::chmod(directory_.path().c_str(), 0700);
  EXPECT_EQ(read_bytes(file()), before);
}

TEST_F(CubinDb, OfRootIsReadByOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make one that belongs to root";
  ::chmod(directory_.path().c_str(), 0755);
  open()->store("key", entry_for("key"));
  const auto before = read_bytes(file());
  EXPECT_EQ(run_unprivileged([&] { return reads_and_keeps_nothing(directory_.path()); }), 0);
  EXPECT_EQ(read_bytes(file()), before);
}

TEST_F(CubinDb, IsAsReadableAsItsDirectory) {
  for (const auto& [directory, expected] : {std::pair{0755u, 0644u}, {0750u, 0640u}, {0700u, 0600u}}) {
    TemporaryDirectory made;
    ::chmod(made.path().c_str(), directory);
    open_cubin_db(made.path(), nullptr);
    struct stat status {};
    ASSERT_EQ(::stat((made / "cubin.db").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, expected);
  }
}

TEST_F(CubinDb, IsMadeForItsOwnerWhateverTheUmask) {
  give_to_unprivileged(directory_.path());
  EXPECT_EQ(run_unprivileged([&]() -> int {
              ::umask(0777);
              {
                const auto cache = open();
                if (!cache->wait_for_turn(key_of(0)).held()) return 2;
                cache->store("key", entry_for("key"));
              }
              const auto again = open_cubin_db(directory_.path(), nullptr);
              return again->load("key") && again->wait_for_turn(key_of(0)).held() ? 0 : 3;
            }),
            0);
}

TEST_F(CubinDb, GoesOnInANewFileWhereSomebodyRemovedIt) {
  const auto cache = open();
  cache->store("key", entry_for("key"));
  std::filesystem::remove(file());
  cache->store("after", entry_for("after"));
  EXPECT_FALSE(cache->not_kept());
  EXPECT_EQ(cubin_db_stats(directory_.path())->entries, 1);
}

/// A site's cubins, behind those of the user.
class CubinLayers : public CubinDb {
 protected:
  void SetUp() override { open_cubin_db(site_.path(), nullptr)->store("key", entry_for("key")); }
  /// What is said when the layers are opened.
  std::string said() {
    std::string warning;
    loaded_ = open_cubin_db(directory_.path(), &warning)->load("key");
    return warning;
  }
  TemporaryDirectory site_;
  std::optional<CubinEntry> loaded_;
  ScopedVariable variable_{"LEANATTN_SITE_DB", site_.path().string()};
  ScopedVariable shipped_{"LEANATTN_SHIPPED_DB", "none"};
};

TEST_F(CubinLayers, AreReadWhereTheUserHasNone) {
  const auto before = read_bytes(site_ / "cubin.db");
  const auto cache = open();
  const auto known = cache->load("key");
  ASSERT_TRUE(known);
  EXPECT_TRUE(same(*known, entry_for("key")));
  cache->store("own", entry_for("own"));
  EXPECT_FALSE(cache->not_kept());
  EXPECT_EQ(cubin_db_stats(directory_.path())->entries, 1) << "what a layer has is not copied";
  EXPECT_TRUE(open_cubin_db(std::nullopt, nullptr)->load("key")) << "without a user's cache as well";
  EXPECT_EQ(read_bytes(site_ / "cubin.db"), before);
}

TEST_F(CubinLayers, ThatComeWithAProgramAreReadLast) {
  const ScopedVariable none("LEANATTN_SITE_DB", std::nullopt);
  const ScopedVariable shipped("LEANATTN_SHIPPED_DB", site_ / "tuning.db");  // beside which the kernels are
  EXPECT_EQ(said(), "");
  EXPECT_TRUE(loaded_);
}

TEST_F(CubinLayers, ThatAreMissingAreNoMatter) {
  const ScopedVariable nowhere("LEANATTN_SITE_DB", site_ / "gone/tuning.db");
  EXPECT_EQ(said(), "");
  EXPECT_FALSE(loaded_);
}

TEST_F(CubinLayers, ForgetWhatWasErased) {
  const auto cache = open();
  ASSERT_TRUE(cache->load("key"));
  cache->erase("key");
  EXPECT_FALSE(cache->load("key"));
  EXPECT_TRUE(check_cubin_db(site_.path())->empty());
  EXPECT_TRUE(open()->load("key")) << "the file has it still";
}

TEST_F(CubinLayers, GiveNothingThatFailsItsChecksum) {
  RawDatabase(site_ / "cubin.db").exec("UPDATE cubins SET metadata = '{\"registers\":1}'");
  const auto before = read_bytes(site_ / "cubin.db");
  EXPECT_EQ(said(), "");
  EXPECT_FALSE(loaded_);
  EXPECT_EQ(read_bytes(site_ / "cubin.db"), before);
}

TEST_F(CubinLayers, AreMachineCodeSoNobodyElseMayHaveWrittenThem) {
  const auto refused = [&](const std::string& words) {
    const std::string warning = said();
    EXPECT_NE(warning.find("the site kernels were skipped: "), std::string::npos) << warning;
    EXPECT_NE(warning.find(words), std::string::npos) << warning;
    EXPECT_FALSE(loaded_);
  };
  ::chmod((site_ / "cubin.db").c_str(), 0666);
  refused("writable by others");
  ::chmod((site_ / "cubin.db").c_str(), 0600);
  ::chmod(site_.path().c_str(), 0777);
  refused("writable by others");
  ::chmod(site_.path().c_str(), 0700);
  if (::geteuid() != 0) return;  // only root can give files away
  ASSERT_EQ(::chown((site_ / "cubin.db").c_str(), 65534, 65534), 0);
  refused("belongs to another user");
  ASSERT_EQ(::chown((site_ / "cubin.db").c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(site_.path().c_str(), 65534, 65534), 0);
  refused("belongs to another user");
}

TEST_F(CubinDb, ServesManyThreads) {
  const auto cache = open();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 60; ++i) {
        const std::string key = key_of((i * (t + 1)) % 17);
        if (const auto entry = cache->load(key)) {
          wrong += !same(*entry, entry_for(key));
        } else {
          cache->store(key, entry_for(key));
        }
        if (i % 20 == 19) cache->erase(key);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_FALSE(cache->not_kept());
  EXPECT_TRUE(check_cubin_db(directory_.path())->empty());
}

TEST_F(CubinDb, ServesManyProcessesFromItsCreationOn) {
  constexpr int kProcesses = 6, kKeys = 25;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    children.push_back(start_process([&, p]() -> int {
      std::string warning;
      const auto cache = open_cubin_db(directory_.path(), &warning);
      if (!warning.empty()) return 2;
      for (int i = 0; i < kKeys; ++i) {
        const std::string key = key_of((i + p * 7) % kKeys);
        if (const auto entry = cache->load(key)) {
          if (!same(*entry, entry_for(key))) return 3;
        } else {
          cache->store(key, entry_for(key));
        }
      }
      return cache->not_kept() ? 4 : 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  const auto cache = open();
  for (int i = 0; i < kKeys; ++i) {
    const auto entry = cache->load(key_of(i));
    ASSERT_TRUE(entry) << i;
    EXPECT_TRUE(same(*entry, entry_for(key_of(i))));
  }
  EXPECT_EQ(cubin_db_stats(directory_.path())->entries, kKeys);
  EXPECT_TRUE(check_cubin_db(directory_.path())->empty());
}

TEST_F(CubinDb, WorksOnBothSidesOfAFork) {
  const auto cache = open();
  cache->store(key_of(0), entry_for(key_of(0)));
  const pid_t child = start_process([&]() -> int {
    if (open_descriptors(file()) != 1) return 2;
    cache->store(key_of(1), entry_for(key_of(1)));
    if (open_descriptors(file()) != 2) return 3;  // the parent's stays open, unused
    return cache->load(key_of(0)) && cache->load(key_of(1)) ? 0 : 4;
  });
  EXPECT_EQ(wait_for(child), 0);
  const auto from_child = cache->load(key_of(1));
  ASSERT_TRUE(from_child) << "what the child stored is on the disk";
  EXPECT_TRUE(same(*from_child, entry_for(key_of(1))));
}

}  // namespace
}  // namespace leanattn
