#include "generator/score_expression.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace {

enum class Type { integer, real };

struct Function {
  std::string_view name;
  int arguments;
};
/// Of CUDA's single-precision mathematics, those that NVRTC has without any header. They take and return float. Each
/// may be called without the f at its end, too, as mathematics and most languages name it.
constexpr std::array kFunctions = {
    Function{"fminf", 2},  Function{"fmaxf", 2},  Function{"fabsf", 1}, Function{"floorf", 1}, Function{"ceilf", 1},
    Function{"truncf", 1}, Function{"roundf", 1}, Function{"rintf", 1}, Function{"fmodf", 2},  Function{"expf", 1},
    Function{"exp2f", 1},  Function{"logf", 1},   Function{"log2f", 1}, Function{"log1pf", 1}, Function{"expm1f", 1},
    Function{"sqrtf", 1},  Function{"rsqrtf", 1}, Function{"powf", 2},  Function{"sinf", 1},   Function{"cosf", 1},
    Function{"tanhf", 1},  Function{"erff", 1},   Function{"fmaf", 3}};
bool is_called(const Function& function, std::string_view word) {
  return word == function.name || word == function.name.substr(0, function.name.size() - 1);
}
/// These two take two ints or two floats, and return what they take.
constexpr std::array<std::string_view, 2> kSelections{"min", "max"};
/// And this one takes an int or a float.
constexpr std::string_view kMagnitude = "abs";
constexpr std::array<std::pair<std::string_view, Type>, 4> kNames{
    {{"score", Type::real}, {"q_index", Type::integer}, {"kv_index", Type::integer}, {"head", Type::integer}}};

/// What binds tighter has the larger number.
enum Precedence { kConditional, kOr, kAnd, kEquality, kRelation, kSum, kProduct, kUnary, kPrimary };

struct BinaryOperator {
  std::string_view text;
  Precedence precedence;
};
/// Where one is the beginning of another, the longer one stands first.
constexpr std::array kBinaryOperators = {
    BinaryOperator{"||", kOr},       BinaryOperator{"&&", kAnd},      BinaryOperator{"==", kEquality},
    BinaryOperator{"!=", kEquality}, BinaryOperator{"<=", kRelation}, BinaryOperator{">=", kRelation},
    BinaryOperator{"<", kRelation},  BinaryOperator{">", kRelation},  BinaryOperator{"+", kSum},
    BinaryOperator{"-", kSum},       BinaryOperator{"*", kProduct},   BinaryOperator{"/", kProduct},
    BinaryOperator{"%", kProduct}};

/// A piece of the tree with its source. The parts' sources are put together as the tree grows, so the tree itself is
/// not kept.
struct Node {
  std::string source;
  Precedence precedence;
  Type type;
};

std::string enclosed(const Node& node, Precedence least) {
  return node.precedence >= least ? node.source : "(" + node.source + ")";
}

