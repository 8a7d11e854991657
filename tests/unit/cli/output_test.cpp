#include <gtest/gtest.h>

#include "cli/device_flags.hpp"
#include "cli/progress.hpp"
#include "cli/session.hpp"
#include "cli/table.hpp"

namespace leanattn {
namespace {

TEST(Table, ColumnsAlignAndLinesEndWithoutBlanks) {
  const Table table{.headings = {"name", "us"}, .rows = {{"a", "1.5"}, {"longer", "10.5"}}, .right_aligned = "lr"};
  EXPECT_EQ(to_text(table), "name      us\na        1.5\nlonger  10.5\n");
}

TEST(Table, WidthCountsCodePoints) {
  const Table table{.headings = {"x", "y"}, .rows = {{"\xC2\xB5s", "1"}, {"ms", "2"}}, .right_aligned = ""};
  EXPECT_EQ(to_text(table), "x   y\n\xC2\xB5s  1\nms  2\n");
}

TEST(Progress, SaysShapePhaseCandidateBestAndEta) {
  TuneProgress progress;
  progress.shape = {.batch = 4, .max_batch = 0, .longest_context = 65536, .total_context = 0};
  progress.shape_index = 1;
  progress.shape_count = 6;
  progress.phase = "race";
  progress.done = 3;
  progress.total = 40;
  progress.best_us = 125.06;
  progress.eta_s = 12.4;
  progress.candidate = "kernel x";
  EXPECT_EQ(progress_text(progress), "[2/6] batch 4, context 64k  race 3/40  best 125.1 us  ETA 12 s  kernel x");
  progress.device = 3;
  EXPECT_EQ(progress_text(progress).substr(0, 11), "GPU 3 [2/6]");
  progress.best_us = 0;
  EXPECT_EQ(progress_text(progress).find("best"), std::string::npos);
}

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
}

TEST(DeviceFlags, AnArchWithoutSmsIsItsCommonProduct) {
  DeviceFlags flags;
  flags.arch = "sm_90a";
  const auto facts = offline_facts(flags);
  ASSERT_TRUE(facts.has_value()) << facts.error().message;
  EXPECT_EQ(facts->sm_count, 132);
  flags.sms = "78";
  EXPECT_EQ(offline_facts(flags)->sm_count, 78);
  flags.sms = "0";
  EXPECT_FALSE(offline_facts(flags).has_value());
}

}  // namespace
}  // namespace leanattn
