// Files that are read and replaced whole.
#include "cache/files.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

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

TEST(ReplaceFile, TellsAFullDiskFromAWrongName) {
  EXPECT_EQ(detail::replace_file("/dev/full", "text").error().code, ErrorCode::internal);
  const TemporaryDirectory folder;
  EXPECT_EQ(detail::replace_file(folder.path(), "text").error().code, ErrorCode::invalid_argument);
}

TEST(ReplaceFile, SaysWhenItCannot) {
  const TemporaryDirectory directory;
  const auto written = detail::replace_file(directory / "not" / "there", "text");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::invalid_argument);
  const auto full = detail::replace_file("/dev/full", "text");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::internal) << "whoever named the file cannot help a full disk";
}

TEST(ReadFile, GivesWholeFilesUpToTheBound) {
  const TemporaryDirectory directory;
  const std::string text(std::size_t{1} << 20, 'x');
  std::ofstream(directory / "file") << text;
  EXPECT_EQ(detail::read_file(directory / "file", text.size()).value_or("none"), text);
  const auto larger = detail::read_file(directory / "file", text.size() - 1);
  ASSERT_FALSE(larger);
  EXPECT_NE(larger.error().message.find("is larger than 0 MiB"), std::string::npos) << larger.error().message;
}

TEST(ReadFile, RefusesWhatIsNoFileAndNamesIt) {
  const TemporaryDirectory directory;
  EXPECT_EQ(detail::read_file(directory / "missing", 8).error().code, ErrorCode::not_found);
  for (const auto& [path, why] : {std::pair(directory.path(), "a directory"), {"/dev/zero", "a device"}}) {
    const auto read = detail::read_file(path, 8);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(read.error().message, path.string() + ": this is " + why + ", not a file");
  }
}

TEST(ReadFile, APipeIsReadToItsEndAndOneThatNobodyWritesToIsEmpty) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(detail::read_file(directory / "pipe", 100).value_or("none"), "");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "text", 4), 4);
  ::close(ends[1]);
  const std::string path = "/proc/self/fd/" + std::to_string(ends[0]);
  EXPECT_EQ(detail::read_file(path, 100).value_or("none"), "text");
  ::close(ends[0]);
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
