#include "cache/paths.hpp"

#include "cache_fixture.hpp"
#include "tests/no_descriptors.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

class CacheDirectory : public ::testing::Test {
 protected:
  void expect_refused(const std::optional<std::filesystem::path>& override_path, const std::string& words) {
    const auto directory = cache_directory(override_path);
    ASSERT_FALSE(directory) << *directory;
    EXPECT_EQ(directory.error().code, ErrorCode::cache_unavailable);
    EXPECT_NE(directory.error().message.find(words), std::string::npos) << directory.error().message;
    EXPECT_NE(directory.error().hint, "");
  }

  TemporaryDirectory root_;
  ScopedVariable own_{"LEANATTN_CACHE_DIR", std::nullopt};
  ScopedVariable xdg_{"XDG_CACHE_HOME", std::nullopt};
  ScopedVariable home_{"HOME", std::nullopt};
};

TEST_F(CacheDirectory, IsTheOverrideBeforeAnyVariable) {
  const ScopedVariable own("LEANATTN_CACHE_DIR", root_ / "variable");
  EXPECT_EQ(cache_directory(root_ / "given").value(), root_ / "given");
  EXPECT_FALSE(std::filesystem::exists(root_ / "variable"));
}

TEST_F(CacheDirectory, IsItsOwnVariableBeforeXdgAndHome) {
  const ScopedVariable home("HOME", root_ / "home");
  EXPECT_EQ(cache_directory().value(), root_ / "home/.cache/leanattn");
  const ScopedVariable xdg("XDG_CACHE_HOME", root_ / "xdg");
  EXPECT_EQ(cache_directory().value(), root_ / "xdg/leanattn");
  const ScopedVariable own("LEANATTN_CACHE_DIR", root_ / "own");
  EXPECT_EQ(cache_directory().value(), root_ / "own");
}

TEST_F(CacheDirectory, TreatsEmptyVariablesAsUnset) {
  const ScopedVariable own("LEANATTN_CACHE_DIR", "");
  const ScopedVariable xdg("XDG_CACHE_HOME", "");
  const ScopedVariable home("HOME", root_.path().string());
  EXPECT_EQ(cache_directory().value(), root_ / ".cache/leanattn");
}

TEST_F(CacheDirectory, IsNotToBlameWhereDescriptorsHaveRunOut) {
  const std::filesystem::path given = root_ / "given";
  const NoDescriptors none;
  const auto found = cache_directory(given);
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::cache_unavailable);
  EXPECT_NE(found.error().message.find("(Too many open files)"), std::string::npos) << found.error().message;
  EXPECT_NE(found.error().hint.find("ulimit -n"), std::string::npos) << found.error().hint;
}

TEST_F(CacheDirectory, NeedsAHome) {
  expect_refused(std::nullopt, "no HOME");
  const ScopedVariable home("HOME", "");
  expect_refused(std::nullopt, "no HOME");
}

TEST_F(CacheDirectory, NeverIsARelativePath) {
  expect_refused("cache", "'cache', which is not an absolute path");
  expect_refused("", "not an absolute path");
  for (const char* name : {"HOME", "XDG_CACHE_HOME", "LEANATTN_CACHE_DIR"}) {
    const ScopedVariable variable(name, "some/where");
    expect_refused(std::nullopt, name);
  }
}

TEST_F(CacheDirectory, IsCreatedPrivateWithAllItsParents) {
  const mode_t old = ::umask(0);
  const auto directory = cache_directory(root_ / "a/b/c");
  ::umask(old);
  ASSERT_TRUE(directory);
  for (const char* part : {"a", "a/b", "a/b/c"}) EXPECT_EQ(mode_of(root_ / part), 0700u) << part;
}

TEST_F(CacheDirectory, AcceptsOneThatOthersMayReadButNotWrite) {
  std::filesystem::create_directory(root_ / "shared");
  ::chmod((root_ / "shared").c_str(), 0755);
  EXPECT_TRUE(cache_directory(root_ / "shared"));
  EXPECT_EQ(mode_of(root_ / "shared"), 0755u) << "an existing directory is left as it is";
}

TEST_F(CacheDirectory, RefusesOneThatOthersMayWrite) {
  for (const mode_t mode : {0777u, 0770u, 0702u, 01777u, 0720u}) {
    std::filesystem::create_directory(root_ / "open");
    ::chmod((root_ / "open").c_str(), mode);
    expect_refused(root_ / "open", "writable by others");
  }
}

TEST_F(CacheDirectory, RefusesOneOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  std::filesystem::create_directory(root_ / "theirs");
  ASSERT_EQ(::chown((root_ / "theirs").c_str(), 65534, 65534), 0);
  expect_refused(root_ / "theirs", "belongs to another user (uid 65534");
}

TEST_F(CacheDirectory, IsMadeForItsOwnerWhateverTheUmask) {
  give_to_unprivileged(root_.path());
  EXPECT_EQ(run_unprivileged([&] {
              ::umask(0777);
              const auto made = cache_directory(root_ / "a/b");
              return made && mode_of(*made) == 0700 && mode_of(root_ / "a") == 0700 ? 0 : 1;
            }),
            0);
}

