#include "generator/prune.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::string_view::size_type kEnd = std::string_view::npos;

/// What a character may be part of: 1, the rest of a name; 2, its beginning too; 4, something that has an end of its
/// own.
constexpr std::array<unsigned char, 256> kKinds = [] {
  std::array<unsigned char, 256> kinds{};
  for (int c = 0; c < 26; ++c) kinds['a' + c] = kinds['A' + c] = 3;
  for (int c = '0'; c <= '9'; ++c) kinds[c] = 1;
  kinds['_'] = 3;
  for (const char c : {'"', '\'', '/'}) kinds[c] = 4;
  return kinds;
}();
bool begins_name(char c) { return (kKinds[static_cast<unsigned char>(c)] & 2) != 0; }
bool in_name(char c) { return (kKinds[static_cast<unsigned char>(c)] & 1) != 0; }
bool is_space(char c) { return c == ' ' || c == '\n'; }

/// The end of the name that begins at `at`.
std::size_t name_end(std::string_view text, std::size_t at) {
  while (at < text.size() && in_name(text[at])) ++at;
  return at;
}

std::size_t line_end(std::string_view text, std::size_t at) { return std::min(text.find('\n', at), text.size()); }

/// The end of the comment, literal or single character at `at`: what lies inside a literal is no code.
std::size_t token_end(std::string_view text, std::size_t at) {
  if (kKinds[static_cast<unsigned char>(text[at])] != 4) return at + 1;
  const char quote = text[at];
  if (quote == '/') return at + 1 < text.size() && text[at + 1] == '/' ? line_end(text, at) : at + 1;
  for (++at; at < text.size() && text[at] != quote; ++at) at += text[at] == '\\' ? 1 : 0;
  return std::min(at + 1, text.size());
}

/// Behind the bracket that closes the one at `at`.
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

/// The next character that is neither space, comment nor part of a preprocessor's line.
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

/// The end of the statement that begins at `at`.
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

/// Whether the last statement of the block or single statement `text` is a return.
bool ends_with_return(std::string_view text) {
  std::size_t at = skip_blank(text, 0);
  if (at < text.size() && text[at] != '{') return starts_with_word(text, at, "return");
  const std::size_t end = closing(text, at) - 1;
  std::size_t last = end;
  for (at = skip_blank(text, at + 1); at < end; at = skip_blank(text, statement_end(text, at))) last = at;
  return last < end && starts_with_word(text, last, "return");
}

using Value = std::optional<double>;
using Constants = std::unordered_map<std::string_view, double>;

/// A constant expression, as far as it is known: numbers, names of constants, operators. Divisions are of integers.
class Expression {
 public:
  Expression(std::string_view text, const Constants& constants) : text_(text), constants_(constants) {}

  Value value() {
    const Value result = conditional();
    skip();
    return at_ == text_.size() && !failed_ ? result : Value();
  }

