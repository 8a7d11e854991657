#include <algorithm>
#include <random>
#include <set>

#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

constexpr int kDamageTrials = 60;

/// A database with kDamageTrials trials over several pages, in `directory`.
void fill(const std::filesystem::path& directory) {
  const auto db = open_quietly(directory);
  const auto session = db->begin_session(h200(), environment(), "fill").value();
  for (int i = 0; i < kDamageTrials; ++i) {
    Trial put = trial("{\"tile\":" + std::to_string(i) + "}", 10 + i);
    put.samples_json = "[" + std::string(400, '1') + "]";
    ASSERT_TRUE(db->add_trial(session, put));
  }
  ASSERT_TRUE(db->rebuild_winners());
  ASSERT_TRUE(db->finish_session(session));
}

class TuningDbDamage : public ::testing::Test {
 protected:
  /// Opens the damaged file in directory_ and expects it to be put aside, reported and replaced. Returns how many
  /// trials survived.
  std::int64_t expect_replaced(const std::vector<char>& damaged) {
    std::string warning;
    auto db = TuningDb::open(directory_.path(), OpenMode::read_write, &warning);
    EXPECT_TRUE(db) << (db ? "" : db.error().message);
    if (!db) return -1;
    EXPECT_NE(warning.find("was moved to"), std::string::npos) << warning;
    const auto aside = files_with_prefix(directory_.path(), "tuning.db.corrupt-");
    EXPECT_EQ(aside.size(), 1u);
    if (aside.size() != 1) return -1;
    EXPECT_NE(warning.find(aside[0].string()), std::string::npos) << warning;
    EXPECT_EQ(read_bytes(aside[0]), damaged);
    EXPECT_TRUE((*db)->check()->empty());
    EXPECT_TRUE((*db)->begin_session(h200(), environment(), "goes on"));
    return (*db)->stats()->trials;
  }

  TemporaryDirectory directory_;
};

TEST_F(TuningDbDamage, OfTheHeaderMovesTheFileAsideAndGoesOn) {
  fill(directory_.path());
  auto bytes = read_bytes(directory_ / "tuning.db");
  bytes[0] = 'X';
  write_bytes(directory_ / "tuning.db", bytes);
  EXPECT_EQ(expect_replaced(bytes), 0);
}

TEST_F(TuningDbDamage, ByTruncationMovesTheFileAsideAndGoesOn) {
  fill(directory_.path());
  const auto whole = read_bytes(directory_ / "tuning.db");
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{4096}, whole.size() / 2, whole.size() - 4096}) {
    SCOPED_TRACE(size);
    std::vector<char> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    write_bytes(directory_ / "tuning.db", cut);
    expect_replaced(cut);
    for (const auto& path : files_with_prefix(directory_.path(), "tuning.db")) std::filesystem::remove(path);
  }
}

TEST_F(TuningDbDamage, ByForeignContentMovesTheFileAsideAndGoesOn) {
  const std::string text = "#!/bin/sh\necho this is no database\n" + std::string(2000, '#');
  const std::vector<char> bytes(text.begin(), text.end());
  write_bytes(directory_ / "tuning.db", bytes);
  EXPECT_EQ(expect_replaced(bytes), 0);
}

TEST_F(TuningDbDamage, OfOnePageLosesOnlyTheTrialsOnIt) {
  fill(directory_.path());
  std::int64_t root = 0;
  {
    RawDatabase raw(directory_ / "tuning.db");
    root = std::stoll(raw.ask("SELECT rootpage FROM sqlite_schema WHERE name = 'trials_by_key'"));
  }
  auto bytes = read_bytes(directory_ / "tuning.db");
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>((root - 1) * 4096), 4096, '\xEE');
  write_bytes(directory_ / "tuning.db", bytes);
  EXPECT_EQ(expect_replaced(bytes), kDamageTrials) << "an index holds nothing that the tables do not";
}

TEST_F(TuningDbDamage, IsAnErrorWhenReadOnly) {
  fill(directory_.path());
  auto bytes = read_bytes(directory_ / "tuning.db");
  bytes[0] = 'X';
  write_bytes(directory_ / "tuning.db", bytes);
  const auto db = TuningDb::open(directory_.path(), OpenMode::read_only, nullptr);
  ASSERT_FALSE(db);
  EXPECT_EQ(db.error().code, ErrorCode::database_corrupt);
  EXPECT_EQ(read_bytes(directory_ / "tuning.db"), bytes);
  EXPECT_EQ(files_with_prefix(directory_.path(), "tuning.db").size(), 1u);
}

