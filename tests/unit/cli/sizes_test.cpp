// sizes_test.cpp -- numbers and durations of the command line are read exactly or refused.
#include "cli/flags/sizes.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <limits>

namespace leanattn {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(Sizes, SuffixesAreBinaryAndCaseDoesNotMatter) {
  EXPECT_EQ(parse_size("--x", "64k", 1, kMost), 65536);
  EXPECT_EQ(parse_size("--x", "64K", 1, kMost), 65536);
  EXPECT_EQ(parse_size("--x", "1m", 1, kMost), 1 << 20);
  EXPECT_EQ(parse_size("--x", "3g", 1, kMost), 3LL << 30);
  EXPECT_EQ(parse_size("--x", " 7 ", 1, kMost), 7);
}

TEST(Sizes, NonsenseIsRefusedByNameAndValue) {
  for (const char* text : {"", "k", "1kk", "0x10", "1.5k", "1e3", "+", "-", "12 k", "k12", "1_000"}) {
    const auto result = parse_size("--context", text, 1, kMost);
    ASSERT_FALSE(result.has_value()) << text;
    EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(result.error().message.find("--context"), std::string::npos) << result.error().message;
  }
}

TEST(Sizes, ANumberThatDoesNotFitIsRefusedInsteadOfWrapping) {
  for (const char* text :
       {"9223372036854775808", "9007199254740992k", "8589934592g", "-9007199254740993k", "99999999999999999999999"}) {
    EXPECT_FALSE(parse_size("--x", text, std::numeric_limits<std::int64_t>::min(), kMost).has_value()) << text;
  }
  EXPECT_EQ(parse_size("--x", "9223372036854775807", 0, kMost), kMost);
  EXPECT_EQ(parse_size("--x", "8589934591g", 0, kMost), 8589934591LL << 30);
}

TEST(Sizes, LimitsAreInclusive) {
  EXPECT_TRUE(parse_size("--x", "1", 1, 4).has_value());
  EXPECT_TRUE(parse_size("--x", "4", 1, 4).has_value());
  EXPECT_FALSE(parse_size("--x", "0", 1, 4).has_value());
  EXPECT_FALSE(parse_size("--x", "5", 1, 4).has_value());
}

TEST(Sizes, FormattedSizesReadBackExactly) {
  EXPECT_TRUE(rc::check("format_size round-trips", [](std::int64_t value) {
    RC_PRE(value >= 0);
    RC_ASSERT(parse_size("--x", format_size(value), 0, kMost) == value);
  }));
  EXPECT_EQ(format_size(65536), "64k");
  EXPECT_EQ(format_size(1500), "1500");
  EXPECT_EQ(format_size(0), "0");
}

TEST(Sizes, ListsKeepOrderAndLengthListsKeepRepeats) {
  EXPECT_EQ(parse_size_list("--x", "8,1k,8", 1, kMost), (std::vector<std::int64_t>{8, 1024}));
  EXPECT_EQ(parse_length_list("--x", "8,1k,8", 1, kMost), (std::vector<std::int64_t>{8, 1024, 8}));
  EXPECT_EQ(parse_length_list("--x", "3x1k,8,2x0", 0, kMost), (std::vector<std::int64_t>{1024, 1024, 1024, 8, 0, 0}));
  for (const char* wrong : {"0x5", "x5", "3x", "-1x5", "2x3x4", "2000000x1"})
    EXPECT_FALSE(parse_length_list("--x", wrong, 0, kMost)) << wrong;
  EXPECT_FALSE(parse_size_list("--x", "1,", 1, kMost).has_value());
  EXPECT_FALSE(parse_size_list("--x", ",1", 1, kMost).has_value());
  EXPECT_FALSE(parse_size_list("--x", "", 1, kMost).has_value());
}

TEST(Durations, AreReadWithTheirUnitsAndRefusedBeyondTheirLimits) {
  using std::chrono::milliseconds;
  EXPECT_EQ(parse_duration("--budget", "60s"), milliseconds(60000));
  EXPECT_EQ(parse_duration("--budget", "60"), milliseconds(60000));
  EXPECT_EQ(parse_duration("--budget", "1.5m"), milliseconds(90000));
  EXPECT_EQ(parse_duration("--budget", "500ms"), milliseconds(500));
  EXPECT_EQ(parse_duration("--budget", "2h"), milliseconds(7200000));
  for (const char* text : {"", "s", "0", "0s", "-5s", "soon", "1d", "inf", "nan", "1e300h", "169h"}) {
    EXPECT_FALSE(parse_duration("--budget", text).has_value()) << text;
  }
}

TEST(Bytes, AreRoundedForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{60} << 20), "60.0 MiB");
}

}  // namespace
}  // namespace leanattn