 private:
  void skip() { at_ = skip_blank(text_, at_); }
  bool take(std::string_view token) {
    skip();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  Value conditional() {
    const Value condition = binary(0);
    if (!take("?")) return condition;
    const Value yes = conditional();
    if (!take(":")) return fail();
    const Value no = conditional();
    return !condition ? Value() : *condition != 0 ? yes : no;
  }

  Value binary(std::size_t level) {
    // From what binds least to what binds most; of two that begin alike the longer one first.
    static const std::vector<std::vector<std::string_view>> kLevels{
        {"||"}, {"&&"}, {"==", "!="}, {"<=", ">=", "<", ">"}, {"+", "-"}, {"*", "/", "%"}};
    if (level == kLevels.size()) return unary();
    Value left = binary(level + 1);
    for (;;) {
      skip();
      if (text_.substr(at_).starts_with("<<") || text_.substr(at_).starts_with(">>")) return fail();
      const auto& operators = kLevels[level];
      const auto found = std::find_if(operators.begin(), operators.end(), [&](auto token) { return take(token); });
      if (found == operators.end()) return left;
      left = apply(*found, left, binary(level + 1));
    }
  }

  static Value apply(std::string_view token, Value left, Value right) {
    if (token == "||" && ((left && *left != 0) || (right && *right != 0))) return 1;
    if (token == "&&" && ((left && *left == 0) || (right && *right == 0))) return 0;
    if (!left || !right) return {};
    const double a = *left, b = *right;
    if (token == "||" || token == "&&") return token == "&&";
    if (token == "==") return a == b;
    if (token == "!=") return a != b;
    if (token == "<=") return a <= b;
    if (token == ">=") return a >= b;
    if (token == "<") return a < b;
    if (token == ">") return a > b;
    if (token == "+") return a + b;
    if (token == "-") return a - b;
    if (token == "*") return a * b;
    const auto n = static_cast<long long>(a), d = static_cast<long long>(b);
    if (d == 0 || static_cast<double>(n) != a || static_cast<double>(d) != b) return {};
    return static_cast<double>(token == "/" ? n / d : n % d);
  }

  Value unary() {
    if (take("!")) {
      const Value x = unary();
      return x ? Value(*x == 0) : x;
    }
    if (take("-")) {
      const Value x = unary();
      return x ? Value(-*x) : x;
    }
    if (take("(")) {
      const Value x = conditional();
      return take(")") ? x : fail();
    }
    if (at_ >= text_.size()) return fail();
    const std::size_t begin = at_;
    if (!in_name(text_[at_])) return fail();
    if (!begins_name(text_[at_])) {
      while (at_ < text_.size() && (in_name(text_[at_]) || text_[at_] == '.')) ++at_;
      const std::string_view digits = text_.substr(begin, at_ - begin);
      if (digits.starts_with("0x")) return {};
      double x = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), x);
      return x;
    }
    at_ = name_end(text_, at_);
    const std::string_view name = text_.substr(begin, at_ - begin);
    skip();
    if (at_ < text_.size() && text_[at_] == '(') {
      at_ = closing(text_, at_);
      return {};
    }
    if (name == "true" || name == "false") return name == "true";
    const auto found = constants_.find(name);
    return found == constants_.end() ? Value() : found->second;
  }

  Value fail() {
    text_ = {}, at_ = 0, failed_ = true;
    return {};
  }

  std::string_view text_;
  const Constants& constants_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

/// Copies a source, answering its questions on the way.
class Resolver {
 public:
  explicit Resolver(std::string_view source) : text_(source) {}

  std::string result() {
    copy(0, text_.size());
    return std::move(out_);
  }

 private:
  void copy(std::size_t at, std::size_t end) {
    std::size_t from = at;  // what was seen from here on is still to be copied
    while (at < end) {
      const char c = text_[at];
      if (!begins_name(c)) {
        depth_ += (c == '{') - (c == '}');
        at = token_end(text_, at);
        continue;
      }
      const std::size_t next = name_end(text_, at);
      const std::string_view word = text_.substr(at, next - at);
      if (word == "if" && (text_.substr(next).starts_with(" constexpr") || condition_of(at))) {
        out_.append(text_.substr(from, at - from));
        from = at = std::min(resolve(at, end), end);
        continue;
      }
      if (word == "constexpr" && !text_.substr(0, at).ends_with("if ")) learn(at);
      if (word == "enum") learn_enumerators(at);
      if (word == "template") forget_parameters(at);
      at = next;
    }
    out_.append(text_.substr(from, end - from));
  }

