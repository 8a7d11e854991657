// escape_test.cpp -- no text can break out of its place in a report, whatever characters it has.
#include "tuner/report/escape.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

using namespace detail;

TEST(ReportEscapes, MarkupBecomesEntities) {
  EXPECT_EQ(escape_html("<a href=\"x\" b='y'>&amp;"), "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;");
}

TEST(ReportEscapes, WellFormedTextIsKept) {
  for (const char* text : {"", "NVIDIA H200", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x9A\x80", "two\nlines\tand a tab"})
    EXPECT_EQ(clean_text(text), text);
}

TEST(ReportEscapes, BrokenAndForbiddenCharactersAreReplacedOneByOne) {
  const std::string mark = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {
      {"a\xFF\x62", "a" + mark + "b"},                  // not the first byte of a sequence
      {"\xC3", mark},                                   // a sequence that is cut short
      {"\xC3(", mark + "("},                            // a sequence without its second byte
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

TEST(ReportEscapes, SpreadsheetsGetNoFormula) {
  EXPECT_EQ(escape_csv("=1+1"), "\"'=1+1\"");
  EXPECT_EQ(escape_csv("@SUM(A1)"), "\"'@SUM(A1)\"");
  EXPECT_EQ(escape_csv("-2"), "\"'-2\"");
  EXPECT_EQ(escape_csv("a=b"), "a=b");
  EXPECT_EQ(escape_csv("say \"hi\", twice"), "\"say \"\"hi\"\", twice\"");
}

TEST(ReportEscapes, MarkdownCellsStayInTheirCell) {
  EXPECT_EQ(escape_markdown("a|b\nc"), "a\\|b c");
  EXPECT_EQ(escape_markdown("[x](y) `z` <b>"), "\\[x\\](y) \\`z\\` &lt;b&gt;");
}

}  // namespace
}  // namespace leanattn
