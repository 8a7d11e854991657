#include "cache/sqlite/database.hpp"

#include <SQLiteCpp/SQLiteCpp.h>

#include <algorithm>
#include <set>

#include "cache/files.hpp"
#include "cache/sqlite/errors.hpp"
#include "cache_fixture.hpp"
#include "tests/no_descriptors.hpp"

namespace leanattn {
namespace {

using namespace cache_test;
using detail::open_read_only;
using detail::open_read_write;
using detail::OpenPolicy;
using detail::Schema;

// A kind of database with a past: version 2 added a column, version 3 a table that is filled from what was there.
constexpr const char* kSteps[] = {
    "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT;",
    "ALTER TABLE notes ADD COLUMN author TEXT NOT NULL DEFAULT 'nobody';",
    "CREATE TABLE authors(name TEXT PRIMARY KEY) STRICT; INSERT INTO authors SELECT DISTINCT author FROM notes;",
};
constexpr const char* kBrokenSteps[] = {
    "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT;",
    "ALTER TABLE notes ADD COLUMN author TEXT NOT NULL DEFAULT 'nobody'; INSERT INTO no_such_table VALUES(1);",
};
constexpr std::uint32_t kId = 0x7E57DB01;

Schema version(std::size_t count) {
  return {.file_name = "notes.db",
          .application_id = kId,
          .migrations = std::span<const char* const>(kSteps).first(count),
          .precious = true};
}

class DatabaseTest : public ::testing::Test {
 protected:
  void make_old(std::size_t count) {
    auto opened = open_read_write(version(count), directory_.path(), policy_);
    ASSERT_TRUE(opened) << opened.error().message;
    opened->database->exec("INSERT INTO notes(text) VALUES('kept')");
  }
  std::filesystem::path file() const { return directory_ / "notes.db"; }

