#include "cli/console/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "cli/console/console.hpp"
#include "tuner/report/escape.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Row = std::vector<std::string>;

constexpr std::size_t kGap = 2;  // between columns

std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::vector<std::size_t> widths_of(const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::string& heading : table.headings) widths.push_back(width(heading));
  for (const Row& row : table.rows) {
    assert(row.size() == widths.size());
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  return widths;
}

/// The width of the first `count` columns.
std::size_t width_of(const std::vector<std::size_t>& widths, std::size_t count) {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += widths[i] + (i == 0 ? 0 : kGap);
  return sum;
}

/// The first `count` cells of a row in their columns.
std::string line_of(const Table& table, const Row& row, const std::vector<std::size_t>& widths, std::size_t count) {
  std::string line;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string padding(widths[i] - width(row[i]), ' ');
    const bool right = i < table.right_aligned.size() && table.right_aligned[i] == 'r';
    line +=
        fmt::format("{}{}{}", std::string(i == 0 ? 0 : kGap, ' '), right ? padding : row[i], right ? row[i] : padding);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

/// A line for each cell.
std::string as_records(const Table& table) {
  std::size_t widest = 0;
  for (const std::string& heading : table.headings) widest = std::max(widest, width(heading));
  std::string text;
  for (const Row& row : table.rows) {
    if (!text.empty()) text += "\n";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string& heading = table.headings[i];
      text += heading + std::string(widest - width(heading) + kGap, ' ') + row[i] + "\n";
    }
  }
  return text;
}

Table cleaned(Table table) {
  const auto clean = [](std::string& cell) {
    cell = detail::clean_text(cell);
    std::replace_if(
        cell.begin(), cell.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  };
  std::for_each(table.headings.begin(), table.headings.end(), clean);
  for (Row& row : table.rows) std::for_each(row.begin(), row.end(), clean);
  return table;
}

}  // namespace

std::string to_text(const Table& raw, std::size_t columns) {
  const Table table = cleaned(raw);
  const std::vector<std::size_t> widths = widths_of(table);
  const std::size_t count = widths.size();
  const bool whole = columns == 0 || width_of(widths, count) <= columns;
  const bool split = !whole && count > 1 && width_of(widths, count - 1) <= columns && kGap + widths.back() <= columns;
  if (!whole && !split) return as_records(table);

  std::string text;
  const auto append = [&](const Row& row) {
    text += line_of(table, row, widths, whole ? count : count - 1);
    if (split) text += fmt::format("{}{}\n", std::string(kGap, ' '), row.back());
  };
  append(table.headings);
  for (const Row& row : table.rows) append(row);
  return text;
}

void print_table(const Table& table) { print(to_text(table, terminal_columns(stdout))); }

}  // namespace v1
}  // namespace leanattn
