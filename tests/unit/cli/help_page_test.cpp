// help_page_test.cpp -- help, man page and completions say what a command page says, within their limits.
#include "cli/help/help_page.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <sstream>

#include "cli/help/completion.hpp"
#include "cli/help/man_page.hpp"

namespace leanattn {
namespace {

CommandPage some_program() {
  CommandPage page{.name = "leanattn",
                   .summary = "A program",
                   .arguments = {},
                   .groups = {{"Flags", {{{"--json"}, "", "Print JSON", {}, {}}}}},
                   .commands = {},
                   .examples = {{"Say the version", "leanattn --version"}}};
  page.commands.push_back({.name = "leanattn draw",
                           .summary = "Draw what it's told: [x]",
                           .arguments = {{{"what"}, "what", "What to draw", {}, {}}},
                           .groups = {{"Flags",
                                       {{{"--out", "-o"}, "FILE", "Write to this file", {}, Completes::file},
                                        {{"--colour"}, "red|green", "The colour", {"red", "green"}, {}}}}},
                           .commands = {},
                           .examples = {{"Draw a cat", "leanattn draw cat --colour red"}}});
  return page;
}

TEST(Wrapping, KeepsEveryWordAndItsOrderWithinTheColumns) {
  EXPECT_TRUE(rc::check("any words", [] {
    const auto words = *rc::gen::container<std::vector<std::string>>(
        rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange('a', 'z'))));
    std::string text;
    for (const std::string& word : words) text += word + " ";
    const std::size_t indent = *rc::gen::inRange<std::size_t>(0, 30);
    std::istringstream lines(wrapped(text, 80, indent, indent));
    std::vector<std::string> found;
    std::string line;
    for (bool first = true; std::getline(lines, line); first = false) {
      const std::size_t column = (first ? indent : 0) + line.size();
      std::istringstream in_line(line);
      std::string word;
      std::size_t count = 0;
      while (in_line >> word) found.push_back(word), ++count;
      RC_ASSERT(column <= 80 || count == 1);
    }
    RC_ASSERT(found == words);
  }));
}

TEST(Help, NamesFlagsValuesCommandsAndExamples) {
  const std::string whole = to_help(some_program());
  EXPECT_NE(whole.find("\n  draw                  Draw what it's told: [x]\n"), std::string::npos) << whole;
  EXPECT_NE(whole.find("\n  130 interrupted\n"), std::string::npos);
  const std::string one = to_help(some_program().commands[0]);
  EXPECT_NE(one.find("Usage: leanattn draw what [FLAGS]\n"), std::string::npos) << one;
  EXPECT_NE(one.find("\n  -o, --out FILE        Write to this file\n"), std::string::npos) << one;
  EXPECT_NE(one.find("\n  --colour red|green    The colour\n"), std::string::npos) << one;
  EXPECT_NE(one.find("\n  # Draw a cat\n  leanattn draw cat --colour red\n"), std::string::npos) << one;
}

TEST(ManPage, LeavesNoCharacterToTroff) {
  CommandPage page = some_program();
  page.commands[0].summary = ".so /etc/passwd \\\\n";
  const std::string man = to_man(page, "1.2.3");
  EXPECT_EQ(man.find("\n.so"), std::string::npos) << man;
  EXPECT_NE(man.find("\\&.so /etc/passwd \\e\\en."), std::string::npos) << man;
  EXPECT_NE(man.find("\\fB\\-o\\fR, \\fB\\-\\-out\\fR \\fIFILE\\fR\n"), std::string::npos) << man;
  EXPECT_NE(man.find("leanattn 1.2.3"), std::string::npos);
}

TEST(Completions, QuoteTextsAsTheirShellDoes) {
  const CommandPage page = some_program();
  EXPECT_NE(zsh_completion(page).find("Draw what it'\\''s told\\: \\[x\\]"), std::string::npos) << zsh_completion(page);
  EXPECT_NE(fish_completion(page).find("'Draw what it\\'s told: [x]'"), std::string::npos) << fish_completion(page);
  for (const std::string& script : {bash_completion(page), zsh_completion(page), fish_completion(page)})
    EXPECT_NE(script.find("red green"), std::string::npos) << script;
}

}  // namespace
}  // namespace leanattn
