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

}  // namespace
}  // namespace leanattn