  /// The constants of the declaration at `at`. Those of functions may mean something else than a constant of the same
  /// name elsewhere: such a name is known no more.
  void learn(std::size_t at) {
    const std::size_t end = statement_end(text_, at);
    const std::string_view declaration = text_.substr(at, end - at);
    std::size_t equals = declaration.find('=');
    if (equals == kEnd || declaration.find('(') < equals) return;  // a function
    std::size_t begin = 0;
    while (equals != kEnd) {
      std::size_t last = equals;
      while (last > begin && is_space(declaration[last - 1])) --last;
      std::size_t first = last;
      while (first > begin && in_name(declaration[first - 1])) --first;
      const std::string_view name = declaration.substr(first, last - first);
      std::size_t stop = equals + 1;
      while (declaration[stop] != ',' && declaration[stop] != ';')
        stop = declaration[stop] == '(' || declaration[stop] == '{' ? closing(declaration, stop)
                                                                    : token_end(declaration, stop);
      const Value value = Expression(declaration.substr(equals + 1, stop - equals - 1), constants_).value();
      if (constants_.erase(name) == 0 && depth_ == 0 && value) constants_[name] = *value;
      begin = stop + 1;
      equals = begin < declaration.size() ? declaration.find('=', begin) : kEnd;
    }
  }

  void learn_enumerators(std::size_t at) {
    const std::size_t open = text_.find('{', at);
    if (depth_ > 0 || open == kEnd || open > text_.find(';', at)) return;
    double value = 0;
    for (std::size_t i = open + 1; i < text_.size() && text_[i] != '}';) {
      i = skip_blank(text_, i);
      const std::size_t end = name_end(text_, i), stop = text_.find_first_of(",}", end);
      const std::string_view given = text_.substr(end, stop - end);
      if (const auto equals = given.find('='); equals != kEnd)
        value = Expression(given.substr(equals + 1), constants_).value().value_or(value);
      constants_[text_.substr(i, end - i)] = value++;
      i = text_[stop] == ',' ? stop + 1 : stop;
    }
  }

  void forget_parameters(std::size_t at) {
    const std::size_t end = line_end(text_, at);
    for (std::size_t i = at; i < end;) {
      const std::size_t next = begins_name(text_[i]) ? name_end(text_, i) : i + 1;
      constants_.erase(text_.substr(i, next - i));
      i = next;
    }
  }

  Value condition_of(std::size_t at) const {
    const std::size_t open = text_.find('(', at);
    return Expression(text_.substr(open + 1, closing(text_, open) - open - 2), constants_).value();
  }

  /// The `if` at `at`, inside what ends at `end`; returns where to go on.
  std::size_t resolve(std::size_t at, std::size_t end) {
    const std::size_t open = text_.find('(', at), behind = closing(text_, open);
    const std::size_t yes = skip_blank(text_, behind), yes_end = statement_end(text_, behind);
    const std::size_t otherwise = skip_blank(text_, yes_end);
    const bool has_no = otherwise < end && starts_with_word(text_, otherwise, "else");
    const std::size_t no = has_no ? skip_blank(text_, otherwise + 4) : yes_end;
    const std::size_t no_end = has_no ? statement_end(text_, otherwise + 4) : yes_end;
    const Value condition = condition_of(at);
    if (!condition) {
      out_.append(text_.substr(at, yes - at));
      copy(yes, yes_end);
      if (has_no) {
        out_.append(text_.substr(yes_end, no - yes_end));
        copy(no, no_end);
      }
      return no_end;
    }
    const bool in_block = stands_in_block();
    if (*condition == 0 && !has_no) return remove(no_end, in_block);
    const std::size_t begin = *condition != 0 ? yes : no, stop = *condition != 0 ? yes_end : no_end;
    place(at, begin, stop, in_block);
    // Nothing behind a return is reached.
    if (in_block && ends_with_return(text_.substr(begin, stop - begin))) return end_of_block(no_end, end);
    return no_end;
  }

