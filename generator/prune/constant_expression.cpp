#include "generator/prune/constant_expression.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include "generator/prune/source_text.hpp"

namespace leanattn {
inline namespace v1 {
namespace prune {
namespace {

/// Reads an expression from left to right.
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

}  // namespace

Value constant_value(std::string_view expression, const Constants& constants) {
  return Expression(expression, constants).value();
}

}  // namespace prune
}  // namespace v1
}  // namespace leanattn
