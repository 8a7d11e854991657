// Score expressions: what is accepted is printed as source that is accepted again and printed the same, and the source
// holds nothing but the characters of the language.
#include "fuzz.hpp"
#include "generator/score_expression.hpp"

using namespace leanattn;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto source = score_source(fuzz::text_of(data, size));
  if (!source) {
    fuzz::expect(source.error().code == ErrorCode::invalid_argument, "a refusal is an invalid argument");
    return 0;
  }
  fuzz::expect(
      source->find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_ ()+-*/%<>=!&|?:,.") == std::string::npos,
      "the source has the language's characters only");
  // The source may be longer than an expression may be.
  if (source->size() > kMostScoreCharacters) return 0;
  const auto again = score_source(*source);
  fuzz::expect(again && *again == *source, "the source stands for itself");
  return 0;
}
