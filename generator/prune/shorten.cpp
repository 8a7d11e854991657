// shorten.cpp -- takes out calls of functions that do nothing, and puts short functions and pragmas of loops on one
// line.
#include <algorithm>
#include <string>
#include <vector>

#include "generator/prune/prune.hpp"
#include "generator/prune/source_text.hpp"

namespace leanattn {
inline namespace v1 {
std::string shorten(std::string_view source) {
  constexpr std::size_t kWidth = 120;
  std::vector<std::string> lines;
  const auto indent = [](std::string_view line) { return std::min(line.find_first_not_of(' '), line.size()); };
  bool unrolls = false;  // the line before is a pragma, which goes into the loop's own line
  for (std::size_t at = 0; at < source.size(); at = prune::line_end(source, at) + 1) {
    std::string line(source.substr(at, prune::line_end(source, at) - at));
    constexpr std::string_view kPragma = "#pragma unroll", kMacro = "LEAN_UNROLL ";
    if (unrolls && line.size() + kMacro.size() <= kWidth) {
      lines.back() = line.insert(indent(line), kMacro);
    } else {
      lines.push_back(std::move(line));
    }
    unrolls = lines.back() == kPragma;
  }

  // A line that opens a function, the line of its only statement, if any, and the line that closes it.
  std::vector<std::string> joined;
  std::vector<std::string> idle;  // functions that do nothing
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string line = std::move(lines[i]);
    const std::string_view code = std::string_view(line).substr(indent(line));
    const bool opens = code.ends_with(" {") && (code.starts_with("LEAN_DEVICE ") ||
                                                (code.starts_with("const auto ") && code.find("= [") != prune::kEnd));
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
      idle.push_back(line.substr(kVoid.size(), prune::name_end(line, kVoid.size()) - kVoid.size()));
    joined.push_back(std::move(line));
  }

  std::string out;
  for (const std::string& line : joined) {
    const std::string_view code = std::string_view(line).substr(indent(line));
    const std::string_view name = code.substr(0, prune::name_end(code, 0));
    const bool calls_idle = code.size() > name.size() && code[name.size()] == '(' &&
                            prune::line_end(code, 0) == code.size() && code.find(");") != prune::kEnd &&
                            std::find(idle.begin(), idle.end(), name) != idle.end();
    if (!calls_idle) out.append(line).append("\n");
  }
  return out;
}

}  // namespace v1
}  // namespace leanattn
