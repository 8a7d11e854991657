#include "generator/prune/source_text.hpp"

namespace leanattn {
inline namespace v1 {
namespace prune {

std::size_t closing(std::string_view text, std::size_t at) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    depth += (c == '(' || c == '{' || c == '[') - (c == ')' || c == '}' || c == ']');
    at = token_end(text, at);
    if (depth == 0) return at;
  }
  return at;
}

std::size_t skip_blank(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    if (is_space(text[at])) {
      ++at;
    } else if (text[at] == '#' || (text[at] == '/' && at + 1 < text.size() && text[at + 1] == '/')) {
      at = line_end(text, at);
    } else {
      break;
    }
  }
  return at;
}

bool starts_with_word(std::string_view text, std::size_t at, std::string_view word) {
  return text.substr(at).starts_with(word) && (at == 0 || !in_name(text[at - 1])) &&
         (at + word.size() >= text.size() || !in_name(text[at + word.size()]));
}

std::size_t statement_end(std::string_view text, std::size_t at) {
  at = skip_blank(text, at);
  if (at >= text.size()) return at;
  if (text[at] == '{') return closing(text, at);
  const bool branches = starts_with_word(text, at, "if");
  if (branches || starts_with_word(text, at, "for") || starts_with_word(text, at, "while")) {
    at = statement_end(text, closing(text, text.find('(', at)));
    if (!branches) return at;
    const std::size_t next = skip_blank(text, at);
    return starts_with_word(text, next, "else") ? statement_end(text, next + 4) : at;
  }
  while (at < text.size() && text[at] != ';')
    at = text[at] == '(' || text[at] == '{' || text[at] == '[' ? closing(text, at) : token_end(text, at);
  return std::min(at + 1, text.size());
}

bool ends_with_return(std::string_view text) {
  std::size_t at = skip_blank(text, 0);
  if (at < text.size() && text[at] != '{') return starts_with_word(text, at, "return");
  const std::size_t end = closing(text, at) - 1;
  std::size_t last = end;
  for (at = skip_blank(text, at + 1); at < end; at = skip_blank(text, statement_end(text, at))) last = at;
  return last < end && starts_with_word(text, last, "return");
}

}  // namespace prune
}  // namespace v1
}  // namespace leanattn
