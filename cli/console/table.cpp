#include "cli/console/table.hpp"

#include <algorithm>
#include <cassert>

namespace leanattn {
inline namespace v1 {
namespace {

std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string to_text(const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::string& heading : table.headings) widths.push_back(width(heading));
  for (const auto& row : table.rows) {
    assert(row.size() == widths.size());
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width(row[i]), ' ');
      const bool right = i < table.right_aligned.size() && table.right_aligned[i] == 'r';
      line += (i == 0 ? "" : "  ") + (right ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  append(table.headings);
  for (const auto& row : table.rows) append(row);
  return text;
}

}  // namespace v1
}  // namespace leanattn
