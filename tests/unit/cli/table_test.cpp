// table_test.cpp -- columns of tables line up.
#include "cli/console/table.hpp"

#include <gtest/gtest.h>

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

TEST(Table, TooWideForATerminalItsLastColumnGoesBelow) {
  const Table table{.headings = {"us", "kernel"}, .rows = {{"1.5", "a_long_name"}}, .right_aligned = "rl"};
  EXPECT_EQ(to_text(table, 16), " us  kernel\n1.5  a_long_name\n");
  EXPECT_EQ(to_text(table, 15), " us\n  kernel\n1.5\n  a_long_name\n");
  EXPECT_EQ(to_text(table, 10), "us      1.5\nkernel  a_long_name\n");
  EXPECT_EQ(to_text(table, 0), to_text(table, 16));
}

TEST(Table, CellsCannotSteerATerminalOrBreakTheirRow) {
  const Table table{.headings = {"name"}, .rows = {{"a\x1b[31m\nb\xC2\x9B"}}, .right_aligned = ""};
  EXPECT_EQ(to_text(table), "name\na\xEF\xBF\xBD[31m b\xEF\xBF\xBD\n");
}

}  // namespace
}  // namespace leanattn
