// headline_test.cpp -- what a report says first.
#include "tuner/report/headline.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

ReportedWinner headline_winner(std::int64_t context, double us, double limit_us, double over_default) {
  ReportedWinner made;
  made.shape = {.batch = 1, .max_batch = 0, .longest_context = context, .total_context = 0};
  made.median_us = us, made.read_limit_us = limit_us;
  if (over_default > 0) made.default_config = Rival{.config = {}, .over_winner = {.ratio = over_default}};
  return made;
}

DeviceReport device(std::vector<ReportedWinner> winners) {
  DeviceReport made;
  made.winners = std::move(winners);
  if (!made.winners.empty()) made.problems.push_back({});
  return made;
}

TEST(Headline, SaysShapesAndMediansInWords) {
  const auto text = detail::headline_text(device(
      {headline_winner(1024, 20, 10, 1.5), headline_winner(2048, 12, 10, 1.1), headline_winner(4096, 11, 10, 1.25)}));
  EXPECT_EQ(text,
            "3 shapes of 1 problem are tuned. The median winner takes 1.20 times its read limit. In the median, a "
            "winner is 1.25 times as fast as the default configuration. The furthest from its limit is 1 x 1k "
            "of 32/8 x 128 bf16, with 2.00 times.");
}

TEST(Headline, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(detail::headline_text(device({})), "No shape is tuned.");
  EXPECT_EQ(detail::headline_text(device({headline_winner(1024, 20, 0, 0)})), "1 shape of 1 problem is tuned.");
  EXPECT_EQ(detail::headline_text(device({headline_winner(1024, 20, 10, 1.001)})),
            "1 shape of 1 problem is tuned. The median winner takes 2.00 times its read limit. In the median, a winner "
            "is as fast as the default configuration.");
}

}  // namespace
}  // namespace leanattn