  TemporaryDirectory directory_;
  OpenPolicy policy_{.busy_timeout_ms = 10, .network_filesystem = false, .sqlite_version = sqlite3_libversion_number()};
};

TEST_F(DatabaseTest, BlamesTheLimitWhereDescriptorsHaveRunOut) {
  const auto open_file = [](const std::filesystem::path& name) {
    return detail::guarded(name.string(), [&]() -> Result<void> {
      const SQLite::Database database(name.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
      return {};
    });
  };
  // Members, and an exception, before the sanitizer lacks the pipe with which it looks at their types.
  const std::tuple own(directory_.path(), file(), policy_, version(1));
  ASSERT_FALSE(open_file("/nowhere/notes.db").has_value());
  {
    const auto& [directory, name, policy, schema] = own;
    const NoDescriptors none;
    const auto made = open_read_write(schema, directory, policy);
    ASSERT_FALSE(made.has_value());
    EXPECT_NE(made.error().hint.find("ulimit -n"), std::string::npos) << made.error().message;
    const auto by_sqlite = open_file(name);
    ASSERT_FALSE(by_sqlite.has_value());
    EXPECT_NE(by_sqlite.error().message.find("(Too many open files)"), std::string::npos) << by_sqlite.error().message;
    EXPECT_NE(by_sqlite.error().hint.find("ulimit -n"), std::string::npos) << by_sqlite.error().hint;
  }
  EXPECT_TRUE(open_read_write(version(1), directory_.path(), policy_));
}

TEST_F(DatabaseTest, MigratesFromEveryOlderVersionAndKeepsTheRows) {
  for (const std::size_t old : {1u, 2u}) {
    SCOPED_TRACE(old);
    std::filesystem::remove(file());
    make_old(old);
    {
      auto opened = open_read_write(version(3), directory_.path(), policy_);
      ASSERT_TRUE(opened) << opened.error().message;
      EXPECT_TRUE(opened->put_aside.empty());
      EXPECT_EQ(opened->database->execAndGet("SELECT text || author FROM notes").getString(), "keptnobody");
      EXPECT_EQ(opened->database->execAndGet("SELECT name FROM authors").getString(), "nobody");
    }
    EXPECT_EQ(RawDatabase(file()).ask("PRAGMA user_version"), "3");
    EXPECT_TRUE(open_read_write(version(3), directory_.path(), policy_)) << "and opens again as it is";
  }
}

TEST_F(DatabaseTest, MigratesAMarkedOrBlankDatabaseOfVersionZero) {
  for (const char* mark : {"PRAGMA application_id = 2119686913", "VACUUM"}) {
    std::filesystem::remove(file());
    RawDatabase(file()).exec(mark);
    auto opened = open_read_write(version(3), directory_.path(), policy_);
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_TRUE(opened->put_aside.empty()) << opened->damage;
    EXPECT_EQ(opened->database->execAndGet("PRAGMA user_version").getInt(), 3);
  }
}

TEST_F(DatabaseTest, ReadsAnOlderVersionWithoutTouchingIt) {
  make_old(1);
  const auto before = read_bytes(file());
  auto database = open_read_only(version(3), file(), policy_);
  ASSERT_TRUE(database) << database.error().message;
  EXPECT_EQ((*database)->execAndGet("SELECT text || author FROM notes").getString(), "keptnobody");
  EXPECT_EQ(read_bytes(file()), before);
}

TEST_F(DatabaseTest, RefusesANewerVersionAndLeavesEveryByte) {
  make_old(3);
  const auto before = read_bytes(file());
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto opened = open_read_write(version(2), directory_.path(), policy_);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::database_newer);
    EXPECT_NE(opened.error().message.find("its version is 3, this one knows up to 2"), std::string::npos)
        << opened.error().message;
    EXPECT_EQ(open_read_only(version(2), file(), policy_).error().code, ErrorCode::database_newer);
  }
  EXPECT_EQ(read_bytes(file()), before);
  EXPECT_EQ(files_with_prefix(directory_.path(), "").size(), 1u);
}

TEST_F(DatabaseTest, UndoesAMigrationThatFailsAndLeavesTheFile) {
  make_old(1);
  const Schema broken{.file_name = "notes.db", .application_id = kId, .migrations = kBrokenSteps};
  EXPECT_FALSE(open_read_write(broken, directory_.path(), policy_));
  EXPECT_EQ(files_with_prefix(directory_.path(), "").size(), 1u) << "the mistake is ours and not the file's";
  RawDatabase raw(file());
  EXPECT_EQ(raw.ask("PRAGMA user_version"), "1");
  EXPECT_EQ(raw.ask("SELECT text FROM notes"), "kept");
}

TEST_F(DatabaseTest, PutsAsideWhatIsNotOurs) {
  RawDatabase(file()).exec("CREATE TABLE theirs(x); INSERT INTO theirs VALUES(42)");
  const auto before = read_bytes(file());
  auto opened = open_read_write(version(3), directory_.path(), policy_);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_NE(opened->damage.find("it is not a leanattn notes.db"), std::string::npos) << opened->damage;
  EXPECT_EQ(read_bytes(opened->put_aside), before) << "what was there is still there, under another name";
}

TEST_F(DatabaseTest, PutsAsideADatabaseWithTablesOrTriggersOfAnotherHand) {
  for (const char* change :
       {"DROP TABLE authors", "ALTER TABLE notes ADD COLUMN more TEXT",
        "CREATE TRIGGER t AFTER INSERT ON notes BEGIN DELETE FROM notes; END", "CREATE VIEW v AS SELECT 1"}) {
    std::filesystem::remove(file());
    make_old(3);
    RawDatabase(file()).exec(change);
    auto opened = open_read_write(version(3), directory_.path(), policy_);
    ASSERT_TRUE(opened) << change;
    EXPECT_NE(opened->damage.find("its tables are not those of version 3"), std::string::npos) << opened->damage;
  }
}

TEST_F(DatabaseTest, KeepsADamagedFileAsideWithItsJournalsAndOverwritesNothing) {
  std::set<std::filesystem::path> names;
  for (int round = 0; round < 3; ++round) {
    const std::vector<char> contents{'0', static_cast<char>('0' + round)};
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) write_bytes(file().string() + suffix, contents);
    const auto aside = detail::keep_aside(file());
    ASSERT_TRUE(aside) << aside.error().message;
    EXPECT_TRUE(names.insert(*aside).second);
    EXPECT_EQ(detail::keep_aside(file()).value(), *aside) << "once more, as after a kill, changes nothing";
    EXPECT_EQ(read_bytes(file()), contents) << "it keeps its own name until another file takes it";
    std::filesystem::remove(file());
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
      EXPECT_FALSE(std::filesystem::exists(file().string() + suffix))
          << "a journal left behind would be played into the next database";
      EXPECT_EQ(read_bytes(aside->string() + suffix), contents);
    }
  }
}

TEST_F(DatabaseTest, ClearsAwayWhatAnInterruptedCreationLeft) {
  write_bytes(directory_ / "notes.db.new", {'h', 'a', 'l', 'f'});
  write_bytes(directory_ / "notes.db.new-journal", {'j'});
  EXPECT_TRUE(open_read_write(version(3), directory_.path(), policy_));
  EXPECT_EQ(files_with_prefix(directory_.path(), "").size(), 1u);
}

