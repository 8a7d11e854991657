// nccl_test.cpp -- where NCCL is searched, and what is refused.
#include "runtime/cuda/nccl.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/no_descriptors.hpp"
#include "tests/temporary_directory.hpp"

namespace leanattn {
namespace {

/// LEANATTN_NCCL_LIB for the lifetime of this object.
class NamedNccl {
 public:
  explicit NamedNccl(const std::string& file) { setenv("LEANATTN_NCCL_LIB", file.c_str(), 1); }
  ~NamedNccl() { unsetenv("LEANATTN_NCCL_LIB"); }
  NamedNccl(const NamedNccl&) = delete;
  NamedNccl& operator=(const NamedNccl&) = delete;
};

TEST(NcclSearch, ANamedFileIsTheOnlyCandidate) {
  const NamedNccl named("/some/libnccl.so");
  EXPECT_EQ(nccl_candidates("/site"), std::vector<std::string>{"/some/libnccl.so"});
}

TEST(NcclSearch, WhatTheLoaderKnowsComesBeforeTheWheelBesideOurs) {
  const TemporaryDirectory site;
  const auto folder = site.path() / "nvidia/nccl/lib";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libnccl.so.2") << "not a library";
  const auto found = nccl_candidates(site.path());
  ASSERT_GE(found.size(), 2u);
  EXPECT_EQ(found[0], "libnccl.so.2");
  EXPECT_EQ(found[1], (folder / "libnccl.so.2").string());
}

TEST(NcclSearch, NoLibraryIsAnErrorWithTheCure) {
  const std::vector<std::string> none{"/nowhere/libnccl.so.2"};
  const auto opened = open_nccl(none);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::unsupported);
  EXPECT_EQ(opened.error().message, "NCCL's library libnccl.so.2 cannot be loaded");
  EXPECT_NE(opened.error().hint.find("nvidia-nccl-cu13"), std::string::npos) << opened.error().hint;
  EXPECT_NE(opened.error().log.find("/nowhere/libnccl.so.2"), std::string::npos) << opened.error().log;
  const NamedNccl named(none[0]);
  EXPECT_EQ(open_nccl(none).error().message, "LEANATTN_NCCL_LIB names /nowhere/libnccl.so.2, which cannot be loaded");
}

TEST(NcclSearch, ALibraryIsNotToBlameWhereDescriptorsHaveRunOut) {
  // A path, because glibc that cannot open ld.so.cache once does not look there again.
  const std::vector<std::string> candidates{"/nowhere/libnccl.so.2"};
  const NoDescriptors none;
  const auto opened = open_nccl(candidates);
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("(Too many open files)"), std::string::npos) << opened.error().message;
  EXPECT_NE(opened.error().hint.find("ulimit -n"), std::string::npos) << opened.error().hint;
}

TEST(NcclSearch, AnOldLibraryIsRefusedByItsVersion) {
  const std::vector<std::string> old{OLD_NCCL};
  const auto opened = open_nccl(old);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::unsupported);
  EXPECT_NE(opened.error().message.find("is NCCL 2.12.0, and groups need 2.14.0 or newer"), std::string::npos)
      << opened.error().message;
}

TEST(NcclSearch, ALibraryThatIsNoneNamesWhatItLacks) {
  const std::vector<std::string> other{"libm.so.6"};
  const auto opened = open_nccl(other);
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("libm.so.6 lacks entry points: ncclGetVersion ncclGetErrorString"),
            std::string::npos)
      << opened.error().message;
}

}  // namespace
}  // namespace leanattn
