// ptx_text.cpp -- a recursive descent over the characters of PTX.
#include "tests/emulator/ptx_text.hpp"

#include <bit>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace emulator {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  ModuleText module() {
    ModuleText module;
    for (skip(); !at_end(); skip()) {
      const std::string word = directive();
      if (word == "version" || word == "address_size") {
        rest_of_line();
      } else if (word == "target") {
        module.target = rest_of_line();
      } else if (word == "visible" || word == "weak" || word == "extern") {
        is_extern_ = word == "extern";
        continue;
      } else if (word == "entry" || word == "func") {
        FunctionText parsed = function(word == "entry");
        if (!is_extern_ && has_body_) module.functions.push_back(std::move(parsed));
      } else {
        module.variables.push_back(variable(word));
        module.variables.back().is_extern = is_extern_;
        expect(';');
      }
      is_extern_ = false;
    }
    return module;
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  void step() { line_ += text_[at_++] == '\n'; }

  [[noreturn]] void fail(const char* what) const {
    give_up(std::string(what) + " before '" + std::string(text_.substr(at_, 60)) + "'", line_);
  }

  /// Skips white space and comments.
  void skip() {
    while (!at_end()) {
      if (std::isspace(static_cast<unsigned char>(peek())) != 0) {
        step();
      } else if (peek() == '/' && peek(1) == '/') {
        while (!at_end() && peek() != '\n') step();
      } else if (peek() == '/' && peek(1) == '*') {
        while (!at_end() && !(peek() == '*' && peek(1) == '/')) step();
        step(), step();
      } else {
        return;
      }
    }
  }
  bool take(char c) {
    skip();
    if (peek() != c) return false;
    step();
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail((std::string("expected '") + c + "'").c_str());
  }
  static bool in_name(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
  }

  std::string name() {
    skip();
    const std::size_t begin = at_;
    while (in_name(peek())) step();
    if (begin == at_) fail("expected a name");
    return std::string(text_.substr(begin, at_ - begin));
  }
  /// A name with dots, such as an opcode or %tid.x.
  std::string dotted_name() {
    skip();
    const std::size_t begin = at_;
    while (in_name(peek()) || peek() == '.' || (peek() == ':' && peek(1) == ':')) {
      if (peek() == ':') step();
      step();
    }
    if (begin == at_) fail("expected a name");
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::string directive() {
    expect('.');
    return name();
  }
  std::string rest_of_line() {
    const std::size_t begin = at_;
    while (!at_end() && peek() != '\n') step();
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::int64_t integer() {
    Argument a = number();
    if (a.kind != Argument::Kind::integer) fail("expected an integer");
    return a.integer;
  }
  Argument number() {
    skip();
    Argument a;
    a.kind = Argument::Kind::integer;
    const bool minus = take('-');
    skip();
    if (peek() == '0' && (peek(1) == 'f' || peek(1) == 'F' || peek(1) == 'd' || peek(1) == 'D')) {
      const bool is_double = std::tolower(peek(1)) == 'd';
      step(), step();
      const std::uint64_t bits = std::stoull(name(), nullptr, 16);
      a.kind = Argument::Kind::real;
      a.real = is_double ? std::bit_cast<double>(bits)
                         : static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    } else {
      const std::size_t begin = at_;
      while (in_name(peek()) || (peek() == '.' && std::isdigit(static_cast<unsigned char>(peek(1))) != 0)) step();
      std::string digits(text_.substr(begin, at_ - begin));
      if (digits.find('.') != std::string::npos) {
        a.kind = Argument::Kind::real;
        a.real = std::stod(digits);
      } else {
        while (!digits.empty() && (digits.back() == 'U' || digits.back() == 'u')) digits.pop_back();
        if (digits.empty()) fail("expected a number");
        a.integer = static_cast<std::int64_t>(std::stoull(digits, nullptr, 0));
      }
    }
    if (minus) a.integer = -a.integer, a.real = -a.real;
    return a;
  }

  std::vector<Argument> arguments_until(char close) {
    std::vector<Argument> items;
    if (take(close)) return items;
    do items.push_back(argument());
    while (take(','));
    expect(close);
    return items;
  }

  Argument argument() {
    Argument a;
    skip();
    if (take('{')) {
      a.kind = Argument::Kind::list;
      a.items = arguments_until('}');
    } else if (take('(')) {
      a.kind = Argument::Kind::list;
      a.items = arguments_until(')');
    } else if (take('[')) {
      a.kind = Argument::Kind::address;
      skip();
      if (std::isdigit(static_cast<unsigned char>(peek())) == 0) a.name = dotted_name();
      if (a.name.empty()) a.integer = integer();
      if (take('+')) a.integer += integer();
      if (take(',')) {
        expect('{');
        a.items = arguments_until('}');
      }
      expect(']');
    } else if (std::isdigit(static_cast<unsigned char>(peek())) != 0 || peek() == '-') {
      a = number();
    } else {
      a.negated = take('!');
      a.name = dotted_name();
      if (take('+')) a.integer = integer();
      if (take('|')) {
        Argument both;
        both.kind = Argument::Kind::list;
        both.items = {a, argument()};
        return both;
      }
    }
    return a;
  }

  /// What follows ".space": ".align 4 .b8 name[16] = {...}".
  Variable variable(const std::string& space) {
    Variable v;
    v.space = space;
    while (true) {
      const std::string word = directive();
      if (word == "align") {
        v.alignment = static_cast<int>(integer());
      } else if (word == "ptr" || word == "global" || word == "attribute") {
        if (word == "attribute") fail("an attribute of a variable");
      } else {
        v.type = word;
        skip();
        if (peek() != '.') break;
      }
    }
    v.name = name();
    if (take('<')) {
      v.count = integer();
      v.is_family = true;
      expect('>');
    }
    while (take('[')) {
      v.is_array = true;
      v.count *= take(']') ? 0 : integer();
      if (peek() == ']' || v.count > 0) take(']');
    }
    if (take('=')) {
      const bool braces = take('{');
      do {
        skip();
        const bool number_next = std::isdigit(static_cast<unsigned char>(peek())) != 0 || peek() == '-';
        v.initial_names.push_back(number_next ? "" : name());
        v.initial.push_back(number_next ? static_cast<std::uint64_t>(number().integer) : 0);
      } while (take(','));
      if (braces) expect('}');
    }
    return v;
  }

  std::vector<Variable> parameters() {
    std::vector<Variable> found;
    expect('(');
    if (take(')')) return found;
    do {
      if (directive() != "param") fail("a parameter that is none");
      found.push_back(variable("param"));
    } while (take(','));
    expect(')');
    return found;
  }

  FunctionText function(bool is_entry) {
    FunctionText f;
    f.is_entry = is_entry;
    skip();
    if (peek() == '(') f.results = parameters();
    f.name = name();
    skip();
    if (peek() == '(') f.parameters = parameters();
    for (skip(); peek() == '.'; skip()) {
      const std::string word = directive();
      if (word == "explicitcluster" || word == "noreturn") continue;
      std::int64_t product = integer();
      while (take(',')) product *= integer();
      if (word == "maxntid") f.max_threads = static_cast<int>(product);
      if (word == "minnctapersm") f.ctas_per_sm = static_cast<int>(product);
      if (word == "reqnctapercluster") f.cluster = static_cast<int>(product);
    }
    has_body_ = !take(';');
    if (has_body_) body(f.body);
    return f;
  }

  void body(std::vector<Statement>& statements) {
    expect('{');
    for (int depth = 1; depth > 0;) {
      skip();
      Statement s;
      s.line = line_;
      if (take('{')) {
        ++depth;
        s.kind = Statement::Kind::begin_scope;
      } else if (take('}')) {
        --depth;
        s.kind = Statement::Kind::end_scope;
        if (depth == 0) return;
      } else if (peek() == '.') {
        step();
        const std::string word = name();
        if (word == "pragma" || word == "loc") {
          rest_of_line();
          continue;
        }
        // One declaration may name several registers.
        s.kind = Statement::Kind::declaration;
        s.variable = variable(word);
        while (take(',')) {
          statements.push_back(s);
          s.variable.name = name();
        }
        expect(';');
      } else if (!instruction(s)) {
        continue;
      }
      statements.push_back(std::move(s));
    }
  }

  bool instruction(Statement& s) {
    if (take(';')) return false;
    if (take('@')) {
      s.guard_negated = take('!');
      s.guard = name();
    }
    skip();
    s.line = line_;
    s.opcode = dotted_name();
    if (s.guard.empty() && take(':')) {
      s.kind = Statement::Kind::label;
      s.label = std::exchange(s.opcode, "");
      skip();
      if (peek() == '.' && text_.substr(at_, 14) == ".branchtargets") {
        directive();
        s.kind = Statement::Kind::branch_targets;
        s.arguments = arguments_until(';');
      }
      return true;
    }
    s.arguments = arguments_until(';');
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool is_extern_ = false, has_body_ = false;
};

}  // namespace

ModuleText parse_ptx(std::string_view text) { return Parser(text).module(); }

void give_up(const std::string& what, int line) {
  std::fprintf(stderr, "emulator: PTX line %d: %s\n", line, what.c_str());
  std::fflush(stderr);
  std::_Exit(70);
}

}  // namespace emulator