  /// Whether a statement at the end of what was copied is one of a block, not all that follows a `for (...)` or `else`.
  bool stands_in_block() const {
    std::size_t line = out_.size();
    for (;;) {
      // The last line that holds more than space, a comment or a directive.
      const std::size_t begin = line == 0 ? 0 : out_.rfind('\n', line - 1) + 1;
      std::string_view code = std::string_view(out_).substr(begin, line - begin);
      if (const auto comment = code.find("//"); comment != kEnd) code = code.substr(0, comment);
      const auto last = code.find_last_not_of(" \n");
      if (last == kEnd || code[code.find_first_not_of(' ')] == '#') {
        if (begin == 0) return true;
        line = begin - 1;
        continue;
      }
      return code[last] == '{' || code[last] == '}' || code[last] == ';' || code[last] == ':';
    }
  }

  /// Puts the statement [begin, stop) where an `if constexpr` stood at `at`: without the braces of a block, and as far
  /// to the left as the `if` was.
  void place(std::size_t at, std::size_t begin, std::size_t stop, bool in_block) {
    const std::size_t outer = indent_of(at);
    if (text_[begin] == '{' && in_block) {
      begin = skip_space(begin + 1), --stop;
      while (stop > begin && is_space(text_[stop - 1])) --stop;
    }
    const std::size_t inner = indent_of(begin);
    std::string around;
    if (in_block) around.swap(out_);
    copy(begin, stop);
    if (!in_block) return;
    around.swap(out_);  // `around` is now what was copied
    const std::size_t first = around.find_first_not_of(" \n"), last = around.find_last_not_of(" \n");
    if (first == kEnd) return;
    around = around.substr(first, last + 1 - first);
    for (std::size_t line = around.find('\n'); line != kEnd && inner > outer; line = around.find('\n', line + 1)) {
      const std::size_t spaces = std::min(around.find_first_not_of(' ', line + 1), around.size()) - line - 1;
      around.erase(line + 1, std::min(spaces, inner - outer));
    }
    out_.append(around);
  }
  std::size_t skip_space(std::size_t at) const {
    while (at < text_.size() && is_space(text_[at])) ++at;
    return at;
  }
  /// Of the line that holds `at`.
  std::size_t indent_of(std::size_t at) const {
    const std::size_t begin = at == 0 ? 0 : text_.rfind('\n', at - 1) + 1;
    return text_.find_first_not_of(' ', begin) - begin;
  }

  /// Leaves out the statement that ends at `stop`, with its line and the comments above it.
  std::size_t remove(std::size_t stop, bool in_block) {
    if (!in_block) {
      out_.append("{}");
      return stop;
    }
    const auto begins_line = [&] {
      return out_.find_last_not_of(' ') == kEnd || out_[out_.find_last_not_of(' ')] == '\n';
    };
    if (!begins_line()) return stop;
    out_.erase(out_.find_last_not_of(' ') + 1);
    for (;;) {
      const std::size_t line = out_.size() < 2 ? 0 : out_.rfind('\n', out_.size() - 2) + 1;
      const std::size_t first = out_.find_first_not_of(' ', line);
      if (first == kEnd || !std::string_view(out_).substr(first).starts_with("//")) break;
      out_.erase(line);
    }
    const std::size_t next = text_.find_first_not_of(' ', stop);
    return next < text_.size() && (text_[next] == '\n' || text_.substr(next).starts_with("//"))
               ? std::min(line_end(text_, next) + 1, text_.size())
               : stop;
  }

  /// The brace that closes the block around `at`.
  std::size_t end_of_block(std::size_t at, std::size_t end) {
    int depth = 0;
    while (at < end) {
      depth += (text_[at] == '{') - (text_[at] == '}');
      if (depth < 0) break;
      at = token_end(text_, at);
    }
    if (!out_.empty() && out_.back() != '\n' && at < end) {
      const std::size_t line = text_.rfind('\n', at) + 1;
      out_.push_back('\n');
      at = std::max(line, text_.find_first_not_of(' ', line) == at ? line : at);
    }
    return at;
  }

  std::string_view text_;
  std::string out_;
  Constants constants_;
  int depth_ = 0;
};

