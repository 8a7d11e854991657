// console_test.cpp -- errors end the program with the exit codes that docs/command-line.md lists.
#include "cli/console/console.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

TEST(ExitCodes, AreTheDocumentedOnes) {
  EXPECT_EQ(exit_code(ErrorCode::ok), 0);
  EXPECT_EQ(exit_code(ErrorCode::invalid_argument), 2);
  EXPECT_EQ(exit_code(ErrorCode::unsupported), 2);
  EXPECT_EQ(exit_code(ErrorCode::no_driver), 3);
  EXPECT_EQ(exit_code(ErrorCode::driver_too_old), 3);
  EXPECT_EQ(exit_code(ErrorCode::nvrtc_missing), 3);
  EXPECT_EQ(exit_code(ErrorCode::not_found), 4);
  EXPECT_EQ(exit_code(ErrorCode::wrong_result), 5);
  EXPECT_EQ(exit_code(ErrorCode::database_newer), 6);
  EXPECT_EQ(exit_code(ErrorCode::cache_unavailable), 6);
  EXPECT_EQ(exit_code(ErrorCode::interrupted), 130);
  EXPECT_EQ(exit_code(ErrorCode::context_lost), 1);
  EXPECT_EQ(exit_code(ErrorCode::workspace_corrupt), 1);
}

}  // namespace
}  // namespace leanattn