Node converted(Node node, Type type) {
  if (node.type == type) return node;
  return {fmt::format("({}){}", type == Type::real ? "float" : "int", enclosed(node, kUnary)), kUnary, type};
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Where reading stopped, and why.
struct Complaint {
  std::size_t at;
  std::string what;
};

/// Recursive descent, one function a level of the grammar. A complaint leaves as an exception, which score_source()
/// catches.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::string parse() {
    skip_spaces();
    if (at_ == text_.size()) complain(at_, "an expression is expected");
    const Node node = conditional();
    if (at_ != text_.size()) complain(at_, fmt::format("{} is not expected", found()));
    return converted(node, Type::real).source;
  }

 private:
  [[noreturn]] void complain(std::size_t at, std::string what) const { throw Complaint{at, std::move(what)}; }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  /// Takes `token` and the spaces behind it, if it is next.
  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    skip_spaces();
    return true;
  }

  void require(std::string_view token, std::string_view why) {
    if (!take(token)) complain(at_, fmt::format("'{}' is expected {}, not {}", token, why, found()));
  }

  /// What is next, in words.
  std::string found() const {
    if (at_ == text_.size()) return "the end";
    if (is_letter(text_[at_])) return fmt::format("'{}'", word_at(at_));
    const char c = text_[at_];
    return c > ' ' && c < 127 ? fmt::format("'{}'", c)
                              : fmt::format("the byte 0x{:02x}", static_cast<unsigned char>(c));
  }

  std::string_view word_at(std::size_t at) const {
    std::size_t end = at;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
    return text_.substr(at, end - at);
  }

  Node conditional() {
    Node condition = binary(kOr);
    if (!take("?")) return condition;
    Node yes = conditional();
    require(":", "between the two values of a condition");
    Node no = conditional();
    const Type type = meet(yes, no);
    return {fmt::format("{} ? {} : {}", enclosed(condition, kOr), yes.source, no.source), kConditional, type};
  }

  /// Gives two operands one type, and says which.
  static Type meet(Node& a, Node& b) {
    const Type type = a.type == Type::real || b.type == Type::real ? Type::real : Type::integer;
    a = converted(std::move(a), type);
    b = converted(std::move(b), type);
    return type;
  }

  /// The operator of this level that is next, or null.
  const BinaryOperator* operator_at(Precedence level) const {
    const std::string_view rest = text_.substr(at_);
    for (const BinaryOperator& candidate : kBinaryOperators) {
      if (rest.starts_with(candidate.text)) return candidate.precedence == level ? &candidate : nullptr;
    }
    return nullptr;
  }

  Node binary(Precedence level) {
    if (level == kUnary) return unary();
    const auto next = static_cast<Precedence>(level + 1);
    Node left = binary(next);
    while (const BinaryOperator* const op = operator_at(level)) {
      const std::size_t place = at_;
      take(op->text);
      Node right = binary(next);
      left = joined(std::move(left), *op, std::move(right), place);
    }
    return left;
  }

  Node joined(Node left, const BinaryOperator& op, Node right, std::size_t place) const {
    Type type = Type::integer;
    if (op.precedence > kAnd) {
      const Type common = meet(left, right);
      if (op.text == "%" && common == Type::real) complain(place, "'%' takes two ints; fmodf() takes floats");
      if (op.precedence >= kSum) type = common;
    }
    return {fmt::format("{} {} {}", enclosed(left, op.precedence), op.text,
                        enclosed(right, static_cast<Precedence>(op.precedence + 1))),
            op.precedence, type};
  }

  Node unary() {
    const std::size_t place = at_;
    if (take("!")) {
      const Node operand = unary();
      return {fmt::format("!{}", enclosed(operand, kUnary)), kUnary, Type::integer};
    }
    for (const std::string_view sign : {"-", "+"}) {
      if (!take(sign)) continue;
      if (at_ == place + 1 && at_ < text_.size() && text_[at_] == sign.front())
        complain(place, fmt::format("'{0}{0}' is not an operator here", sign));
      const Node operand = unary();
      // Parentheses keep two signs apart.
      return {fmt::format("{}{}", sign, enclosed(operand, operand.precedence == kUnary ? kPrimary : kUnary)), kUnary,
              operand.type};
    }
    return primary();
  }

  Node primary() {
    if (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '.')) return number();
    if (at_ < text_.size() && is_letter(text_[at_])) return named();
    const std::size_t place = at_;
    if (!take("(")) complain(at_, fmt::format("a number, a name or '(' is expected, not {}", found()));
    for (const auto& [name, type] : kTypes) {
      if (word_at(at_) != name) continue;
      const std::size_t before = at_;
      take(name);
      // "(float(x))" is a value in parentheses.
      if (take(")")) return converted_to(type, unary());
      at_ = before;
    }
    Node inner = conditional();
    if (!take(")")) complain(place, fmt::format("this '(' is not closed before {}", found()));
    return inner;
  }

  static Node converted_to(Type type, Node operand) {
    // A conversion that changes nothing is left out.
    return converted(std::move(operand), type);
  }

  Node number() {
    const std::size_t begin = at_;
    const bool hexadecimal = text_.substr(begin).starts_with("0x") || text_.substr(begin).starts_with("0X");
    std::size_t end = begin;
    const auto more = [&] {
      if (end == text_.size()) return false;
      const char c = text_[end];
      if (is_digit(c) || is_letter(c) || c == '.') return true;
      // The sign of an exponent belongs to its number.
      return !hexadecimal && (c == '+' || c == '-') && end > begin && (text_[end - 1] == 'e' || text_[end - 1] == 'E');
    };
    while (more()) ++end;
    const std::string_view word = text_.substr(begin, end - begin);
    const auto bad = [&](std::string_view why) { complain(begin, fmt::format("'{}' {}", word, why)); };
    at_ = end;
    skip_spaces();

    if (word.find_first_of(hexadecimal ? "." : ".eEfF") == std::string_view::npos) {
      const std::string_view digits = hexadecimal ? word.substr(2) : word;
      int value = 0;
      const auto [stop, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), value, hexadecimal ? 16 : 10);
      if (error == std::errc::result_out_of_range) bad("is larger than an int can be");
      if (error != std::errc() || stop != digits.data() + digits.size()) bad("is not a number");
      return {fmt::format("{}", value), kPrimary, Type::integer};
    }
    if (hexadecimal) bad("is not a number");
    const std::string_view digits = word.back() == 'f' || word.back() == 'F' ? word.substr(0, word.size() - 1) : word;
    float value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc::result_out_of_range) bad("is outside of what a float can be");
    if (error != std::errc() || stop != digits.data() + digits.size()) bad("is not a number");
    std::string source = fmt::format("{}", value);
    if (source.find_first_of(".e") == std::string::npos) source += ".0";
    return {source + "f", kPrimary, Type::real};
  }

  Node named() {
    const std::size_t place = at_;
    const std::string_view word = word_at(at_);
    at_ += word.size();
    skip_spaces();
    for (const auto& [name, type] : kNames) {
      if (word == name) return {std::string(name), kPrimary, type};
    }
    for (const auto& [name, type] : kTypes) {
      if (word == name) return converted_to(type, std::move(arguments(word, 1).front()));
    }
    for (const Function& function : kFunctions) {
      if (!is_called(function, word)) continue;
      std::vector<Node> values = arguments(word, function.arguments);
      for (Node& value : values) value = converted(std::move(value), Type::real);
      return call(function.name, values, Type::real);
    }
    if (word == kMagnitude) {
      const std::vector<Node> values = arguments(word, 1);
      const Type type = values.front().type;
      return call(type == Type::integer ? kMagnitude : "fabsf", values, type);
    }
    for (const std::string_view name : kSelections) {
      if (word != name) continue;
      std::vector<Node> values = arguments(word, 2);
      const Type type = meet(values[0], values[1]);
      return call(name, values, type);
    }
    complain(place, fmt::format("'{}' is neither a name nor a function of the language", word));
  }

  static Node call(std::string_view name, std::span<const Node> values, Type type) {
    std::string source = std::string(name) + "(";
    for (const Node& value : values) source += (&value == values.data() ? "" : ", ") + value.source;
    return {source + ")", kPrimary, type};
  }

  std::vector<Node> arguments(std::string_view function, int count) {
    require("(", fmt::format("behind {}", function));
    std::vector<Node> values;
    do {
      const std::size_t place = at_;
      if (values.size() == static_cast<std::size_t>(count))
        complain(place, fmt::format("{} takes {} argument{}", function, count, count == 1 ? "" : "s"));
      values.push_back(conditional());
    } while (take(","));
    if (values.size() < static_cast<std::size_t>(count) && text_.substr(at_).starts_with(")"))
      complain(at_, fmt::format("{} takes {} arguments", function, count));
    require(")", fmt::format("behind the arguments of {}", function));
    return values;
  }

  static constexpr std::array<std::pair<std::string_view, Type>, 2> kTypes{
      {{"float", Type::real}, {"int", Type::integer}}};

  std::string_view text_;
  std::size_t at_ = 0;
};

/// One column a byte: what a terminal would not show as one stands as '?'.
std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c < ' ' || c >= 127) c = '?';
  }
  return out;
}

}  // namespace

Result<std::string> score_source(std::string_view text) {
  if (text.size() > kMostScoreCharacters)
    return fail(ErrorCode::invalid_argument, fmt::format("the score expression has {} characters", text.size()),
                fmt::format("Give at most {} characters.", kMostScoreCharacters));
  try {
    return Parser(text).parse();
  } catch (const Complaint& complaint) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("the score expression is wrong at character {}: {}\n  {}\n  {}^", complaint.at + 1,
                            complaint.what, printable(text), std::string(complaint.at, ' ')),
                fmt::format("An expression has numbers, score, q_index, kv_index, head, the operators + - * / %, "
                            "comparisons, && || ! and ?:, parentheses, (float), (int), and the functions {}. The f at "
                            "the end of a function's name may be left out.",
                            score_functions()));
  }
}

std::string score_functions() {
  std::string names;
  for (const Function& function : kFunctions) names += fmt::format("{}, ", function.name);
  return names + fmt::format("{}, {}, {}", kMagnitude, kSelections[0], kSelections[1]);
}

}  // namespace v1
}  // namespace leanattn