TEST_F(CacheDirectory, OfRootIsReadAndNotWritten) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make one that belongs to root";
  std::filesystem::create_directory(root_ / "image");
  ::chmod(root_.path().c_str(), 0755);
  const auto refused = [&](Access access, const std::string& words) {
    return run_unprivileged([&] {
      const auto directory = cache_directory(root_ / "image", access);
      return !directory && directory.error().message.find(words) != std::string::npos ? 0 : 1;
    });
  };
  ::chmod((root_ / "image").c_str(), 0755);
  EXPECT_EQ(refused(Access::write, "belongs to another user (uid 0"), 0);
  EXPECT_EQ(run_unprivileged([&] {
              const auto directory = cache_directory(root_ / "image", Access::read);
              return directory && *directory == root_ / "image" ? 0 : 1;
            }),
            0);
  ::chmod((root_ / "image").c_str(), 0700);
  EXPECT_EQ(refused(Access::read, "is not readable"), 0);
  ::chmod((root_ / "image").c_str(), 0777);
  EXPECT_EQ(refused(Access::read, "writable by others"), 0);
}

TEST_F(CacheDirectory, OfAnotherUserIsNotEvenRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  std::filesystem::create_directory(root_ / "theirs");
  ASSERT_EQ(::chown((root_ / "theirs").c_str(), 65534, 65534), 0);
  const auto directory = cache_directory(root_ / "theirs", Access::read);
  ASSERT_FALSE(directory);
  EXPECT_NE(directory.error().message.find("belongs to another user (uid 65534"), std::string::npos);
}

TEST_F(CacheDirectory, RefusesAFileInItsPlaceOrOnTheWay) {
  write_bytes(root_ / "file", {'x'});
  expect_refused(root_ / "file", "is not a directory");
  expect_refused(root_ / "file/below", "is not a directory");
  EXPECT_EQ(read_bytes(root_ / "file").size(), 1u);
}

TEST_F(CacheDirectory, RefusesAPlaceWhereNothingCanBeMade) { expect_refused("/proc/leanattn/cache", "cannot create"); }

TEST_F(CacheDirectory, FollowsOwnLinksAndReturnsWhereTheyLead) {
  std::filesystem::create_directory(root_ / "big");
  ::chmod((root_ / "big").c_str(), 0700);
  std::filesystem::create_directory_symlink(root_ / "big", root_ / "link");
  EXPECT_EQ(cache_directory(root_ / "link").value(), root_ / "big");
  EXPECT_EQ(cache_directory(root_ / "link/below").value(), root_ / "big/below");
}

TEST_F(CacheDirectory, ChecksTheTargetOfALink) {
  std::filesystem::create_directory(root_ / "open");
  ::chmod((root_ / "open").c_str(), 0777);
  std::filesystem::create_directory_symlink(root_ / "open", root_ / "link");
  expect_refused(root_ / "link", "writable by others");
}

TEST_F(CacheDirectory, RefusesALinkThatLeadsNowhere) {
  std::filesystem::create_directory_symlink(root_ / "missing", root_ / "link");
  EXPECT_FALSE(cache_directory(root_ / "link"));
  EXPECT_FALSE(std::filesystem::exists(root_ / "missing"));
}

TEST_F(CacheDirectory, RefusesALinkPlantedByAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a link away";
  std::filesystem::create_directory(root_ / "mine");
  ::chmod((root_ / "mine").c_str(), 0700);
  std::filesystem::create_directory_symlink(root_ / "mine", root_ / "planted");
  ASSERT_EQ(::lchown((root_ / "planted").c_str(), 65534, 65534), 0);
  expect_refused(root_ / "planted", "a symbolic link of another user");
  expect_refused(root_ / "planted/below", "a symbolic link of another user");
}

TEST_F(CacheDirectory, RefusesOneThatIsReadOnlyForUs) {
  const auto directory = root_ / "fixed";
  std::filesystem::create_directory(directory);
  give_to_unprivileged(root_.path());
  give_to_unprivileged(directory);
  ::chmod(directory.c_str(), 0500);
  EXPECT_EQ(run_unprivileged([&] {
              const auto refused = cache_directory(directory);
              return !refused && refused.error().message.find("not writable") != std::string::npos ? 0 : 1;
            }),
            0);
  EXPECT_EQ(run_unprivileged([&] {
              const auto refused = cache_directory(directory / "below");
              return !refused && refused.error().message.find("cannot create") != std::string::npos ? 0 : 1;
            }),
            0);
}

TEST_F(CacheDirectory, RefusesNamesThatAreTooLongOrCutShort) {
  expect_refused(root_ / std::string(300, 'x'), "cannot look at");
  expect_refused(std::string("/tmp/a\0b", 8), "zero byte");
}

TEST(NetworkFilesystem, IsNotWhatAPseudoFileSystemOrAMissingPathIs) {
  EXPECT_FALSE(is_network_filesystem("/proc"));
  EXPECT_FALSE(is_network_filesystem("/no/such/directory"));
}

}  // namespace
}  // namespace leanattn
