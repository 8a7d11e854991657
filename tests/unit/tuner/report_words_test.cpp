#include "tuner/report_words.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

using namespace detail;

TEST(ReportWords, MarkupBecomesEntities) {
  EXPECT_EQ(escape_html("<a href=\"x\" b='y'>&amp;"), "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;");
}

TEST(ReportWords, WellFormedTextIsKept) {
  for (const char* text : {"", "NVIDIA H200", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x9A\x80", "two\nlines\tand a tab"})
    EXPECT_EQ(clean_text(text), text);
}

TEST(ReportWords, BrokenAndForbiddenCharactersAreReplacedOneByOne) {
  const std::string mark = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {
      {"a\xFF\x62", "a" + mark + "b"},                  // no lead byte
      {"\xC3", mark},                                   // cut short
      {"\xC3(", mark + "("},                            // no continuation
      {"\xC0\xAF", mark + mark},                        // overlong
      {"\xE0\x80\xAF", mark + mark + mark},             // overlong
      {"\xED\xA0\x80", mark + mark + mark},             // a surrogate
      {"\xF4\x90\x80\x80", mark + mark + mark + mark},  // beyond Unicode
      {std::string("a\0b", 3), "a" + mark + "b"},       // forbidden in XML
      {"\x1B[31mred", mark + "[31mred"},                // a terminal's escape
      {"\xE2\x80\xAEgnp.exe", mark + "gnp.exe"},        // right-to-left override
      {"\xEF\xBF\xBE", mark},                           // a non-character
  };
  for (const auto& [text, cleaned] : cases) EXPECT_EQ(clean_text(text), cleaned);
}

TEST(ReportWords, SpreadsheetsGetNoFormula) {
  EXPECT_EQ(escape_csv("=1+1"), "\"'=1+1\"");
  EXPECT_EQ(escape_csv("@SUM(A1)"), "\"'@SUM(A1)\"");
  EXPECT_EQ(escape_csv("-2"), "\"'-2\"");
  EXPECT_EQ(escape_csv("a=b"), "a=b");
  EXPECT_EQ(escape_csv("say \"hi\", twice"), "\"say \"\"hi\"\", twice\"");
}

TEST(ReportWords, MarkdownCellsStayInTheirCell) {
  EXPECT_EQ(escape_markdown("a|b\nc"), "a\\|b c");
  EXPECT_EQ(escape_markdown("[x](y) `z` <b>"), "\\[x\\](y) \\`z\\` &lt;b&gt;");
}

TEST(ReportWords, ShapesAndTimesReadAsPeopleSayThem) {
  EXPECT_EQ(shape_name({.batch = 8, .max_batch = 0, .longest_context = 4096, .total_context = 0}), "8 x 4k");
  EXPECT_EQ(shape_name({.batch = 2, .max_batch = 0, .longest_context = 4096, .total_context = 5000}),
            "2 x up to 4k, 5000 in all");
  EXPECT_EQ(us_name(7.156), "7.16");
  EXPECT_EQ(us_name(36.44), "36.4");
  EXPECT_EQ(us_name(475.4), "475");
  EXPECT_EQ(interval_name({.ratio = 1.5, .low = 0, .high = 0}), "1.50");
  EXPECT_EQ(interval_name({.ratio = 1.5, .low = 1.4, .high = 1.625}), "1.500 (1.400 to 1.625)");
  EXPECT_EQ(ratio_name({}), "-");
}

}  // namespace
}  // namespace leanattn