TEST_F(DatabaseTest, RefusesFilesThatOthersCouldControl) {
  const auto expect_refused = [&](const std::string& words) {
    const auto opened = open_read_write(version(3), directory_.path(), policy_);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::cache_unavailable);
    EXPECT_NE(opened.error().message.find(words), std::string::npos) << opened.error().message;
    std::filesystem::remove(file());
  };
  TemporaryDirectory elsewhere;
  std::filesystem::create_symlink(elsewhere / "target.db", file());
  expect_refused("symbolic link");
  EXPECT_FALSE(std::filesystem::exists(elsewhere / "target.db"));
  std::filesystem::create_directory(file());
  expect_refused("not a regular file");
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  expect_refused("not a regular file");
  make_old(3);
  ::chmod(file().c_str(), 0666);
  expect_refused("writable by others (mode 0666)");
  if (::geteuid() == 0) {
    make_old(3);
    ASSERT_EQ(::chown(file().c_str(), 65534, 65534), 0);
    expect_refused("belongs to another user");
  }
}

TEST_F(DatabaseTest, StaysAwayFromNetworkFileSystems) {
  policy_.network_filesystem = true;
  const auto opened = open_read_write(version(3), directory_.path(), policy_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::cache_unavailable);
  EXPECT_NE(opened.error().message.find("network file system"), std::string::npos);
  EXPECT_TRUE(files_with_prefix(directory_.path(), "").empty());
}

TEST_F(DatabaseTest, UsesWalOnlyWithASoundSqliteOnALocalDisk) {
  EXPECT_FALSE(detail::may_use_wal({.sqlite_version = 3040001}));
  EXPECT_FALSE(detail::may_use_wal({.sqlite_version = 3051002}));
  EXPECT_TRUE(detail::may_use_wal({.sqlite_version = 3051003}));
  EXPECT_FALSE(detail::may_use_wal({.network_filesystem = true, .sqlite_version = 3051003}));
  for (const auto& [sqlite_version, journal] : {std::pair{3051003, "wal"}, {3040001, "delete"}, {3051003, "wal"}}) {
    policy_.sqlite_version = sqlite_version;
    auto opened = open_read_write(version(3), directory_.path(), policy_);
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->database->execAndGet("PRAGMA journal_mode").getString(), journal);
    EXPECT_EQ(opened->database->execAndGet("PRAGMA synchronous").getInt(), 3);
    opened->database->exec("INSERT INTO notes(text) VALUES('x')");
  }
  auto reader = open_read_only(version(3), file(), policy_);
  ASSERT_TRUE(reader);
  EXPECT_EQ((*reader)->execAndGet("SELECT count(*) FROM notes").getInt(), 3);
}

TEST_F(DatabaseTest, IsHardened) {
  auto opened = open_read_write(version(3), directory_.path(), policy_);
  ASSERT_TRUE(opened);
  SQLite::Database& database = *opened->database;
  EXPECT_EQ(database.execAndGet("PRAGMA trusted_schema").getInt(), 0);
  EXPECT_EQ(database.execAndGet("PRAGMA foreign_keys").getInt(), 1);
  EXPECT_EQ(database.execAndGet("PRAGMA cell_size_check").getInt(), 1);
  database.exec("PRAGMA writable_schema = ON");
  EXPECT_NE(database.tryExec("DELETE FROM sqlite_schema"), SQLITE_OK) << "defensive mode keeps SQL off the schema";
}

TEST_F(DatabaseTest, ReadsAWalDatabaseFromAReadOnlyDirectory) {
  policy_.sqlite_version = 3051003;
  ASSERT_TRUE(open_read_write(version(3), directory_.path(), policy_));
  give_to_unprivileged(directory_.path());
  ::chmod(file().c_str(), 0444);
  ::chmod(directory_.path().c_str(), 0555);
  EXPECT_EQ(run_unprivileged([&] { return open_read_only(version(3), file(), policy_) ? 0 : 1; }), 0);
}

TEST_F(DatabaseTest, TellsABusyDatabaseFromADamagedOne) {
  make_old(3);
  RawDatabase other(file());
  other.exec("BEGIN EXCLUSIVE");
  EXPECT_EQ(open_read_write(version(3), directory_.path(), policy_).error().code, ErrorCode::database_busy);
  EXPECT_EQ(open_read_only(version(3), file(), policy_).error().code, ErrorCode::database_busy);
  other.exec("ROLLBACK");
  EXPECT_TRUE(open_read_write(version(3), directory_.path(), policy_));
}

}  // namespace
}  // namespace leanattn
