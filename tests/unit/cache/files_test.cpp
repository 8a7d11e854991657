// Files that are replaced whole.
#include "cache/files.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/temporary_directory.hpp"

namespace leanattn {
namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(ReplaceFile, LeavesTheNewTextAndNothingBesideIt) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory / "out.json";
  ASSERT_TRUE(detail::replace_file(file, "a long first text"));
  std::ifstream reader(file);  // who reads meanwhile keeps the old file
  ASSERT_TRUE(detail::replace_file(file, "second"));
  EXPECT_EQ(text_of(file), "second");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(reader), {}), "a long first text");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

TEST(ReplaceFile, FollowsALinkAndKeepsIt) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(detail::replace_file(directory / "real", "old"));
  std::filesystem::create_symlink("real", directory / "link");
  ASSERT_TRUE(detail::replace_file(directory / "link", "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(directory / "link"));
  EXPECT_EQ(text_of(directory / "real"), "new");
}

TEST(ReplaceFile, WritesToWhatIsNoRegularFile) { EXPECT_TRUE(detail::replace_file("/dev/null", "text")); }

TEST(ReplaceFile, SaysWhenItCannot) {
  const TemporaryDirectory directory;
  const auto written = detail::replace_file(directory / "not" / "there", "text");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::invalid_argument);
}

TEST(LockDirectory, EndsWithItsHolderAlsoIfTheProcessHasForked) {
  const TemporaryDirectory directory;
  pid_t child = 0;
  {
    const auto lock = detail::lock_directory(directory.path(), 0);
    ASSERT_TRUE(lock);
    child = ::fork();
    if (child == 0) {  // has the same description of the directory, and does nothing with it
      ::pause();
      ::_exit(0);
    }
    const auto second = detail::lock_directory(directory.path(), 0);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::database_busy);
  }
  EXPECT_TRUE(detail::lock_directory(directory.path(), 0));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace leanattn
