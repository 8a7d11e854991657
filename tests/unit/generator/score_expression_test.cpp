// Score expressions: what the language accepts and which source it stands for, what is refused and where the message
// points, and that no text reaches the source except through the tree.
#include "generator/score_expression.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace leanattn {
namespace {

struct Accepted {
  const char* text;
  const char* source;
};

const std::vector<Accepted>& accepted() {
  static const std::vector<Accepted> expressions{
      {"score", "score"},
      {"  score*0.5f ", "score * 0.5f"},
      {"score*2e-3f+1.5E+2f", "score * 0.002f + 150.0f"},
      {"score - 0.1f * (q_index - kv_index)", "score - 0.1f * (float)(q_index - kv_index)"},
      {"score + (head % 2 == 0 ? 1.0f : -1.0f)", "score + (head % 2 == 0 ? 1.0f : -1.0f)"},
      {"kv_index % 128 == 0 || q_index - kv_index < 64 ? score : score - 10.f",
       "kv_index % 128 == 0 || q_index - kv_index < 64 ? score : score - 10.0f"},
      {"30.0f * tanhf(score / 30.0f)", "30.0f * tanhf(score / 30.0f)"},
      {"fminf(fmaxf(score, -5), 5)", "fminf(fmaxf(score, (float)-5), (float)5)"},
      {"score + float(min(q_index - kv_index, 128)) * -0.5", "score + (float)min(q_index - kv_index, 128) * -0.5f"},
      {"max(score, head)", "max(score, (float)head)"},
      {"score + (head >= 1)", "score + (float)(head >= 1)"},
      {"!(head != 1) ? score : - score", "!(head != 1) ? score : -score"},
      {"score * (kv_index <= q_index && kv_index >= 0)", "score * (float)(kv_index <= q_index && kv_index >= 0)"},
      {"score + int(0x1F)", "score + (float)31"},
      {"(int)score + .5", "(float)(int)score + 0.5f"},
      {"fmaf(score, 2.f, log1pf(expf(rsqrtf(1.0f))))", "fmaf(score, 2.0f, log1pf(expf(rsqrtf(1.0f))))"},
      {"(((score)))", "score"},
      // The names that mathematics has.
      {"30 * tanh(score / 30)", "(float)30 * tanhf(score / (float)30)"},
      {"exp(log(sqrt(abs(score))))", "expf(logf(sqrtf(fabsf(score))))"},
      {"score - 0.5 * abs(q_index - kv_index)", "score - 0.5f * (float)abs(q_index - kv_index)"},
      {"fmin(pow(score, 2), fma(floor(score), cos(score), fabs(score)))",
       "fminf(powf(score, (float)2), fmaf(floorf(score), cosf(score), fabsf(score)))"},
      {"(float(head))", "(float)head"},
      {"score -  -1.0f", "score - -1.0f"},
      {"-(-score)", "-(-score)"},
      {"- -score", "-(-score)"},
      {"head", "(float)head"},
      {"7 / 2 * score", "(float)(7 / 2) * score"},
      // Parentheses stand where the tree needs them.
      {"(score - 1.0f) - 2.0f", "score - 1.0f - 2.0f"},
      {"score - (1.0f - 2.0f)", "score - (1.0f - 2.0f)"},
      {"score / (2.0f * 3.0f)", "score / (2.0f * 3.0f)"},
      {"(score + 1.0f) * 2.0f", "(score + 1.0f) * 2.0f"},
      {"-(score + 1.0f)", "-(score + 1.0f)"},
      {"(head < 1 ? 1.0f : 2.0f) * score", "(head < 1 ? 1.0f : 2.0f) * score"},
      {"head < 1 ? score : head < 2 ? 1.0f : 2.0f", "head < 1 ? score : head < 2 ? 1.0f : 2.0f"},
      {"(head < 1 ? q_index : kv_index) ? score : 1.0f", "(head < 1 ? q_index : kv_index) ? score : 1.0f"},
      {"head < (q_index < kv_index) ? score : 1.0f", "head < (q_index < kv_index) ? score : 1.0f"},
      {"(head || q_index) && kv_index ? score : 1.0f", "(head || q_index) && kv_index ? score : 1.0f"},
  };
  return expressions;
}

TEST(ScoreExpression, StandsForSourceWithItsMeaning) {
  for (const Accepted& expression : accepted()) {
    const auto source = score_source(expression.text);
    ASSERT_TRUE(source) << expression.text << ": " << source.error().message;
    EXPECT_EQ(*source, expression.source) << expression.text;
    EXPECT_EQ(score_source(*source).value(), *source) << "the source stands for itself";
  }
}

TEST(ScoreExpression, EveryFunctionThatIsNamedIsAccepted) {
  const std::string names = score_functions() + ", ";
  int count = 0;
  for (std::size_t begin = 0, end; (end = names.find(", ", begin)) != std::string::npos; begin = end + 2, ++count) {
    const std::string name = names.substr(begin, end - begin);
    bool taken = false;
    for (const char* arguments : {"(score)", "(score, 1.0f)", "(score, 1.0f, 2.0f)"})
      taken |= score_source(name + arguments).has_value();
    EXPECT_TRUE(taken) << name;
  }
  EXPECT_EQ(count, 26);
}

struct Refused {
  const char* text;
  int character;  ///< that the message names, from 1
  const char* words;
};

TEST(ScoreExpression, EverythingElseIsRefusedWithItsPlace) {
  const Refused refused[] = {
      // What looks like arithmetic but reaches memory or code.
      {"*(float*)(140000000000000+kv_index)", 1, "'*'"},
      {"score + *(int*)0", 9, "'*'"},
      {"(float*)0", 7, "'*'"},
      {"((float(*)(int))0)(head)", 9, "'*'"},
      {"&score", 1, "'&'"},
      {"score & 1", 7, "'&'"},
      {"score<:0:>", 7, "':'"},
      {"<%score%>", 1, "'<'"},
      {"[](int x){return x;}(1)", 1, "'['"},
      {"score, 1", 6, "','"},
      {"expf", 5, "'('"},
      {"expf + 1", 6, "'('"},
      {"(expf)(score)", 6, "'('"},
      {"score(1)", 6, "'('"},
      {"float", 6, "'('"},
      {"(float)", 8, "the end"},
      {"int score", 5, "'score'"},
      {"sizeof(score)", 1, "'sizeof'"},
      {"140000000000000", 1, "larger than an int"},
      {"1e39f", 1, "float"},
      // Nothing, and what is left over.
      {"", 1, "an expression is expected"},
      {"  ", 3, "an expression is expected"},
      {"()", 2, "')'"},
      {"score score", 7, "'score'"},
      {"score; return 0", 6, "';'"},
      {"score }", 7, "'}'"},
      {"score)", 6, "')'"},
      {"(score", 1, "not closed"},
      {"1 ? 2", 6, "':'"},
      {"expf(score, 1.0f)", 13, "takes 1 argument"},
      {"fmaf(score, 1.0f)", 17, "takes 3 arguments"},
      {"fmaf()", 6, "')'"},
      // Names and numbers that are none.
      {"asm(score)", 1, "'asm'"},
      {"__trap()", 1, "'__trap'"},
      {"threadIdx", 1, "'threadIdx'"},
      {"2 * sine(score)", 5, "'sine'"},
      {"score.x", 6, "'.'"},
      {"score[0]", 6, "'['"},
      {"1.2.3", 1, "'1.2.3'"},
      {"0x", 1, "'0x'"},
      {"0x1.8", 1, "'0x1.8'"},
      {"12abc", 1, "'12abc'"},
      {"7u", 1, "'7u'"},
      {"1e", 1, "'1e'"},
      // Operators that change or shift something.
      {"score = 1", 7, "'='"},
      {"score += 1", 8, "'='"},
      {"head >>= 2", 7, "'>'"},
      {"head >> 2", 7, "'>'"},
      {"score % 2.0f", 7, "fmodf"},
      {"score++", 8, "the end"},
      {"--score", 1, "'--'"},
      {"score // comment", 8, "'/'"},
      {"score /* comment */", 8, "'*'"},
      // Characters of no language.
      {"score \n + 1", 7, "0x0a"},
      {"score \xc3\xa9", 7, "0xc3"},
      {"score \\ head", 7, "'\\'"},
      {"#include", 1, "'#'"},
      {"~head", 1, "'~'"},
  };
  for (const Refused& expression : refused) {
    const auto source = score_source(expression.text);
    ASSERT_FALSE(source) << expression.text << " became " << *source;
    const Error& error = source.error();
    EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    EXPECT_NE(error.message.find("at character " + std::to_string(expression.character) + ":"), std::string::npos)
        << error.message;
    EXPECT_NE(error.message.find(expression.words), std::string::npos) << error.message;
    EXPECT_FALSE(error.hint.empty());
  }
}

TEST(ScoreExpression, MessagesShowThePlaceWithACaret) {
  EXPECT_EQ(score_source("score * foo").error().message,
            "the score expression is wrong at character 9: 'foo' is neither a name nor a function of the language\n"
            "  score * foo\n"
            "          ^");
  EXPECT_NE(score_source("a\033[2J").error().message.find("\n  a?[2J\n  ^"), std::string::npos)
      << "control characters are not repeated";
}

TEST(ScoreExpression, FiveHundredAndTwelveCharactersAreTheMost) {
  std::string text = "score";
  while (text.size() + 4 <= kMostScoreCharacters) text += "+1.f";
  text += std::string(kMostScoreCharacters - text.size(), ' ');
  EXPECT_TRUE(score_source(text));
  text += ' ';
  ASSERT_FALSE(score_source(text));
  EXPECT_NE(score_source(text).error().message.find("513"), std::string::npos);
}

TEST(ScoreExpression, DeepNestingIsRead) {
  const std::string open(250, '('), close(250, ')');
  EXPECT_EQ(score_source(open + "score" + close).value(), "score");
  std::string signs;
  for (int i = 0; i < 250; ++i) signs += "- ";
  EXPECT_TRUE(score_source(signs + "score"));
}

/// Tokens of the language strung together: dense in what nearly is an expression.
RC_GTEST_PROP(ScoreExpression, SourceIsAFixedPointAndHasNoCharactersOfItsOwn, ()) {
  const auto tokens = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "score", "q_index", "head", "1.5f", "2", "(", ")", "+", "-", "*", "/", "=", "<", ">", "!", "&", "|", "?", ":",
      ",", " ", "e5", "expf", "min", "(float)", "asm", ".", "0x1f", "%", "{", "[", ";"));
  std::string text;
  for (const std::string& token : tokens) text += token;
  const auto source = score_source(text);
  RC_CLASSIFY(source.has_value());
  if (!source) return;
  RC_ASSERT(source->find_first_of(";{}[]\"'\\#~^@`$\n") == std::string::npos);
  RC_ASSERT(source->find("++") == std::string::npos && source->find("--") == std::string::npos);
  RC_ASSERT(source->find("//") == std::string::npos && source->find("/*") == std::string::npos);
  if (source->size() <= kMostScoreCharacters) RC_ASSERT(score_source(*source).value() == *source);
}

}  // namespace
}  // namespace leanattn