/// The lines of `source` whose `#if` holds, where `constants` and earlier `#define`s decide that. What they do not
/// decide is left as it is.
std::string resolve_directives(std::string_view source, Constants constants) {
  enum class State { taken, skipped, done, unknown };
  std::vector<State> open;
  std::string out;
  const auto skips = [&] {
    return std::any_of(open.begin(), open.end(), [](State s) { return s == State::skipped || s == State::done; });
  };
  const auto condition = [&](std::string_view text) {
    // defined(NAME) is 1 for names that are known, and unknown for others.
    std::string plain(text);
    for (std::size_t at = plain.find("defined("); at != kEnd; at = plain.find("defined(", at)) {
      const std::size_t end = plain.find(')', at);
      const bool known = constants.contains(std::string_view(plain).substr(at + 8, end - at - 8));
      plain.replace(at, end + 1 - at, 1, known ? '1' : '0');
    }
    return Expression(plain, constants).value();
  };
  for (std::size_t at = 0; at < source.size();) {
    const std::size_t end = line_end(source, at);
    const std::string_view line = source.substr(at, end - at);
    const bool is_if = line.starts_with("#if "), is_elif = line.starts_with("#elif ");
    const bool is_else = line.starts_with("#else"), is_endif = line.starts_with("#endif");
    bool copies = !skips();
    if (is_if) {
      const Value value = condition(line.substr(4));
      open.push_back(!value ? State::unknown : *value != 0 ? State::taken : State::skipped);
      copies = copies && !value;
    } else if ((is_elif || is_else) && !open.empty() && open.back() != State::unknown) {
      copies = false;
      if (open.back() != State::skipped) {
        open.back() = State::done;
      } else if (is_else || condition(line.substr(6)).value_or(1) != 0) {
        open.back() = State::taken;
      }
    } else if (is_endif && !open.empty()) {
      copies = open.back() == State::unknown;
      open.pop_back();
      copies = copies && !skips();
    } else if (copies && line.starts_with("#define ")) {
      constants.try_emplace(line.substr(8, name_end(line, 8) - 8), 1);
    }
    if (copies) out.append(source.substr(at, end + 1 - at));
    at = end + 1;
  }
  return out;
}

/// A declaration of namespace scope with the comments right above it, or a directive.
struct Item {
  std::string_view text;
  std::vector<std::string_view> declares, uses;
  bool is_root = false, is_check = false, opens_module = false;
  bool kept = false;
};

/// The names that the declaration `code`, which begins with no comment, declares.
std::vector<std::string_view> declared_names(std::string_view code) {
  std::vector<std::string_view> names;
  const auto name_at = [&](std::size_t at) {
    at = skip_blank(code, at);
    return code.substr(at, name_end(code, at) - at);
  };
  const auto name_before = [&](std::size_t at) {
    while (at > 0 && is_space(code[at - 1])) --at;
    std::size_t begin = at;
    while (begin > 0 && in_name(code[begin - 1])) --begin;
    return code.substr(begin, at - begin);
  };
  if (code.starts_with('#')) {
    for (std::size_t at = code.find("#define "); at != kEnd; at = code.find("#define ", at + 1))
      names.push_back(name_at(at + 8));
    return names;
  }
  if (code.starts_with("typedef")) return {name_before(code.rfind(';'))};
  if (code.starts_with("enum")) {
    const std::size_t open = code.find('{');
    if (const auto own = name_at(4); !own.empty()) names.push_back(own);
    for (std::size_t at = open + 1; at < code.size() && code[at] != '}';) {
      names.push_back(name_at(at));
      const std::size_t stop = code.find_first_of(",}", at);
      at = code[stop] == ',' ? stop + 1 : stop;
    }
    return names;
  }
  std::size_t at = 0;
  if (code.starts_with("template")) at = skip_blank(code, code.find('\n'));
  if (starts_with_word(code, at, "struct")) {
    at = skip_blank(code, at + 6);
    if (starts_with_word(code, at, "alignas")) at = closing(code, code.find('(', at));
    return {name_at(at)};
  }
  // A function's name stands before its parameters, which launch bounds do not count as; a constant's before "=".
  for (; at < code.size(); at = begins_name(code[at]) ? name_end(code, at) : token_end(code, at)) {
    if (code[at] == '=') {
      names.push_back(name_before(at));
      while (at < code.size() && code[at] != ',' && code[at] != ';')
        at = code[at] == '(' || code[at] == '{' ? closing(code, at) : token_end(code, at);
    } else if (code[at] == '(' && names.empty()) {
      const std::string_view name = name_before(at);
      if (name == "__launch_bounds__") {
        at = closing(code, at) - 1;
        continue;
      }
      return {name};
    }
  }
  return names;
}

