// progress_line_test.cpp -- a line of progress has everything that is known of the work.
#include "cli/commands/progress_line.hpp"

#include <gtest/gtest.h>

#include <string>

namespace leanattn {
namespace {

TEST(ProgressLine, SaysShapePhaseCandidateBestAndEta) {
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

}  // namespace
}  // namespace leanattn
