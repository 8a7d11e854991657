// suggestions_test.cpp -- a misspelt word leads to the one that was meant, and a strange one to none.
#include "cli/console/suggestions.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <vector>

namespace leanattn {
namespace {

TEST(EditDistance, CountsInsertionsOmissionsReplacementsAndExchanges) {
  EXPECT_EQ(edit_distance("context", "context"), 0u);
  EXPECT_EQ(edit_distance("contxt", "context"), 1u);
  EXPECT_EQ(edit_distance("conntext", "context"), 1u);
  EXPECT_EQ(edit_distance("contezt", "context"), 1u);
  EXPECT_EQ(edit_distance("cnotext", "context"), 1u);
  EXPECT_EQ(edit_distance("CONTEXT", "context"), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
}

TEST(EditDistance, IsSymmetricAndAtMostTheLongerWord) {
  EXPECT_TRUE(rc::check("any words", [](const std::string& a, const std::string& b) {
    RC_ASSERT(edit_distance(a, b) == edit_distance(b, a));
    RC_ASSERT(edit_distance(a, b) <= std::max(a.size(), b.size()));
  }));
}

TEST(Closest, IsTheWordThatWasMeant) {
  const std::vector<std::string> words = {"lookup", "tune", "explain", "evaluate", "--context", "llama-3-8b"};
  EXPECT_EQ(closest("loockup", words), "lookup");
  EXPECT_EQ(closest("exlpain", words), "explain");
  EXPECT_EQ(closest("eval", words), "evaluate");  // which it begins
  EXPECT_EQ(closest("--contxt", words), "--context");
  EXPECT_EQ(closest("Llama3-8b", words), "llama-3-8b");
  EXPECT_EQ(did_you_mean("tun", words), "Did you mean tune? ");
}

TEST(Closest, IsNothingForWordsThatResembleNone) {
  const std::vector<std::string> words = {"lookup", "tune"};
  EXPECT_EQ(closest("frobnicate", words), std::nullopt);
  EXPECT_EQ(closest("", words), std::nullopt);
  EXPECT_EQ(closest(std::string(100000, 'x'), words), std::nullopt);
  EXPECT_EQ(did_you_mean("xyz", words), "");
}

}  // namespace
}  // namespace leanattn