/// Where the declaration or directive at `at` ends, its line included.
std::size_t item_end(std::string_view text, std::size_t at) {
  if (text[at] == '#') {
    // A conditional is one item with all that it holds.
    int open = 0;
    do {
      const std::size_t begin = text.find_first_not_of(" \n", at), end = line_end(text, begin);
      const std::string_view line = text.substr(begin, end - begin);
      open += line.starts_with("#if");
      open -= line.starts_with("#endif");
      at = std::min(end + 1, text.size());
      if (line.ends_with('\\')) ++open, at = std::min(line_end(text, at) + 1, text.size()), --open;
    } while (open > 0 && at < text.size());
    return at;
  }
  while (at < text.size() && text[at] != ';' && text[at] != '{')
    at = text[at] == '(' ? closing(text, at) : token_end(text, at);
  if (at < text.size() && text[at] == '{') {
    at = closing(text, at);
    // "= {...};" and "struct {...};" go on.
    if (at < text.size() && text[at] == ';') ++at;
  }
  return std::min(line_end(text, at) + 1, text.size());
}

std::vector<std::string_view> names_in(std::string_view code) {
  std::vector<std::string_view> names;
  for (std::size_t at = 0; at < code.size();) {
    const bool name = begins_name(code[at]);
    const std::size_t next = name ? name_end(code, at) : token_end(code, at);
    if (name) names.push_back(code.substr(at, next - at));
    at = !name && code[at] >= '0' && code[at] <= '9' ? name_end(code, at) : next;
  }
  return names;
}

