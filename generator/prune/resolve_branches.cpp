// resolve_branches.cpp -- takes the branches that constants decide.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "generator/prune/constant_expression.hpp"
#include "generator/prune/prune.hpp"
#include "generator/prune/source_text.hpp"

namespace leanattn {
inline namespace v1 {
namespace prune {
namespace {

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
      const Value value = constant_value(declaration.substr(equals + 1, stop - equals - 1), constants_);
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
        value = constant_value(given.substr(equals + 1), constants_).value_or(value);
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
    return constant_value(text_.substr(open + 1, closing(text_, open) - open - 2), constants_);
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
    return constant_value(plain, constants);
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

}  // namespace
}  // namespace prune

std::string resolve_branches(std::string_view source, int cuda_arch) {
  const std::string text =
      prune::resolve_directives(source, {{"__CUDACC__", 1}, {"__CUDA_ARCH__", static_cast<double>(cuda_arch)}});
  return prune::Resolver(text).result();
}

}  // namespace v1
}  // namespace leanattn