/// The promise about any damage: opening and using never crashes; every trial that comes back is exactly one that was
/// written or is named by check(); and trials are missing only with a warning and the damaged file kept, or with an
/// error that leaves the file.
TEST_F(TuningDbDamage, OfAnyKindNeverCrashesLiesOrLosesSilently) {
  fill(directory_.path());
  const auto whole = read_bytes(directory_ / "tuning.db");
  const std::uint64_t seed = random_seed();
  std::mt19937_64 random(seed);
  int replaced = 0, noticed = 0;
  for (int round = 0; round < tries(150, 1000); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (const auto& path : files_with_prefix(directory_.path(), "tuning.db")) std::filesystem::remove(path);
    auto bytes = whole;
    const auto anywhere = [&] { return static_cast<std::size_t>(random() % bytes.size()); };
    switch (random() % 5) {
      case 0:  // one bit
        bytes[anywhere()] ^= static_cast<char>(1 << (random() % 8));
        break;
      case 1:  // one bit of the header or the schema
        bytes[random() % 4096] ^= static_cast<char>(1 << (random() % 8));
        break;
      case 2:  // many bytes
        for (int i = 0; i < 40; ++i) bytes[anywhere()] = static_cast<char>(random());
        break;
      case 3:  // a page of noise
        for (std::size_t i = 0, at = anywhere() / 4096 * 4096; i < 4096; ++i)
          bytes[at + i] = static_cast<char>(random());
        break;
      default:  // a cut
        bytes.resize(anywhere());
        break;
    }
    write_bytes(directory_ / "tuning.db", bytes);

    // First as an engine does it, which changes nothing.
    for (const auto& entry : load_layered_winners(h200(), directory_.path()).entries) {
      EXPECT_EQ(entry.winner.config,
                "{\"tile\":" + std::to_string(static_cast<int>(entry.winner.median_us) - 10) + "}");
    }
    EXPECT_EQ(read_bytes(directory_ / "tuning.db"), bytes);

    std::string warning;
    auto db = TuningDb::open(directory_.path(), OpenMode::read_write, &warning);
    if (!db) {
      EXPECT_EQ(db.error().code, ErrorCode::database_newer) << db.error().message;
      EXPECT_EQ(read_bytes(directory_ / "tuning.db"), bytes);
      continue;
    }
    const auto findings = (*db)->check();
    ASSERT_TRUE(findings);
    if (!warning.empty()) {
      ++replaced;
      const auto aside = files_with_prefix(directory_.path(), "tuning.db.corrupt-");
      ASSERT_GE(aside.size(), 1u);
      EXPECT_EQ(read_bytes(*std::min_element(aside.begin(), aside.end())), bytes);
      EXPECT_TRUE(findings->empty()) << "what was recovered is sound";
    }
    std::set<std::string> suspects;
    for (const std::string& finding : *findings) suspects.insert(finding);
    noticed += !suspects.empty();
    const auto devices = (*db)->device_models();
    ASSERT_TRUE(devices);
    std::int64_t seen = 0;
    bool left_out = false;
    for (const DeviceModel& device : *devices) {
      const auto trials = (*db)->trials(device, "", "", "");
      ASSERT_TRUE(trials);
      left_out = left_out || (*db)->take_warning();
      for (const Trial& got : *trials) {
        ++seen;
        const bool as_written =
            device == h200() && got.median_us >= 10 && got.median_us < 10 + kDamageTrials &&
            got.config == "{\"tile\":" + std::to_string(static_cast<int>(got.median_us) - 10) + "}" &&
            got.problem == trial("", 1).problem && got.shape == trial("", 1).shape && got.registers == 128;
        if (!as_written) {
          EXPECT_TRUE(suspects.contains("trial " + got.uuid + " does not match its digest")) << got.uuid;
        }
      }
      for (const Winner& winner : (*db)->winners(device).value_or(std::vector<Winner>{})) {
        EXPECT_EQ(winner.config, "{\"tile\":" + std::to_string(static_cast<int>(winner.median_us) - 10) + "}");
      }
    }
    if (warning.empty() && !left_out) {
      EXPECT_EQ(seen, kDamageTrials);
    }
    const auto session = (*db)->begin_session(h200(), environment(), "goes on");
    ASSERT_TRUE(session) << session.error().message;
    EXPECT_TRUE((*db)->add_trial(*session, trial("{}", 9)));
    EXPECT_TRUE((*db)->rebuild_winners());
  }
  EXPECT_GT(replaced, tries(45, 300)) << "most of the damage is of a kind that SQLite notices";
  RecordProperty("noticed_by_digest", noticed);
}

}  // namespace
}  // namespace leanattn