std::vector<Item> items_of(std::string_view text) {
  std::vector<Item> items;
  std::size_t at = 0;
  while (at < text.size()) {
    Item item;
    // Blank lines and comments before the declaration; a blank line parts what introduces a module from what follows.
    const std::size_t begin = at;
    std::size_t code = at;
    while (code < text.size() && (text[code] == '\n' || text.substr(code).starts_with("//"))) {
      const bool blank = text[code] == '\n';
      if (text.substr(code).starts_with("// ---- ")) item.opens_module = true;
      code = std::min(line_end(text, code) + 1, text.size());
      if (blank && item.opens_module) break;
    }
    if (item.opens_module || code >= text.size()) {
      item.text = text.substr(begin, code - begin);
      at = code;
    } else {
      at = item_end(text, code);
      item.text = text.substr(begin, at - begin);
      const std::string_view declaration = text.substr(code, at - code);
      item.is_root = declaration.starts_with("extern");
      item.is_check = declaration.starts_with("static_assert");
      if (!item.is_check) item.declares = declared_names(declaration);
      item.uses = names_in(declaration);
    }
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace

std::string resolve_branches(std::string_view source, int cuda_arch) {
  const std::string text =
      resolve_directives(source, {{"__CUDACC__", 1}, {"__CUDA_ARCH__", static_cast<double>(cuda_arch)}});
  return Resolver(text).result();
}

std::string shorten(std::string_view source) {
  constexpr std::size_t kWidth = 120;
  std::vector<std::string> lines;
  const auto indent = [](std::string_view line) { return std::min(line.find_first_not_of(' '), line.size()); };
  for (std::size_t at = 0; at < source.size(); at = line_end(source, at) + 1)
    lines.emplace_back(source.substr(at, line_end(source, at) - at));

  // A line that opens a function, the line of its only statement, if any, and the line that closes it.
  std::vector<std::string> joined;
  std::vector<std::string> idle;  // functions that do nothing
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string line = std::move(lines[i]);
    const std::string_view code = std::string_view(line).substr(indent(line));
    const bool opens = code.ends_with(" {") && (code.starts_with("LEAN_DEVICE ") ||
                                                (code.starts_with("const auto ") && code.find("= [") != kEnd));
    const std::string closing_line = std::string(indent(line), ' ') + (code.starts_with("const auto ") ? "};" : "}");
    for (const std::size_t statements : {0, 1}) {
      const std::size_t last = i + statements + 1;
      if (!opens || last >= lines.size() || lines[last] != closing_line) continue;
      const std::string statement = statements == 0 ? "" : lines[i + 1].substr(indent(lines[i + 1]));
      const bool is_one = statements == 0 || (statement.ends_with(';') && statement.find("//") == std::string::npos);
      std::string all = line;
      if (statements > 0) all.append(" ").append(statement).append(" ");
      all.append(closing_line, indent(line));
      if (!is_one || all.size() > kWidth) continue;
      line = std::move(all);
      i = last;
      break;
    }
    constexpr std::string_view kVoid = "LEAN_DEVICE void ";
    if (line.starts_with(kVoid) && line.ends_with(") {}"))
      idle.push_back(line.substr(kVoid.size(), name_end(line, kVoid.size()) - kVoid.size()));
    joined.push_back(std::move(line));
  }

  std::string out;
  for (const std::string& line : joined) {
    const std::string_view code = std::string_view(line).substr(indent(line));
    const std::string_view name = code.substr(0, name_end(code, 0));
    const bool calls_idle = code.size() > name.size() && code[name.size()] == '(' && line_end(code, 0) == code.size() &&
                            code.find(");") != kEnd && std::find(idle.begin(), idle.end(), name) != idle.end();
    if (!calls_idle) out.append(line).append("\n");
  }
  return out;
}

std::string remove_unreached(std::string_view source) {
  std::vector<Item> items = items_of(source);
  std::unordered_map<std::string_view, std::vector<std::size_t>> declared_by;
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (const std::string_view name : items[i].declares) declared_by[name].push_back(i);
  }
  std::vector<std::size_t> reached;
  const auto keep = [&](std::size_t i) {
    if (!items[i].kept) reached.push_back(i);
    items[i].kept = true;
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].is_root) keep(i);
  }
  const auto declarations = [&](std::string_view name) -> const std::vector<std::size_t>& {
    static const std::vector<std::size_t> none;
    const auto found = declared_by.find(name);
    return found == declared_by.end() ? none : found->second;
  };
  const auto follow = [&] {
    while (!reached.empty()) {
      const std::size_t i = reached.back();
      reached.pop_back();
      for (const std::string_view name : items[i].uses) {
        for (const std::size_t by : declarations(name)) keep(by);
      }
    }
  };
  follow();
  // A check stays, with all that it names, if it is about something that is there.
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto is_there = [&](std::string_view name) {
      const auto& by = declarations(name);
      return std::any_of(by.begin(), by.end(), [&](std::size_t other) { return items[other].kept; });
    };
    if (items[i].is_check && std::any_of(items[i].uses.begin(), items[i].uses.end(), is_there)) keep(i);
    follow();
  }
  std::string out;
  std::string_view module;  // what introduces it, until something of it is kept
  for (const Item& item : items) {
    if (item.opens_module) {
      module = item.text;
      continue;
    }
    if (!item.kept) continue;
    out.append(std::exchange(module, {}));
    // What is left out leaves no second blank line.
    out.append(item.text.substr(out.ends_with("\n\n") ? item.text.find_first_not_of('\n') : 0));
  }
  return out;
}

}  // namespace v1
}  // namespace leanattn
